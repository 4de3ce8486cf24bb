"""Fixtures of the tests on a real manager with scripted clients: no engine, no model, plain memory. They need
a wheel with test hooks, which `make test` puts on their paths."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
# The manager process, hold points and waits are those of the engine tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from scripted import Instance
from support.holds import Holds, hooks_directory
from support.manager import Manager, managers


@pytest.fixture(scope="session")
def test_dir() -> Iterator[Path]:
    """Where hold points of this process are reached."""
    with hooks_directory() as directory:
        yield directory


@pytest.fixture
def new_manager(test_dir: Path) -> Iterator[Callable[..., Manager]]:
    """Starts managers that end with the test; keywords are those of `Manager`."""
    with managers(test_dir) as start:
        yield start


@pytest.fixture
def manager(new_manager: Callable[..., Manager]) -> Manager:
    """One manager for the test, with room for the segments of several namespaces."""
    return new_manager(pool_size="16mib", segment_size="2mib")


@pytest.fixture
def new_instance(new_manager: Callable[..., Manager]) -> Iterator[Callable[..., Instance]]:
    """Connects instances; keywords are those of `Instance`. They end before the managers do."""
    instances: list[Instance] = []

    def connect(manager: Manager, **options: object) -> Instance:
        instances.append(Instance(manager.socket, **options).wait_active())
        return instances[-1]

    yield connect
    for instance in instances:
        instance.close()


@pytest.fixture
def holds(test_dir: Path) -> Iterator[Holds]:
    """Hold points of this process, where scripted workers copy. All of them end with the test."""
    holds = Holds(test_dir)
    yield holds
    holds.clear()
