"""Cache directories on an SSD behind a manager's pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripted import Instance
from support.manager import Manager
from support.wait import wait_until
from tiered import PAGES, ask

from orbitkv import _native as native

CHECK_S = 5.0  # how often a directory looks at its file system


def ssd_flags(*directories: Path, capacity: str = "64mib") -> tuple[str, ...]:
    """Flags of a manager with these directories, which share the capacity. Segments hold some dozen pages."""
    paths = [word for path in directories for word in ("--ssd-cache-path", str(path))]
    sizes = ["--ssd-cache-capacity", capacity, "--ssd-segment-size", "1mib", "--ssd-min-free", "0"]
    return (*paths, *sizes)


def cached(new_manager: Callable[..., Manager], *directories: Path, **options: Any) -> Manager:
    """A manager that has found everything in its directories."""
    flags = ssd_flags(*directories, **options)
    return found(new_manager(pool_size="16mib", segment_size="2mib", flags=flags))


def found(manager: Manager) -> Manager:
    """The same, once it has looked everywhere."""
    wait_until(
        lambda: all(row["recovery"]["finished"] for row in manager.status()["ssd"]), "everything is found"
    )
    return manager


def states(manager: Manager) -> list[str]:
    """What each directory can do, in the order of the flags."""
    return [row["state"] for row in manager.status()["ssd"]]


def wait_states(manager: Manager, *wanted: str) -> None:
    """Waits until the directories can do just that, and checks that the metric for alarms says the same."""
    wait_until(lambda: states(manager) == list(wanted), f"directories are {wanted}, not {states(manager)}")
    metrics = manager.metrics()
    for state in set(wanted):
        assert metrics[f'orbitkv_ssd_directories{{state="{state}"}}'] == wanted.count(state)


def tier_pages(manager: Manager) -> int:
    """Pages that could be read from the directories."""
    return manager.status()["tier"]["pages"]


def wait_written(manager: Manager) -> None:
    """Waits until nothing is being written."""
    wait_until(lambda: manager.status()["tier"]["write_queue_pending"] == 0, "writes have ended")


def answered(query: Any) -> int:
    """Pages of a query, once it is answered."""
    wait_until(lambda: query.poll() != native.PENDING, "a query is answered")
    return query.pages


def assert_restored(instance: Instance, name: str, pages: int = PAGES) -> None:
    """A chain comes back, byte for byte, into memory that had something else."""
    for memory in instance.memories:
        memory.poison()
    assert instance.differing(name, pages) == list(range(pages)), "control"
    query = ask(instance, name, pages)
    assert answered(query) == pages
    assert instance.restore(query, pages) == []
    assert instance.differing(name, pages) == []
