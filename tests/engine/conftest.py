"""Fixtures of the tests on a real engine. They need the engine environment and a wheel with test hooks: `make test`.

One engine lives at a time, and as long as a module: engines are cheap to build in one process (their imports are
paid once), but two at once slow each other down.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.environment import set_engine_environment
from support.holds import Holds
from support.manager import Manager

set_engine_environment()


@pytest.fixture(scope="session")
def test_dir() -> Iterator[Path]:
    """Where hold points of this process are reached. A process listens in one directory for all its life."""
    directory = Path(tempfile.mkdtemp(prefix="okv-"))
    os.environ["ORBITKV_TEST_DIR"] = str(directory)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def new_manager(test_dir: Path) -> Iterator[Callable[..., Manager]]:
    """Starts managers that end with the module, each in a directory with a name short enough for a socket."""
    managers: list[Manager] = []

    def start(**options: object) -> Manager:
        directory = Path(tempfile.mkdtemp(prefix="m-", dir=test_dir))
        managers.append(Manager(directory, **options).start())
        return managers[-1]

    yield start
    for manager in managers:
        manager.stop()


@pytest.fixture(scope="module")
def manager(new_manager: Callable[..., Manager]) -> Manager:
    """One manager for the module."""
    return new_manager()


@pytest.fixture
def holds(test_dir: Path) -> Iterator[Holds]:
    """Hold points of this process, which is where an in-process engine copies. All of them end with the test."""
    holds = Holds(test_dir)
    yield holds
    holds.clear()
