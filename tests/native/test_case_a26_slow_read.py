"""Whatever protects pages runs out while they are still being read or copied, and somebody needs the room:
foreign bytes are never taken for them (case A-26). No checksum is compared on the way to the engine here."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from scripted import Instance, chain
from support.holds import COPY_RESTORE, Holds
from support.manager import Manager, slow_tier
from support.wait import wait_until
from tiered import PAGES, SLOT_BYTES, ask, prepare, prepared, ready

from orbitkv import _native as native

Connect = Callable[..., Instance]
POOL_PAGES = 64
# A read takes longer than a preparation lives that nobody keeps (1 s), and far longer than `DEADLINE_MS`.
DELAY_MS, DEADLINE_MS = 2000, 200
# What the hungry one saves: more than the pool takes, all in the tier beforehand. A page that is still being
# written there could not be evicted, and the hungry one would starve.
CHAINS, CHAIN_PAGES = 10, 8


class Hungry:
    """Another client of the namespace. It saves its chains over and over, and so evicts all that may be."""

    def __init__(self, manager: Manager, instance: Instance) -> None:
        self._manager, self._instance = manager, instance
        self._chains = itertools.cycle(range(CHAINS))

    def save(self) -> None:
        """Takes room for a few pages, if there is any."""
        self._instance.save_what_fits(f"hungry-{next(self._chains)}", CHAIN_PAGES)

    def press(self, until: Callable[[], bool], what: str) -> None:
        """Takes the room of all that may be evicted, and goes on until then."""
        before = self._manager.counters()["evicted_pages"]
        wait_until(until, what, meanwhile=self.save)
        wait_until(
            lambda: self._manager.counters()["evicted_pages"] - before > 2 * POOL_PAGES,
            "the pool was evicted twice over",
            meanwhile=self.save,
        )


@pytest.fixture
def manager(new_manager: Callable[..., Manager]) -> Manager:
    size = {"pool_size": str(POOL_PAGES * SLOT_BYTES), "segment_size": str(8 * SLOT_BYTES)}
    return new_manager(**size, flags=slow_tier(DELAY_MS, size="64mib"))


@pytest.fixture
def instance(manager: Manager, new_instance: Connect) -> Instance:
    return new_instance(manager, verify_restore="off")


@pytest.fixture
def hungry(manager: Manager, instance: Instance, new_instance: Connect) -> Hungry:
    """Everything is in the tier alone: the chain `a` and those of the hungry one."""
    other = new_instance(manager)
    wanted = PAGES + CHAINS * CHAIN_PAGES
    names = [("a", PAGES), *((f"hungry-{index}", CHAIN_PAGES) for index in range(CHAINS))]
    for name, pages in names:
        wait_until(lambda: manager.status()["tier"]["write_queue_pending"] < 32, "writes have ended")
        (instance if name == "a" else other).save(name, pages)
    wait_until(lambda: manager.status()["tier"]["pages"] == wanted, "all of it is in the tier")
    manager.drop_memory()
    for memory in instance.memories:
        memory.poison()
    return Hungry(manager, other)


def reads_pending(manager: Manager) -> int:
    return manager.status()["tier"]["read_queue_pending"]


def by_query(instance: Instance) -> Any:
    return ask(instance, "a")


def by_claim_of_what_is_held(instance: Instance) -> Any:
    preparation = prepare(instance, "a")
    prepared(preparation)
    return preparation.claim()


def by_claim_of_what_is_being_read(instance: Instance) -> Any:
    return prepare(instance, "a").claim(deadline_ms=30_000)


@pytest.mark.parametrize("ask_for", [by_query, by_claim_of_what_is_held, by_claim_of_what_is_being_read])
def test_case_a26_a_slow_copy_keeps_its_pages(
    manager: Manager, instance: Instance, hungry: Hungry, holds: Holds, ask_for: Callable[[Instance], Any]
) -> None:
    claims = 0 if ask_for is by_query else 1
    query = ask_for(instance)
    ready(query)
    with holds.held(COPY_RESTORE):
        ticket = query.restore(0, PAGES)
        query.release()
        load = instance.workers[0].restore(ticket, list(range(PAGES)))
        holds.wait_reached(COPY_RESTORE)
        until = time.monotonic() + DELAY_MS / 1000
        hungry.press(lambda: time.monotonic() > until, "longer than a preparation lives")
        assert not load.poll(), "control: the copy has not begun"
    wait_until(load.poll, "the copy has ended")
    assert load.failed_blocks() == []
    assert instance.differing("a", PAGES) == []
    assert manager.counters()["claims"] == claims
    manager.assert_drained()

    # Control: nothing but the copy was in the way of the hungry one.
    hungry.press(lambda: True, "at once")
    part = ask(instance, "a", deadline_ms=DEADLINE_MS)
    wait_until(lambda: part.poll() != native.PENDING, "it is answered")
    assert part.pages == 0


def let_its_deadline_pass(instance: Instance) -> None:
    query = ask(instance, "a", deadline_ms=DEADLINE_MS)
    wait_until(lambda: query.poll() != native.PENDING, "its deadline has passed")
    assert query.pages == 0


def release_it(instance: Instance) -> None:
    ask(instance, "a").release()


def let_a_preparation_expire(instance: Instance) -> None:
    preparation = prepare(instance, "a")
    # Looks without a poll: a poll would keep it.
    wait_until(lambda: preparation.miss_reason == "expired", "nobody has kept it")


def let_a_claim_miss_its_deadline(instance: Instance) -> None:
    query = prepare(instance, "a").claim(deadline_ms=DEADLINE_MS)
    wait_until(lambda: query.poll() != native.PENDING, "its deadline has passed")
    assert query.pages == 0


def warm_it_up(instance: Instance) -> None:
    assert instance.scheduler.warm_up(chain("a", PAGES))


@pytest.mark.parametrize(
    "lose_interest",
    [let_its_deadline_pass, release_it, let_a_preparation_expire, let_a_claim_miss_its_deadline, warm_it_up],
)
def test_case_a26_a_slow_read_keeps_its_slots(
    manager: Manager, instance: Instance, hungry: Hungry, lose_interest: Callable[[Instance], None]
) -> None:
    lose_interest(instance)
    wait_until(lambda: reads_pending(manager) == PAGES, "control: the reads have not ended")

    def reads_have_ended() -> bool:
        status = manager.status()
        pending = status["tier"]["read_queue_pending"]
        assert status["query"]["reserved_bytes"] >= pending * SLOT_BYTES, "given back while it is read"
        return pending == 0

    hungry.press(reads_have_ended, "the late reads have ended")
    assert manager.counters()["read_pages"] == PAGES
    manager.assert_drained()
    # Whatever is found now, in memory or by another read, is what was saved.
    query = ask(instance, "a", deadline_ms=30_000)
    ready(query)
    assert instance.restore(query, PAGES) == []
    assert instance.differing("a", PAGES) == []
    assert manager.counters()["failed_reads"] == 0
    manager.assert_drained()
