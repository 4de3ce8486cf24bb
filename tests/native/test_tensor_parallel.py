"""Two workers with a shard each: a page is there when both shards are."""

from __future__ import annotations

from collections.abc import Callable

from scripted import Instance
from support.manager import Manager
from support.wait import wait_until

from orbitkv import _native as native

Connect = Callable[..., Instance]
PAGES = 6


def test_each_rank_gets_its_own_shard_back(manager: Manager, new_instance: Connect) -> None:
    instance = new_instance(manager, world_size=2)
    instance.save("a", PAGES)
    for memory in instance.memories:
        memory.poison()
    assert instance.restore(instance.query("a", PAGES), PAGES) == []
    assert instance.differing("a", PAGES) == []
    first, second = instance.memories
    assert all(first.read(block) != second.read(block) for block in range(PAGES))
    manager.assert_drained()


def test_page_is_visible_only_when_both_shards_are_sealed(manager: Manager, new_instance: Connect) -> None:
    instance = new_instance(manager, world_size=2)
    instance.write("a", PAGES)
    reservation = instance.reserve_all("a", PAGES)
    blocks = list(range(PAGES))
    ticket = reservation.ticket(blocks)
    saves = [instance.workers[0].save(ticket, blocks)]
    wait_until(lambda: saves[0].committed() == PAGES, "the shard of rank 0 is committed")
    wait_until(lambda: inflight_pages(manager, PAGES), "the manager has taken it in")
    assert instance.found("a", PAGES) == 0
    assert manager.status()["pool"]["pages"] == 0
    saves.append(instance.workers[1].save(ticket, blocks))
    wait_until(lambda: instance.found("a", PAGES) == PAGES, "both shards are sealed")
    for memory in instance.memories:
        memory.poison()
    assert instance.restore(instance.query("a", PAGES), PAGES) == []
    assert instance.differing("a", PAGES) == []
    manager.assert_drained()


def test_a_lost_rank_ends_the_cache_until_it_is_back(manager: Manager, new_instance: Connect) -> None:
    instance = new_instance(manager, world_size=2)
    instance.save("a", PAGES)
    instance.workers[1].close()
    wait_until(lambda: not instance.scheduler.active, "the scheduler knows that a rank is gone")
    query = instance.query("a", PAGES)
    assert (query.poll(), query.pages) == (native.MISS, 0)
    assert native.GRANT_SLOTS not in instance.reserve("b", 1).statuses()
    manager.assert_drained()


def test_pool_without_a_segment_for_each_rank_says_what_to_set(new_manager: Callable[..., Manager]) -> None:
    manager = new_manager(pool_size="2mib", segment_size="2mib")
    instance = Instance(manager.socket, world_size=2)
    try:
        workers = instance.workers
        wait_until(lambda: all(w.self_test != "pending" for w in workers), "the self-tests have ended")
        passed, failed = sorted((worker.self_test for worker in workers), key=len)
        assert passed == "passed"
        assert "each rank needs a segment" in failed
        assert "--pool-size" in failed
        assert not instance.scheduler.active
    finally:
        instance.close()


def inflight_pages(manager: Manager, pages: int) -> bool:
    """One of two shards of each page is still out."""
    status = manager.status()
    slot_bytes = status["pool"]["used_bytes"] / (2 * pages)
    return status["save"]["inflight_bytes"] == pages * slot_bytes
