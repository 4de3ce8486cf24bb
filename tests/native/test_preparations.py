"""What is read ahead is claimed by its own request alone, and is nobody's once nobody asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from scripted import Instance, chain
from support.manager import Manager
from support.wait import wait_until
from tiered import BYTES, PAGES, prepared, ready, store, tiered

from orbitkv import _native as native

Connect = Callable[..., Instance]
Start = Callable[..., Manager]


def lookups(manager: Manager) -> list[int]:
    """What counts queries and the pages that they asked for."""
    counters = manager.counters()
    return [counters[name] for name in ("queries", "ram_pages", "tier_pages", "missed_pages")]


def test_what_is_prepared_is_claimed_and_restored(new_manager: Start, new_instance: Connect) -> None:
    manager = tiered(new_manager)
    instance = new_instance(manager)
    store(manager, instance, "a")
    before, reads = lookups(manager), manager.counters()["read_pages"]
    preparation = instance.scheduler.prepare_prefix(chain("a", PAGES))
    prepared(preparation)
    assert manager.status()["query"]["reserved_bytes_by_phase"]["prepared"] == BYTES
    assert lookups(manager) == before, "nobody has looked anything up"
    session, operation, revision = preparation.ids
    query = preparation.claim()
    ready(query)
    assert lookups(manager) != before, "control: the claim is the lookup"
    assert manager.counters()["queries"] == before[0] + 1
    assert (preparation.poll(), preparation.pages) == (native.MISS, 0)
    with pytest.raises(native.OrbitKVError, match="claimed before"):
        preparation.claim()
    assert instance.differing("a", PAGES) == list(range(PAGES)), "control: poison before the restore"
    assert instance.restore(query, PAGES) == []
    assert instance.differing("a", PAGES) == []
    assert manager.counters()["read_pages"] == reads + PAGES, "read once"
    assert manager.counters()["claims"] == 1
    assert query.ids == (session, operation, revision), "a claim is the same operation"
    other = instance.scheduler.query(chain("other", 1))
    assert other.ids == (session, operation + 1, revision), "control: another query is another one"
    other.release()
    manager.assert_drained()


def test_a_claim_while_it_is_being_read(new_manager: Start, new_instance: Connect) -> None:
    manager = tiered(new_manager, delay_ms=700)
    instance = new_instance(manager)
    store(manager, instance, "a")
    reads = manager.counters()["read_pages"]
    preparation = instance.scheduler.prepare_prefix(chain("a", PAGES))
    query = preparation.claim(deadline_ms=30_000)
    wait_until(lambda: manager.status()["query"]["reserved_bytes_by_phase"]["preparing"] == BYTES, "claimed")
    assert query.poll() == native.PENDING
    ready(query)
    assert instance.restore(query, PAGES) == []
    assert instance.differing("a", PAGES) == []
    assert manager.counters()["read_pages"] == reads + PAGES, "read once"
    assert manager.counters()["claims"] == 1
    manager.assert_drained()


def test_only_polls_keep_it(new_manager: Start, new_instance: Connect) -> None:
    manager = tiered(new_manager)
    instance = new_instance(manager)
    store(manager, instance, "a")
    preparation = instance.scheduler.prepare_prefix(chain("a", PAGES))
    prepared(preparation)
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        assert preparation.poll() == native.PREPARED
        time.sleep(0.01)
    assert manager.status()["query"]["speculative_reserved_bytes"] == BYTES
    # Looks without a poll from here on.
    wait_until(lambda: preparation.pages == 0, "it has ended by itself")
    assert preparation.miss_reason == "expired"
    manager.assert_drained()
    stats = instance.scheduler.stats()
    assert (stats["preparations_expired"], stats["preparations_claimed"]) == (1, 0)
    # Its claim is an ordinary query, and the pages are still in memory.
    query = preparation.claim()
    ready(query)
    assert instance.restore(query, PAGES) == []
    assert instance.differing("a", PAGES) == []
    assert manager.counters()["claims"] == 0
    manager.assert_drained()


@pytest.mark.parametrize("ending", ["cancel", "deletion"])
def test_one_that_is_not_wanted_any_more_ends(new_manager: Start, new_instance: Connect, ending: str) -> None:
    manager = tiered(new_manager)
    instance = new_instance(manager)
    store(manager, instance, "a")
    preparation = instance.scheduler.prepare_prefix(chain("a", PAGES))
    prepared(preparation)
    if ending == "cancel":
        preparation.cancel()
        preparation.cancel()
        assert (preparation.poll(), preparation.miss_reason) == (native.MISS, "released")
    else:
        del preparation
    manager.assert_drained()
    assert manager.counters()["expired_preparations"] == 0


def test_other_hashes_claim_nothing(new_manager: Start, new_instance: Connect) -> None:
    manager = tiered(new_manager)
    instance = new_instance(manager)
    store(manager, instance, "b")
    store(manager, instance, "a")
    preparation = instance.scheduler.prepare_prefix(chain("a", PAGES))
    prepared(preparation)
    # Another chain, a part of this one, and this very one by a query of its own.
    for name, pages in (("b", PAGES), ("a", PAGES - 1), ("a", PAGES)):
        query = instance.scheduler.query(chain(name, pages))
        wait_until(lambda query=query: (preparation.poll(), query.poll())[1] != native.PENDING, "answered")
        ready(query, pages)
        query.release()
    assert manager.counters()["claims"] == 0
    prepared(preparation)
    ready(preparation.claim())
    assert manager.counters()["claims"] == 1, "control: the claim of its own"
    manager.assert_drained()


def test_one_larger_than_a_quarter_of_the_budget_is_skipped(
    new_manager: Start, new_instance: Connect
) -> None:
    manager = tiered(new_manager, "--query-budget", str(4 * (BYTES - 1)))
    instance = new_instance(manager)
    store(manager, instance, "a")
    reads = manager.counters()["read_pages"]
    preparation = instance.scheduler.prepare_prefix(chain("a", PAGES))
    wait_until(lambda: preparation.poll() != native.PENDING, "it is answered")
    assert (preparation.poll(), preparation.miss_reason) == (native.MISS, "budget")
    assert manager.counters()["read_pages"] == reads, "not a part of it was read"
    assert instance.scheduler.stats()["preparations_skipped"] == 1
    # Control: one page less is not.
    smaller = instance.scheduler.prepare_prefix(chain("a", PAGES - 1))
    prepared(smaller, PAGES - 1)
    # The request itself gets its pages all the same.
    smaller.cancel()
    ready(preparation.claim())
    manager.assert_drained()


def test_a_warm_up_brings_pages_into_memory_and_leases_none(
    new_manager: Start, new_instance: Connect
) -> None:
    manager = tiered(new_manager)
    instance = new_instance(manager)
    store(manager, instance, "a")
    before = lookups(manager)
    assert instance.scheduler.warm_up(chain("a", PAGES))
    wait_until(lambda: instance.scheduler.stats()["warmed_pages"] == PAGES, "it has ended")
    status = manager.status()
    assert (status["pool"]["pages"], status["query"]["leases"]) == (PAGES, 0)
    assert lookups(manager) == before
    manager.assert_drained()
    reads = manager.counters()["read_pages"]
    query = instance.query("a", PAGES)
    assert manager.counters()["read_pages"] == reads, "in memory already"
    assert instance.restore(query, PAGES) == []
    assert instance.differing("a", PAGES) == []
    # Control: no lease holds them.
    manager.assert_drained()
    assert manager.drop_memory() == PAGES
    assert instance.scheduler.stats()["warm_ups"] == 1


def test_at_a_deadline_what_is_in_memory_is_the_answer(new_manager: Start, new_instance: Connect) -> None:
    manager = tiered(new_manager, delay_ms=2_000)
    instance = new_instance(manager)
    store(manager, instance, "a")
    ready(instance.scheduler.query(chain("a", 4)), 4)
    hashes = chain("a", PAGES)

    def answered(**options: Any) -> Any:
        query = instance.scheduler.query(hashes, deadline_ms=200, **options)
        wait_until(lambda: query.poll() != native.PENDING, "a query is answered")
        return query

    strict = answered(strict=True)
    assert (strict.poll(), strict.pages, strict.miss_reason) == (native.MISS, 0, "deadline")
    # Asked until the manager is on time: on a busy machine the client may give up before it answers.
    part = wait_until(lambda: (query := answered()).poll() == native.READY and query, "a part of it")
    assert part.pages in (4, PAGES), "all of it, once it is read"
    ready(answered(wait_full_prefix=True), PAGES)
    del part, strict
    manager.assert_drained()
