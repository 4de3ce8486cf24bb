"""An engine of several cache groups goes on at a boundary with the pages of all of them, or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted import HASH_BYTES, LAYERS, POISON, Memory, chain, content
from support.manager import Manager
from support.wait import wait_until

from orbitkv import _native as native

Start = Callable[..., Manager]

RANKS = 2
TOKENS = 16
# Full attention, a window of 40 tokens (3 pages), and a state every 32 tokens that all ranks share.
FULL, WINDOW, STATE = 0, 3, 7
LAYER_BYTES = {FULL: 4_000, WINDOW: 7_000, STATE: 2_500}
PAGES = 8
# What 64 tokens take: group, first page, page after the last.
AT_64 = [(FULL, 0, 4), (WINDOW, 1, 4), (STATE, 1, 2)]


def groups() -> list[dict[str, Any]]:
    """The registration's list."""
    rules = {FULL: "prefix", WINDOW: "window:40", STATE: "checkpoint"}
    return [
        {
            "group": group,
            "page_bytes": LAYERS * LAYER_BYTES[group],
            "block_tokens": 2 * TOKENS if group == STATE else TOKENS,
            "shard_count": 1 if group == STATE else RANKS,
            "rule": rule,
        }
        for group, rule in rules.items()
    ]


class Hybrid:
    """Two ranks with memory of three cache groups each. Page `p` of a group lives in block `p`."""

    def __init__(self, manager: Manager, name: str) -> None:
        self.name = name
        self.hashes = chain(name, PAGES)
        registration = native.Registration(
            socket=str(manager.socket),
            engine="scripted",
            engine_version="1",
            model="hybrid",
            instance=os.urandom(16).hex(),
            namespace=hashlib.sha256(b"hybrid").hexdigest(),
            world_size=RANKS,
            groups=groups(),
        )
        self.scheduler = native.SchedulerClient(registration)
        self.memories = [{g: Memory(PAGES, size) for g, size in LAYER_BYTES.items()} for _ in range(RANKS)]
        self._scratches = [Memory(2, LAYER_BYTES[FULL]) for _ in range(RANKS)]
        self.workers = [
            native.WorkerClient(
                registration,
                rank=rank,
                layout=memories[FULL].layout,
                more_layouts={g: memories[g].layout for g in (WINDOW, STATE)},
                scratch=self._scratches[rank].layout,
                layout_probe_passed=True,
                verify_restore="all",
            )
            for rank, memories in enumerate(self.memories)
        ]
        wait_until(lambda: self.scheduler.active, f"the instance is active: {self.scheduler.status}")

    def close(self) -> None:
        """Ends all sessions."""
        for worker in self.workers:
            worker.close()
        self.scheduler.close()

    def hash(self, group: int, page: int) -> bytes:
        """A page has the hash of its last block."""
        at = 2 * page + 1 if group == STATE else page
        return self.hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES]

    def payload(self, group: int, page: int, rank: int) -> bytes:
        """A state is the same on all ranks."""
        rank = 0 if group == STATE else rank
        return content(f"{self.name}/{group}", page, rank, LAYERS * LAYER_BYTES[group])

    def save(self, group: int, pages: list[int]) -> None:
        """Computes and saves pages of a group, each in a reservation of its own."""
        for page in pages:
            for rank, memories in enumerate(self.memories):
                memories[group].write(page, self.payload(group, page, rank))

            def granted(page: int = page) -> Any:
                reservation = self.scheduler.reserve(
                    self.hash(group, page), parent=None, first_depth=0, group=group
                )
                wait_until(reservation.poll, "a reservation is answered")
                return reservation if reservation.statuses() == [native.GRANT_SLOTS] else None

            ticket = wait_until(granted, f"room for page {page} of group {group}").ticket([0])
            saves = [worker.save(ticket, [page]) for worker in self.workers]
            # Of a page of one shard only the first rank writes.
            writers = saves[:1] if group == STATE else saves
            wait_until(lambda w=writers: all(save.committed() == 1 for save in w), "a page is committed")

    def save_all(self) -> None:
        """All that 128 tokens leave behind."""
        self.save(FULL, list(range(PAGES)))
        self.save(WINDOW, list(range(PAGES)))
        self.save(STATE, list(range(PAGES // 2)))

    def candidates(self, start_tokens: int = 0, pages: int = PAGES) -> list[int]:
        """Where a recovery could end."""
        found = self.scheduler.candidates(start_tokens, self.hashes[: pages * HASH_BYTES])
        boundaries = found.wait(5_000_000)
        assert boundaries is not None
        assert found.poll() == boundaries
        return boundaries

    def poison(self) -> None:
        """Nothing of the sequence is left in the engine."""
        for memories in self.memories:
            for memory in memories.values():
                memory.poison()

    def restore(self, query: Any) -> list[int]:
        """Restores a recovery into the blocks of its pages; blocks that failed."""
        blocks = [page for _, first, end in query.sections for page in range(first, end)]
        ticket = query.restore(0, query.pages)
        query.release()
        loads = [worker.restore(ticket, blocks) for worker in self.workers]
        wait_until(lambda: all(load.poll() for load in loads), "the restores have ended")
        return [block for load in loads for block in load.failed_blocks()]

    def wrong(self, ranges: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Pages (rank, group, page) whose block is not as it must be: restored in the ranges, else poison."""
        wanted = {(group, page) for group, first, end in ranges for page in range(first, end)}
        wrong = []
        for rank, memories in enumerate(self.memories):
            for group, memory in memories.items():
                for page in range(PAGES):
                    poison = bytes([POISON]) * (LAYERS * LAYER_BYTES[group])
                    want = self.payload(group, page, rank) if (group, page) in wanted else poison
                    if memory.read(page) != want:
                        wrong.append((rank, group, page))
        return wrong


@pytest.fixture
def manager(new_manager: Start) -> Manager:
    """With a slower tier, and room for the segments of five classes."""
    tier = ("--memory-tier-size", "64mib", "--memory-tier-delay-ms", "30")
    return new_manager(pool_size="24mib", segment_size="2mib", flags=tier)


@pytest.fixture
def hybrid(manager: Manager) -> Iterator[Hybrid]:
    """One engine."""
    instance = Hybrid(manager, "a")
    yield instance
    instance.close()


def answered(query: Any) -> Any:
    wait_until(lambda: query.poll() != native.PENDING, "a query is answered")
    return query


def test_a_boundary_is_restored_from_memory_and_from_the_tier(manager: Manager, hybrid: Hybrid) -> None:
    hybrid.save_all()
    assert hybrid.candidates() == [32, 64, 96, 128]
    assert hybrid.candidates(64) == [96, 128]
    demand = hybrid.scheduler.recovery(0, 64, hybrid.hashes)
    assert demand.ranges == AT_64
    for tier in ("ram", "tier"):
        hybrid.poison()
        assert len(hybrid.wrong(AT_64)) == RANKS * 8, "control: poison before the restore"
        before = manager.counters()
        query = answered(hybrid.scheduler.read_recovery(demand))
        assert (query.poll(), query.pages, query.sections) == (native.READY, 8, AT_64), query.miss_reason
        assert hybrid.restore(query) == []
        assert hybrid.wrong(AT_64) == [], "what the boundary needs, and no other block"
        assert manager.counters()[f"{tier}_pages"] == before[f"{tier}_pages"] + 8
        manager.assert_drained()
        wait_until(lambda: manager.status()["tier"]["pages"] == 20, "all pages are in the tier")
        manager.drop_memory()


def test_the_engine_is_asked_only_for_what_it_does_not_hold(hybrid: Hybrid) -> None:
    hybrid.save_all()
    demand = hybrid.scheduler.recovery(32, 128, hybrid.hashes)
    wanted = [(FULL, 2, 8), (WINDOW, 5, 8), (STATE, 3, 4)]
    assert demand.ranges == wanted
    hybrid.poison()
    query = answered(hybrid.scheduler.read_recovery(demand))
    assert hybrid.restore(query) == []
    assert hybrid.wrong(wanted) == []


@pytest.mark.parametrize(("group", "page"), [(FULL, 0), (WINDOW, 2), (STATE, 1)])
def test_a_group_that_lacks_a_page_leaves_no_lease(
    manager: Manager, hybrid: Hybrid, group: int, page: int
) -> None:
    every = {FULL: range(4), WINDOW: range(4), STATE: range(2)}
    for other, pages in every.items():
        hybrid.save(other, [p for p in pages if (other, p) != (group, page)])
    demand = hybrid.scheduler.recovery(0, 64, hybrid.hashes)
    assert 64 not in hybrid.candidates()
    query = answered(hybrid.scheduler.read_recovery(demand))
    assert (query.poll(), query.miss_reason, query.sections) == (native.MISS, "absent", [])
    assert manager.status()["query"]["reserved_bytes"] == 0
    hybrid.save(group, [page])
    assert 64 in hybrid.candidates()
    query = answered(hybrid.scheduler.read_recovery(demand))
    assert query.sections == AT_64, "control: that page was all that was missing"
    query.release()
    manager.assert_drained()


def test_a_prepared_recovery_is_claimed_and_read_once(manager: Manager, hybrid: Hybrid) -> None:
    hybrid.save_all()
    wait_until(lambda: manager.status()["tier"]["pages"] == 20, "all pages are in the tier")
    manager.drop_memory()
    hybrid.poison()
    before = manager.counters()
    preparation = hybrid.scheduler.prepare_recovery(0, 64, hybrid.hashes)
    wait_until(lambda: preparation.poll() != native.PENDING, "a preparation is answered")
    assert (preparation.poll(), preparation.pages) == (native.PREPARED, 8), preparation.miss_reason
    assert manager.counters()["queries"] == before["queries"], "nobody has looked anything up"
    # The same hashes with another demand get nothing of it: they read for themselves, under another name.
    other = answered(hybrid.scheduler.query(hybrid.hashes[: 4 * HASH_BYTES], group=FULL))
    assert other.sections == [(FULL, 0, 4)]
    other.release()
    query = answered(preparation.claim())
    assert query.sections == AT_64
    assert hybrid.restore(query) == []
    assert hybrid.wrong(AT_64) == []
    after = manager.counters()
    assert (after["claims"], after["read_pages"] - before["read_pages"]) == (1, 8)
    manager.assert_drained()


def test_what_the_contract_does_not_allow_names_the_rule(manager: Manager, hybrid: Hybrid) -> None:
    hybrid.save_all()
    scheduler, hashes = hybrid.scheduler, hybrid.hashes
    with pytest.raises(native.OrbitKVError, match="past the 128 tokens that the 8 hashes cover"):
        scheduler.recovery(0, 160, hashes)
    with pytest.raises(native.OrbitKVError, match="end 48 is no boundary; boundaries are multiples of 32"):
        scheduler.prepare_recovery(0, 48, hashes)
    with pytest.raises(native.OrbitKVError, match="from token 64 to 64 is empty"):
        scheduler.recovery(64, 64, hashes)
    bad = {
        "names cache group 3 twice": [*AT_64, (WINDOW, 0, 2)],
        "cache group 7: the demand names pages none; the contract takes 1 to 2": AT_64[:2],
        "cache group 3: the demand names pages 0 to 4; the contract takes 1 to 4": [
            AT_64[0],
            (WINDOW, 0, 4),
            AT_64[2],
        ],
    }
    for text, ranges in bad.items():
        demand = native.RecoveryDemand(start_tokens=0, end_tokens=64, hashes=hashes, ranges=ranges)
        query = answered(scheduler.read_recovery(demand))
        assert (query.poll(), query.miss_reason) == (native.MISS, "refused")
        assert text in scheduler.status
    assert manager.status()["query"]["reserved_bytes"] == 0
    query = answered(scheduler.read_recovery(scheduler.recovery(0, 64, hashes)))
    with pytest.raises(native.OrbitKVError, match="0 and 8, all pages of the recovery"):
        query.restore(0, 4)
    query.release()


def test_a_registration_that_contradicts_itself_is_refused(manager: Manager) -> None:
    def register(change: dict[str, Any], **more: int) -> None:
        first, *rest = groups()
        native.Registration(
            socket=str(manager.socket),
            engine="scripted",
            engine_version="1",
            model="hybrid",
            instance="a" * 32,
            namespace="b" * 64,
            world_size=RANKS,
            groups=[first | change, *rest],
            **more,
        )

    register({})
    with pytest.raises(native.OrbitKVError, match='recovery rule is "last:3"'):
        register({"rule": "last:3"})
    with pytest.raises(native.OrbitKVError, match="hashes of 24 tokens do not divide"):
        register({}, hash_tokens=24)
    with pytest.raises(native.OrbitKVError, match="end together only every"):
        register({"block_tokens": 999_983}, hash_tokens=1)


def test_without_a_manager_there_is_nothing_to_recover(manager: Manager, hybrid: Hybrid) -> None:
    hybrid.save_all()
    demand = hybrid.scheduler.recovery(0, 64, hybrid.hashes)
    manager.kill()
    wait_until(lambda: not hybrid.scheduler.connected, "the connection is gone")
    assert hybrid.scheduler.candidates(0, hybrid.hashes).poll() == []
    query = hybrid.scheduler.read_recovery(demand)
    assert (query.poll(), query.miss_reason) == (native.MISS, "disconnected")


def test_ranks_that_look_up_by_themselves_agree_on_what_all_have() -> None:
    assert native.common_boundaries([[32, 64, 128], [64, 96, 128], [64, 128]]) == [64, 128]
    assert native.common_boundaries([[32, 64], []]) == []
    assert native.common_boundaries([]) == []
