"""After a restart the files are used again, byte for byte, and not written once more (case A-48)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from scripted import PAGE_BYTES, Instance
from ssd import disk_bytes, leave_on_ssd, on_ssd, pages_of_tier, place_of, restored, save_each, ssd
from support.holds import SSD_WRITE
from support.manager import Manager
from support.wait import wait_until

CAPACITY = "16mib"
PREFIXES = [f"prefix-{index}" for index in range(100)]
WRITTEN, UNWRITTEN = PREFIXES[:70], PREFIXES[70:]


@pytest.mark.parametrize("torn", [False, True], ids=["stopped", "killed"])
def test_case_a48_what_was_written_is_used_after_a_restart(
    new_manager: Callable[..., Manager],
    new_instance: Callable[..., Instance],
    tmp_path: Path,
    torn: bool,
) -> None:
    directory = tmp_path / "ssd"
    manager = on_ssd(new_manager, directory, CAPACITY)
    instance = new_instance(manager)
    save_each(manager, instance, WRITTEN)
    if torn:
        manager.holds.hold(SSD_WRITE)
        for name in UNWRITTEN:
            instance.save(name, 1)
        pending = manager.status()["tier"]["write_queue_pending"]
        assert pending == len(UNWRITTEN), "control: it is killed in the middle of writing"
        manager.kill()
        # Of one page half was on its way when the machine went down with it.
        path, at = place_of(directory, WRITTEN[-1])
        with path.open("r+b") as file:
            file.seek(at + PAGE_BYTES // 2)
            file.write(bytes(PAGE_BYTES // 2))
    else:
        save_each(manager, instance, UNWRITTEN)
        assert manager.stop() == 0
    whole = WRITTEN[:-1] if torn else PREFIXES
    before = disk_bytes(directory)

    again = on_ssd(new_manager, directory, CAPACITY)
    assert again.counters()["found_pages"] == (len(WRITTEN) if torn else len(PREFIXES))
    other = new_instance(again)
    assert restored(other, PREFIXES) == whole
    assert ssd(again)["mismatches"] == (1 if torn else 0)
    status = again.status()["ssd"][0]
    assert (status["written_bytes"], again.counters()["written_pages"]) == (0, 0), "nothing is written again"
    # Saved again, they are known: only what was lost is written.
    for name in PREFIXES:
        other.save_what_fits(name, 1)
    lost = len(PREFIXES) - len(whole)
    wait_until(lambda: again.counters()["written_pages"] == lost, "what was lost is written")
    assert pages_of_tier(again) == len(PREFIXES)
    leave_on_ssd(again, other)
    assert restored(other, PREFIXES) == PREFIXES
    # No dead files: the directory has grown by what was lost at most.
    assert disk_bytes(directory) <= before + lost * 2 * PAGE_BYTES + (1 << 20)


def test_case_a48_control_without_its_files_nothing_is_found(
    new_manager: Callable[..., Manager], new_instance: Callable[..., Instance], tmp_path: Path
) -> None:
    manager = on_ssd(new_manager, tmp_path / "one", CAPACITY)
    save_each(manager, new_instance(manager), WRITTEN[:10])
    assert manager.stop() == 0
    again = on_ssd(new_manager, tmp_path / "other", CAPACITY)
    assert restored(new_instance(again), WRITTEN[:10]) == []
