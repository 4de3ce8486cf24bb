"""However far a request had come, its end gives back every byte that was reserved for it (case A-09)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted import Instance
from support.manager import Manager
from support.wait import wait_until
from tiered import BYTES, PAGES, ask, phase_bytes, prepare, prepared, ready, store, tiered

from orbitkv import _native as native

Connect = Callable[..., Instance]
ROUNDS = 100
# Brings a request somewhere; what is returned ends it.
Place = Callable[[Manager, Instance], Callable[[], object]]
PLACES: dict[str, Place] = {}


def place(make: Place) -> Place:
    PLACES[make.__name__] = make
    return make


def wait_owned(manager: Manager, phase: str) -> None:
    wait_until(lambda: phase_bytes(manager, phase) == BYTES, f"{BYTES} bytes are {phase}")


@place
def preparation_asked_for(manager: Manager, instance: Instance) -> Callable[[], object]:
    begun = manager.counters()["speculations"]
    preparation = prepare(instance, "a")

    def end() -> None:
        preparation.cancel()
        # Nothing is owned before the manager has heard of it either.
        wait_until(lambda: manager.counters()["speculations"] == begun + 1, "it has begun")

    return end


@place
def preparation_being_read(manager: Manager, instance: Instance) -> Callable[[], object]:
    preparation = prepare(instance, "a")
    wait_owned(manager, "preloading")
    return preparation.cancel


@place
def preparation_held(manager: Manager, instance: Instance) -> Callable[[], object]:
    preparation = prepare(instance, "a")
    prepared(preparation)
    wait_owned(manager, "prepared")
    return preparation.cancel


@place
def claimed_while_it_is_read(manager: Manager, instance: Instance) -> Callable[[], object]:
    query = prepare(instance, "a").claim(deadline_ms=30_000)
    wait_owned(manager, "preparing")
    return query.release


@place
def claimed(manager: Manager, instance: Instance) -> Callable[[], object]:
    preparation = prepare(instance, "a")
    prepared(preparation)
    query = preparation.claim()
    ready(query)
    wait_owned(manager, "ready")
    return query.release


@place
def query_being_read(manager: Manager, instance: Instance) -> Callable[[], object]:
    query = ask(instance, "a")
    wait_owned(manager, "preparing")
    return query.release


@place
def query_answered(manager: Manager, instance: Instance) -> Callable[[], object]:
    query = ask(instance, "a")
    ready(query)
    wait_owned(manager, "ready")
    return query.release


@place
def query_waiting_for_budget(manager: Manager, instance: Instance) -> Callable[[], object]:
    """Behind others that own all of the budget."""
    owners = [ask(instance, "a") for _ in range(4)]
    for owner in owners:
        ready(owner)
    waiting = ask(instance, "a")
    wait_until(lambda: manager.status()["query"]["operations"]["waiting"] == 1, "it waits")

    def end() -> None:
        waiting.release()
        wait_until(lambda: manager.status()["query"]["operations"]["waiting"] == 0, "it does not wait")
        assert manager.status()["query"]["reserved_bytes"] == 4 * BYTES
        for owner in owners:
            owner.release()

    return end


@place
def restore_under_way(manager: Manager, instance: Instance) -> Callable[[], object]:
    query = instance.query("a", PAGES)
    ticket = query.restore(0, PAGES)
    query.release()
    load = instance.workers[0].restore(ticket, list(range(PAGES)))
    return lambda: load.abort(10_000)


@pytest.mark.parametrize("name", PLACES)
def test_case_a09_every_end_gives_everything_back(
    new_manager: Callable[..., Manager], new_instance: Connect, name: str
) -> None:
    # Of which preparations may have a quarter: one of them.
    manager = tiered(new_manager, "--query-budget", str(4 * BYTES), delay_ms=20)
    instance = new_instance(manager)
    store(manager, instance, "a")
    for _ in range(ROUNDS):
        end = PLACES[name](manager, instance)
        end()
        del end
        # Total and speculative bytes among others, within seconds although nothing expires so soon.
        manager.assert_drained()
        manager.drop_memory()
    counters = manager.counters()
    assert counters["expired_preparations"] == counters["expired_leases"] == 0, "time ended it"
    assert instance.scheduler.stats()["preparations_skipped"] == 0
    # The share is whole: it takes one preparation, and no second one beside it.
    last = prepare(instance, "a")
    prepared(last)
    second = prepare(instance, "a")
    wait_until(lambda: second.poll() != native.PENDING, "control: the second is answered")
    assert (last.poll(), second.miss_reason) == (native.PREPARED, "budget")
    query = last.claim()
    ready(query)
    assert instance.restore(query, PAGES) == []
    assert instance.differing("a", PAGES) == []
    manager.assert_drained()
