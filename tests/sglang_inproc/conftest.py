"""Fixtures of the tests on SGLang's own tree and pools in this process: no engine, no model. They need the
environment of SGLang and a wheel with test hooks; in that of another engine none of them is collected."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
# The manager process, hold points and waits are those of the engine tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from support.holds import Holds, hooks_directory, listen
from support.manager import Manager, managers

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]
# SGLang reads them when it is imported.
os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def test_dir() -> Iterator[Path]:
    """Where hold points of this process are reached."""
    with hooks_directory() as directory:
        listen()
        yield directory


@pytest.fixture
def new_manager(test_dir: Path) -> Iterator[Callable[..., Manager]]:
    """Starts managers that end with the test; keywords are those of `Manager`."""
    with managers(test_dir) as start:
        yield start


@pytest.fixture
def manager(new_manager: Callable[..., Manager]) -> Manager:
    """One manager for the test."""
    return new_manager(pool_size="32mib")


@pytest.fixture
def holds(test_dir: Path) -> Iterator[Holds]:
    """Hold points of this process. All of them end with the test."""
    holds = Holds(test_dir)
    yield holds
    holds.clear()


@pytest.fixture
def new_tree(test_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """Builds the tree cache as SGLang does, on a manager or on a socket where there is none; `settings` are
    the adapter's. They end with the test."""
    from harness import Tree

    for name in [name for name in os.environ if name.startswith("ORBITKV_") and name != "ORBITKV_TEST_DIR"]:
        monkeypatch.delenv(name)
    trees: list[Tree] = []

    def build(manager: Manager | None, **settings: object) -> Tree:
        trees.append(Tree(manager, {"verify_restore": "all", **settings}))
        return trees[-1]

    yield build
    for tree in trees:
        tree.close()


@pytest.fixture
def tree(manager: Manager, new_tree: Callable[..., object]) -> object:
    """One tree for the test."""
    return new_tree(manager)
