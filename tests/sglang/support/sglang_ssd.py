"""An SSD behind the pool, and pages that are on it alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.manager import Manager
from support.sglang import Sglang
from support.wait import wait_until

# The name of a cache directory, by which faults find it.
CACHE = "cache"


def ssd_flags(directory: Path) -> tuple[str, ...]:
    """Flags of a manager with a cache directory there."""
    return ("--ssd-cache-path", str(directory), "--ssd-cache-capacity", "512mib")


def wait_serving(manager: Manager) -> None:
    """Waits until the manager has found what is in its directory."""
    wait_until(lambda: [row["state"] for row in manager.status()["ssd"]] == ["serving"], "the SSD serves")


def new_ssd_manager(new_manager: Callable[..., Manager], factory: pytest.TempPathFactory) -> Manager:
    """A manager with a new cache directory, which serves."""
    manager = new_manager(flags=ssd_flags(factory.mktemp("ssd") / CACHE))
    wait_serving(manager)
    return manager


def leave_on_ssd(engine: Sglang) -> None:
    """What was saved is on the SSD alone: neither in the pool nor in the engine."""
    manager = engine.manager
    engine.press_out()
    wait_until(lambda: manager.status()["tier"]["write_queue_pending"] == 0, "the SSD has it")
    assert manager.drop_memory() > 0


def reads_pending(manager: Manager) -> int:
    """Pages that the SSD has not read yet."""
    return manager.status()["tier"]["read_queue_pending"]
