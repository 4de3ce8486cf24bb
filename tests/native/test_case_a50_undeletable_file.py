"""Segment files that cannot be deleted or written stop nobody but themselves (case A-50)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted import Instance
from ssd import (
    SEGMENT_PAGES,
    disk_bytes,
    leave_on_ssd,
    on_ssd,
    restored,
    save_each,
    segments,
    ssd,
)
from support.manager import Manager
from support.wait import wait_until

CAPACITY_BYTES = 4 << 20
# Five segments of the seven that there may be, and a little.
FITS = 5 * SEGMENT_PAGES + 2


@pytest.fixture
def protect(tmp_path: Path) -> Iterator[Callable[[Path, bool], None]]:
    """Protects a file from everybody, root too, or ends that."""
    protected: set[Path] = set()

    def change(path: Path, on: bool) -> None:
        done = subprocess.run(["chattr", "+i" if on else "-i", path], capture_output=True, text=True)
        if done.returncode != 0:
            # Root's, on some file systems. The log's own tests do it on a simulated one everywhere.
            pytest.skip(f"not tested: a file that nobody can delete: {done.stderr.strip()}")
        (protected.add if on else protected.discard)(path)

    yield change
    for path in list(protected):
        change(path, False)


def names(first: int, count: int) -> list[str]:
    return [f"page-{index}" for index in range(first, first + count)]


def test_case_a50_an_undeletable_file_is_passed_over(
    new_manager: Callable[..., Manager],
    new_instance: Callable[..., Instance],
    tmp_path: Path,
    protect: Callable[[Path, bool], None],
) -> None:
    directory = tmp_path / "ssd"
    manager = on_ssd(new_manager, directory, str(CAPACITY_BYTES))
    instance = new_instance(manager)
    save_each(manager, instance, names(0, FITS))
    oldest = segments(directory)[0]
    protect(oldest, True)
    content = oldest.read_bytes()

    # Twice round: it is passed over each time, counted and logged, and all else is as it was.
    save_each(manager, instance, names(1000, 2 * FITS))
    wait_until(lambda: ssd(manager)["barred_segments"] == 1, "it is counted")
    status = ssd(manager)
    assert (status["state"], manager.counters()["dropped_writes"]) == ("serving", 0), status
    assert 1 <= status["write_errors"] <= 5, "it is not tried again and again"
    assert f"{oldest.name}: permission denied" in manager.log()
    assert manager.metrics()["orbitkv_ssd_barred_segments"] == 1
    assert oldest.read_bytes() == content, "control: it was protected"
    assert disk_bytes(directory) <= CAPACITY_BYTES
    leave_on_ssd(manager, instance)
    newest = names(1000 + 2 * FITS - 20, 20)
    assert restored(instance, newest) == newest

    # All of them: nothing is written, nothing loops, and what is there can be read.
    for path in segments(directory):
        protect(path, True)
    save_each(manager, instance, names(5000, FITS))
    wait_until(lambda: ssd(manager)["state"] != "serving", "it has noticed")
    assert manager.is_running
    assert manager.get("/health")
    assert restored(instance, newest)
    last = names(5000 + FITS - 2, 2)
    assert restored(instance, last) == last, "from memory"
    manager.assert_drained()
    assert disk_bytes(directory) <= CAPACITY_BYTES
