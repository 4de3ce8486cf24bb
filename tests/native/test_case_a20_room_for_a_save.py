"""Case A-20: making room for the tail of a chain must not take its head."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted import LAYERS, Instance
from support.manager import Manager
from support.wait import wait_until

from orbitkv import _native as native

Connect = Callable[..., Instance]
HEADER_BYTES = 4096  # in front of each page in the pool
SMALLEST_POOL_BYTES = 1 << 20


def pool_of(
    new_manager: Callable[..., Manager], new_instance: Connect, pages: int
) -> tuple[Manager, Instance]:
    """A pool with room for so many pages and no more, and an instance that uses it."""
    slot_bytes = -(-SMALLEST_POOL_BYTES // pages // HEADER_BYTES) * HEADER_BYTES
    size = str(pages * slot_bytes)
    manager = new_manager(pool_size=size, flags=("--query-budget", size))
    return manager, new_instance(manager, layer_bytes=(slot_bytes - HEADER_BYTES) // LAYERS)


def fill_with_strangers(instance: Instance, manager: Manager, pages: int) -> None:
    """Single pages of other prefixes until the pool holds `pages`."""
    names = iter(range(1000))

    def full() -> bool:
        if manager.status()["pool"]["pages"] < pages:
            instance.save_what_fits(f"stranger-{next(names)}", 1)
        return manager.status()["pool"]["pages"] >= pages

    wait_until(full, f"the pool holds {pages} pages")


@pytest.mark.parametrize("pool_pages", [4, 3, 2])
def test_case_a20_save_in_one_call_keeps_its_own_head(
    new_manager: Callable[..., Manager], new_instance: Connect, pool_pages: int
) -> None:
    """P1 is stored and the coldest page of a full pool. P1 to P4 are saved in one call."""
    manager, instance = pool_of(new_manager, new_instance, pool_pages)
    instance.save("p", 1)
    fill_with_strangers(instance, manager, pool_pages)
    assert manager.status()["pool"]["pages"] == pool_pages
    assert instance.found("p", 1) == 1
    fill_with_strangers(instance, manager, pool_pages)

    statuses = instance.save_what_fits("p", 4)
    assert statuses[0] == native.GRANT_EXISTS
    saved = statuses.count(native.GRANT_SLOTS)
    # Cut at the tail, never a hole: what was granted is the front, and all of it is found.
    assert native.GRANT_SLOTS not in statuses[1 + saved :]
    assert instance.found("p", 4) == 1 + saved
    manager.assert_drained()


def test_case_a20_chain_longer_than_the_pool_grows_to_it_and_keeps_its_head(
    new_manager: Callable[..., Manager], new_instance: Connect
) -> None:
    """A request that goes on saving, call by call, as an engine does."""
    manager, instance = pool_of(new_manager, new_instance, 4)
    found = 0
    for _ in range(20):
        instance.save_what_fits("p", 8, found)
        now = instance.found("p", 8)
        assert now >= found, f"{found} pages were found before, now {now}"
        found = now
        assert manager.status()["pool"]["pages"] >= found
    assert found == 4
    # Control: the pool is not frozen by it, another prefix still finds room.
    fill = instance.save_what_fits("q", 1)
    assert fill == [native.GRANT_SLOTS]
    # The tail made the room, not the head.
    assert instance.found("p", 8) == 3
    manager.assert_drained()


def test_case_a20_head_stays_while_the_middle_is_still_being_saved(
    new_manager: Callable[..., Manager], new_instance: Connect
) -> None:
    """The pages between are granted and not yet sealed, so the head looks like a leaf."""
    manager, instance = pool_of(new_manager, new_instance, 8)
    wait_until(lambda: instance.save_what_fits("p", 3) and instance.found("p", 3) == 3, "the head is stored")
    instance.save_what_fits("p", 5, 3)
    assert instance.found("p", 5) == 5
    instance.write("p", 8)
    middle = instance.reserve("p", 8, 5)
    assert middle.statuses() == [native.GRANT_SLOTS] * 3
    # The pool is full: all of it is this chain.
    assert instance.save_what_fits("p", 9, 8) == [native.GRANT_REFUSED]
    assert instance.found("p", 8) == 5
    save = instance.workers[0].save(middle.ticket([0, 1, 2]), [5, 6, 7])
    wait_until(lambda: save.committed() == 3, "the middle is saved")
    wait_until(lambda: instance.found("p", 9) == 8, "the chain has no hole")
    # Control: another chain may take the tail.
    wait_until(lambda: instance.save_what_fits("q", 1) == [native.GRANT_SLOTS], "room for another chain")
    wait_until(lambda: instance.found("p", 9) == 7, "the tail made the room")
    manager.assert_drained()
