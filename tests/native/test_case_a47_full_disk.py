"""A file system that is full before the cache's own limit is reached (case A-47). What a device that refuses
a write in the middle does is tested beside the thread of the directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mounts import mounted, seen_by
from scripted import Instance
from ssd import disk_bytes, leave_on_ssd, on_ssd, pages_of_tier, restored, save_each, ssd
from support.manager import Manager
from support.wait import wait_until

DISK_BYTES, CAPACITY = 6 << 20, "12mib"
OTHERS_BYTES = 3 << 20


def names(first: int, count: int) -> list[str]:
    return [f"page-{index}" for index in range(first, first + count)]


def test_case_a47_others_fill_the_disk(
    new_manager: Callable[..., Manager], new_instance: Callable[..., Instance], tmp_path: Path
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    wrapper = mounted("tmpfs", place, f"size={DISK_BYTES}")
    manager = on_ssd(new_manager, place / "ssd", CAPACITY, wrapper=wrapper)
    instance = new_instance(manager)
    disk = seen_by(manager.pid, place)
    save_each(manager, instance, names(0, 8))
    (disk / "others").write_bytes(bytes(OTHERS_BYTES))

    # Far more than there is room for: the oldest go, the newest are there, and nothing is an error.
    save_each(manager, instance, names(8, 120))
    status = ssd(manager)
    assert status["state"] == "serving", status
    assert status["evicted_pages"] > 0
    assert (status["write_errors"], manager.counters()["dropped_writes"]) == (0, 0)
    assert disk_bytes(disk / "ssd") <= DISK_BYTES - OTHERS_BYTES
    leave_on_ssd(manager, instance)
    assert restored(instance, names(120, 8)) == names(120, 8)
    assert restored(instance, names(0, 8)) == [], "control: there was not room for all"
    kept = pages_of_tier(manager)

    # Others take the rest, to the last byte: what is there can be read, and the rest is served from memory.
    rest = disk / "rest"
    try:
        with rest.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass
    save_each(manager, instance, names(200, 60))
    assert restored(instance, names(258, 2)) == names(258, 2)
    assert ssd(manager)["state"] in ("serving", "full")
    assert manager.is_running
    assert manager.get("/health")

    # With room again it grows again, by itself.
    rest.unlink()
    (disk / "others").unlink()
    wait_until(lambda: ssd(manager)["state"] == "serving", "it has seen that there is room")
    save_each(manager, instance, names(300, 80))
    wait_until(lambda: ssd(manager)["state"] == "serving", "it serves")
    assert disk_bytes(disk / "ssd") > DISK_BYTES - OTHERS_BYTES
    leave_on_ssd(manager, instance)
    assert restored(instance, names(372, 8)) == names(372, 8)
    assert pages_of_tier(manager) > kept
    manager.assert_drained()
