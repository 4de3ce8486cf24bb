"""Fixtures of the tests on a real vLLM. They need the engine environment and a wheel with test hooks, which
`make test` puts on their paths.

One engine lives at a time, as long as a module at most: engines are cheap to build in one process (their
imports are paid once), but vLLM keeps process-wide state that two at once would share.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# `support` is in two parts: what is vLLM's lies here, what every engine's tests use lies in `shared`.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.engine import Engine, EngineSettings
from support.environment import set_engine_environment
from support.holds import Holds, hooks_directory
from support.manager import Manager, managers
from support.prompts import prompt

set_engine_environment()


@pytest.fixture(scope="session")
def test_dir() -> Iterator[Path]:
    """Where hold points of this process are reached."""
    with hooks_directory() as directory:
        yield directory


@pytest.fixture(scope="module")
def new_manager(test_dir: Path) -> Iterator[Callable[..., Manager]]:
    """Starts managers that end with the module; keywords are those of `Manager`."""
    with managers(test_dir) as start:
        yield start


@pytest.fixture(scope="module")
def manager(new_manager: Callable[..., Manager]) -> Manager:
    """One manager for the module."""
    return new_manager()


@pytest.fixture(scope="module")
def new_engine(test_dir: Path) -> Iterator[Callable[..., Engine]]:
    """Builds an engine on a manager (or on None, for a control); keywords are those of `EngineSettings`. The
    engine built before it ends first."""
    engines: list[Engine] = []

    def build(manager: Manager | None, **settings: object) -> Engine:
        while engines:
            engines.pop().close()
        engines.append(Engine(manager, EngineSettings(**settings)))
        return engines[-1]

    yield build
    while engines:
        engines.pop().close()


@pytest.fixture
def new_prompt(request: pytest.FixtureRequest) -> Callable[..., list[int]]:
    """Prompts that belong to this test alone: `new_prompt(tokens, index=0)`."""
    seed = zlib.crc32(request.node.nodeid.encode()) << 8
    return lambda tokens, index=0: prompt(seed + index, tokens)


@pytest.fixture
def holds(test_dir: Path) -> Iterator[Holds]:
    """Hold points of this process, where an in-process engine copies. All of them end with the test."""
    holds = Holds(test_dir)
    yield holds
    holds.clear()
