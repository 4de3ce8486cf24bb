"""Bytes that are saved come back, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted import PAGE_BYTES, POISON, Instance, content
from support.holds import RESTORE_FAULT, Holds
from support.manager import Manager
from support.pool import flip_byte

from orbitkv import _native as native

Connect = Callable[..., Instance]
PAGES = 12


def poison_of(instance: Instance, blocks: range) -> list[bool]:
    return [instance.memories[0].read(block) == bytes([POISON]) * PAGE_BYTES for block in blocks]


def test_saved_pages_come_back_byte_for_byte(manager: Manager, new_instance: Connect) -> None:
    instance = new_instance(manager)
    instance.save("a", PAGES)
    instance.memories[0].poison()
    query = instance.query("a", PAGES + 4)
    assert (query.poll(), query.pages) == (native.READY, PAGES)
    assert instance.restore(query, PAGES, first_block=2) == []
    assert instance.differing("a", PAGES, first_block=2) == []
    # Nothing beside the destination was touched.
    assert all(poison_of(instance, range(2))), "blocks before"
    assert all(poison_of(instance, range(2 + PAGES, 32))), "blocks behind"
    manager.assert_drained()


@pytest.mark.parametrize("fault", ["skip", "zero"])
def test_control_a_restore_that_copies_nothing_is_seen(
    manager: Manager, new_instance: Connect, holds: Holds, fault: str
) -> None:
    instance = new_instance(manager)
    instance.save("a", PAGES)
    instance.memories[0].poison()
    with holds.switched(RESTORE_FAULT, fault):
        instance.restore(instance.query("a", PAGES), PAGES)
    assert instance.differing("a", PAGES) == list(range(PAGES))
    manager.assert_drained()


def test_another_instance_of_the_namespace_restores(manager: Manager, new_instance: Connect) -> None:
    new_instance(manager).save("a", PAGES)
    other = new_instance(manager)
    assert other.restore(other.query("a", PAGES), PAGES) == []
    assert other.differing("a", PAGES) == []
    # Control: of another namespace it finds nothing.
    stranger = new_instance(manager, namespace="another")
    query = stranger.query("a", PAGES)
    assert (query.poll(), query.pages, query.miss_reason) == (native.MISS, 0, "absent")
    manager.assert_drained()


def test_part_of_a_lease_is_restored(manager: Manager, new_instance: Connect) -> None:
    instance = new_instance(manager)
    instance.save("a", PAGES)
    instance.memories[0].poison()
    query = instance.query("a", PAGES)
    before = manager.counters()["restored_pages"]
    ticket = query.restore(5, 3)
    load = instance.workers[0].restore(ticket, [20, 9, 14])
    query.release()
    assert load.wait(10_000)
    assert load.failed_blocks() == []
    assert manager.counters()["restored_pages"] - before == instance.workers[0].stats()["restored_pages"] == 3
    memory = instance.memories[0]
    assert [memory.read(block) for block in (20, 9, 14)] == [content("a", index) for index in (5, 6, 7)]
    untouched = [block for block in range(32) if block not in (20, 9, 14)]
    assert all(memory.read(block) == bytes([POISON]) * PAGE_BYTES for block in untouched)
    manager.assert_drained()


def test_a_flipped_bit_in_the_pool_fails_its_page(manager: Manager, new_instance: Connect) -> None:
    instance = new_instance(manager, verify_restore="all")
    instance.save("a", PAGES)
    flip_byte(manager.pid, content("a", 7), at=PAGE_BYTES - 1, mask=0x80)
    instance.memories[0].poison()
    assert instance.restore(instance.query("a", PAGES), PAGES) == [7]
    # The others landed, and whatever is in block 7 was reported.
    assert instance.differing("a", PAGES) == [7]
    assert manager.counters()["bad_pages"] == 1
    manager.assert_drained()
    # It is never served again; a good copy takes its place.
    assert instance.found("a", PAGES) == 7
    instance.write("a", PAGES)
    assert instance.save_what_fits("a", PAGES)[7] == native.GRANT_SLOTS
    assert instance.restore(instance.query("a", PAGES), PAGES, first_block=16) == []
    assert instance.differing("a", PAGES, first_block=16) == []


def test_control_unverified_the_flipped_bit_comes_through(manager: Manager, new_instance: Connect) -> None:
    instance = new_instance(manager, verify_restore="off")
    instance.save("a", PAGES)
    flip_byte(manager.pid, content("a", 7), at=PAGE_BYTES - 1, mask=0x80)
    assert instance.restore(instance.query("a", PAGES), PAGES) == []
    assert instance.differing("a", PAGES) == [7]


def test_a_page_is_found_only_after_its_commit(manager: Manager, new_instance: Connect, holds: Holds) -> None:
    instance = new_instance(manager)
    with holds.held("commit"):
        instance.begin_save("a", PAGES)
        holds.wait_reached("commit", PAGES)
        assert instance.found("a", PAGES) == 0
        assert manager.status()["save"]["inflight_bytes"] > 0
    manager.wait_saved()
    assert instance.found("a", PAGES) == PAGES
    manager.assert_drained()
