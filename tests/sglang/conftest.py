"""Fixtures of the tests on a real SGLang, which is a server in processes of its own. They need the
environment `.venv/sglang-cpu` and a wheel with test hooks, which `make test` puts on their paths; in the
environment of another engine none of them is collected.

A server takes 10 to 20 s to start, so one serves a whole module, and a module's first request warms it up.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# `support` is in two parts: what is SGLang's lies here, what every engine's tests use lies in `shared`.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]

from support.holds import hooks_directory
from support.manager import Manager, managers
from support.prompts import prompt
from support.sglang import Sglang


@pytest.fixture(scope="session")
def test_dir() -> Iterator[Path]:
    """Where hold points of the engine's processes are reached."""
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
def new_engine(test_dir: Path) -> Iterator[Callable[..., Sglang]]:
    """Starts an engine on a manager (or on None, for a control); keywords are those of `Sglang`. The engine
    started before it ends first."""
    engines: list[Sglang] = []

    def start(manager: Manager | None, **options: object) -> Sglang:
        directory = Path(tempfile.mkdtemp(prefix="e-", dir=test_dir))
        while engines:
            engines.pop().close()
        # Known before it starts: one that never becomes active is ended too.
        engines.append(Sglang(manager, directory, test_dir, **options))
        return engines[-1].start()

    yield start
    while engines:
        engines.pop().close()


@pytest.fixture
def new_prompt(request: pytest.FixtureRequest) -> Callable[..., list[int]]:
    """Prompts that belong to this test alone: `new_prompt(tokens, index=0)`."""
    seed = zlib.crc32(request.node.nodeid.encode()) << 8
    return lambda tokens, index=0: prompt(seed + index, tokens)
