"""Bytes that change in the pool: which of them a restore finds, as `verify_restore` says, and what the check
of memory finds by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted import Instance, content
from support.manager import Manager
from support.pool import flip_byte
from support.wait import wait_until

Connect = Callable[..., Instance]
PAGES = 12
# Of twelve restored pages, how many are compared.
COMPARED = {"all": 12, "sample:4": 3, "off": 0}


def verifying(manager: Manager) -> dict[str, float]:
    """Connected workers by mode."""
    names = {mode: f'orbitkv_restore_verification_info{{mode="{mode}"}}' for mode in ("all", "off", "sample")}
    metrics = manager.metrics()
    return {mode: metrics[name] for mode, name in names.items()}


@pytest.mark.parametrize("mode", COMPARED)
def test_a_restore_finds_as_many_changed_pages_as_its_mode_compares(
    manager: Manager, new_instance: Connect, mode: str
) -> None:
    instance = new_instance(manager, verify_restore=mode)
    instance.save("a", PAGES)
    instance.save("b", PAGES)
    for index in range(PAGES):
        flip_byte(manager.pid, content("a", index), at=index)
    instance.memories[0].poison()
    failed = instance.restore(instance.query("a", PAGES), PAGES)
    assert len(failed) == COMPARED[mode]
    assert instance.differing("a", PAGES) == list(range(PAGES)), "every page was changed"
    assert manager.counters()["bad_pages"] == COMPARED[mode]
    # Control: what is as it was saved fails in no mode.
    assert instance.restore(instance.query("b", PAGES), PAGES) == []
    assert instance.differing("b", PAGES) == []
    manager.assert_drained()


@pytest.mark.parametrize("mode", COMPARED)
def test_the_mode_is_in_status_and_metrics(manager: Manager, new_instance: Connect, mode: str) -> None:
    assert verifying(manager) == {"all": 0, "off": 0, "sample": 0}
    new_instance(manager, verify_restore=mode, world_size=2)
    assert verifying(manager) == {"all": 0, "off": 0, "sample": 0} | {mode.partition(":")[0]: 2}
    assert [row["verify_restore"] for row in manager.status()["instances"]] == [[mode]]


def test_the_check_of_memory_finds_what_no_restore_compares(
    new_manager: Callable[..., Manager], new_instance: Connect
) -> None:
    manager = new_manager(pool_size="16mib", segment_size="2mib", flags=("--scrub-rate", "1gib/s"))
    instance = new_instance(manager, verify_restore="off")
    instance.save("a", PAGES)

    def scrub() -> dict[str, int]:
        return manager.status()["scrub"]

    passes = scrub()["passes"]
    wait_until(lambda: scrub()["passes"] >= passes + 2, "memory is gone through")
    assert scrub()["bad_pages"] == 0, "control: nothing has changed yet"
    assert instance.found("a", PAGES) == PAGES
    flip_byte(manager.pid, content("a", 7), at=100)
    wait_until(lambda: scrub()["bad_pages"] == 1, "the changed page is found")
    assert instance.found("a", PAGES) == 7, "it is a miss"
    assert "has changed since it was saved" in manager.log()
    # A good copy takes its place.
    instance.save_what_fits("a", PAGES)
    instance.memories[0].poison()
    assert instance.restore(instance.query("a", PAGES), PAGES) == []
    assert instance.differing("a", PAGES) == []
    assert scrub()["bad_pages"] == 1
    manager.assert_drained()


def test_shards_of_a_page_are_checked_one_by_one(
    new_manager: Callable[..., Manager], new_instance: Connect
) -> None:
    manager = new_manager(pool_size="16mib", segment_size="2mib", flags=("--scrub-rate", "1gib/s"))
    instance = new_instance(manager, verify_restore="off", world_size=2)
    instance.save("a", PAGES)
    flip_byte(manager.pid, content("a", 3, 1), at=5)
    wait_until(lambda: manager.status()["scrub"]["bad_pages"] == 1, "the changed shard is found")
    assert instance.found("a", PAGES) == 3
    manager.assert_drained()
