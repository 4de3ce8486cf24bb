"""A cache directory behind a manager's pool, seen from outside."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from scripted import PAGE_BYTES, Instance, content
from support.manager import Manager
from support.wait import wait_until

Start = Callable[..., Manager]
BLOCK = 4096
# Header, payload and padding of a page on the disk.
STORED_BYTES = BLOCK + -(-PAGE_BYTES // BLOCK) * BLOCK
SEGMENT_BYTES = 512 << 10
# Head, footer and trailer are one block each.
SEGMENT_PAGES = (SEGMENT_BYTES - 3 * BLOCK) // STORED_BYTES
# With it, what this host cannot do is passed over.
ALLOW_SKIPS = "ORBITKV_TEST_ALLOW_SKIPS"
MOUNTS = ("unshare", "--map-root-user", "--mount")


def cannot(what: str) -> None:
    """A test that cannot be made here: fails, unless whoever runs it has agreed."""
    if ALLOW_SKIPS in os.environ:
        pytest.skip(f"not tested: {what}")
    pytest.fail(f"this host cannot test {what}; with {ALLOW_SKIPS}=1 that is passed over")


def ssd_flags(directory: Path, capacity: str, segment_bytes: int = SEGMENT_BYTES) -> tuple[str, ...]:
    """Flags of a cache directory with small segments, on a file system that may become full."""
    flags = {"path": directory, "capacity": capacity}
    words = [word for name, value in flags.items() for word in (f"--ssd-cache-{name}", str(value))]
    return (*words, "--ssd-min-free", "0", "--ssd-segment-size", str(segment_bytes))


def on_ssd(new_manager: Start, directory: Path, capacity: str, **options: Any) -> Manager:
    """A manager with that cache directory, which has found all that is in it."""
    manager = new_manager(
        pool_size="16mib", segment_size="2mib", flags=ssd_flags(directory, capacity), **options
    )
    wait_found(manager)
    return manager


def ssd(manager: Manager) -> dict[str, Any]:
    """What the manager says of its cache directory."""
    (row,) = manager.status()["ssd"]
    return row


def wait_found(manager: Manager) -> None:
    """Waits until the manager has looked everywhere in its directory."""
    wait_until(lambda: ssd(manager)["recovery"]["finished"], "everything is found")


def pages_of_tier(manager: Manager) -> int:
    """Pages that the manager could read from its directory."""
    return manager.status()["tier"]["pages"]


def wait_written(manager: Manager) -> None:
    """Waits until nothing is being written."""
    wait_until(lambda: manager.status()["tier"]["write_queue_pending"] == 0, "all is written")


def save_each(manager: Manager, instance: Instance, names: Iterable[str]) -> None:
    """Saves pages without parents, each of them to the directory too."""
    for count, name in enumerate(names, 1):
        instance.save(name, 1)
        # More writes than may be under way at once are not done at all.
        if count % 16 == 0:
            wait_written(manager)
    wait_written(manager)


def leave_on_ssd(manager: Manager, instance: Instance) -> None:
    """Empties the pool once the directory has everything."""
    wait_written(manager)
    manager.assert_drained()
    manager.drop_memory()
    assert manager.status()["pool"]["pages"] == 0
    for memory in instance.memories:
        memory.poison()


def restored(instance: Instance, names: Iterable[str]) -> list[str]:
    """Those of the pages that come back; each is compared byte for byte, and no other block is touched."""
    hits = []
    for name in names:
        query = instance.query(name, 1)
        if query.pages == 0:
            query.release()
            continue
        neighbours = [memory.read(1) for memory in instance.memories]
        if instance.restore(query, 1) == []:
            assert instance.differing(name, 1) == [], f"{name} came back as something else"
            hits.append(name)
        assert [memory.read(1) for memory in instance.memories] == neighbours
    return hits


def disk_bytes(directory: Path) -> int:
    """What the file system has given to the files and the directory."""

    def given(path: Path) -> int:
        try:
            return path.lstat().st_blocks * 512
        # Files may go while they are looked at.
        except FileNotFoundError:
            return 0

    return given(directory) + sum(given(path) for path in directory.iterdir())


def segments(directory: Path) -> list[Path]:
    """Segment files, by number."""
    return sorted(directory.glob("segment-*.okv"))


def place_of(directory: Path, name: str) -> tuple[Path, int]:
    """File and offset of a page's payload: its first bytes are unlike any other's."""
    wanted = content(name, 0)[:64]
    for path in segments(directory):
        at = path.read_bytes().find(wanted)
        if at >= 0:
            return path, at
    raise AssertionError(f"{name} is in no segment")
