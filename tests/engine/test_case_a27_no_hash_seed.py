"""Engines without a hash seed find each other's pages, and their own after a restart (case A-27)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.child import Child
from support.engine import Engine, EngineSettings
from support.manager import Manager
from support.prompts import restorable_tokens

Prompts = Callable[..., list[int]]
SEED = "PYTHONHASHSEED"
TOKENS = 300
HIT = restorable_tokens(TOKENS)


class ChildEngine(Engine):
    """An engine in a process of its own."""

    def text_hash(self) -> int:
        """Python's own hash of a text, which differs between processes unless a seed fixes it."""
        return hash("orbitkv")


def build(manager_directory: Path, settings: dict[str, Any]) -> ChildEngine:
    """For `Child`."""
    return ChildEngine(Manager(manager_directory).attach(), EngineSettings(**settings))


@pytest.fixture(params=["sha256", "sha256_cbor"])
def algorithm(request: pytest.FixtureRequest) -> str:
    """The engine's default, and the one whose hashes do not depend on the version of Python."""
    return request.param


@pytest.fixture
def new_child(
    new_manager: Callable[..., Manager], test_dir: Path, algorithm: str
) -> Iterator[Callable[[], Child]]:
    """Starts engines on one manager, in the environment that there is when they start."""
    # A segment holds pages of one namespace.
    manager = new_manager(segment_size="32mib")
    settings = {
        "connector": {"verify_restore": "all", "lookup_deadline_ms": 60_000},
        "options": {"prefix_caching_hash_algo": algorithm},
    }
    children: list[Child] = []

    def start() -> Child:
        children.append(Child(test_dir, build, manager.directory, settings))
        return children[-1]

    yield start
    for child in children:
        child.close()


def test_case_a27_pages_are_shared_without_a_seed(
    new_child: Callable[[], Child], new_prompt: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SEED, raising=False)
    tokens = new_prompt(TOKENS)
    first, second = new_child(), new_child()
    assert first.call("text_hash") != second.call("text_hash"), "both have the same seed"
    cold = first.call("run", tokens)
    assert cold.cached == 0
    shared = second.call("run", tokens)
    assert (shared.cached, shared.tokens) == (HIT, cold.tokens)
    first.kill()
    restarted = new_child().call("run", tokens)
    assert (restarted.cached, restarted.tokens) == (HIT, cold.tokens)

    # Control: with a seed the hashes are others, and engines with that seed share.
    monkeypatch.setenv(SEED, "5")
    seeded = [new_child().call("run", tokens) for _ in range(2)]
    assert [result.cached for result in seeded] == [0, HIT]
    assert [result.tokens for result in seeded] == [cold.tokens, cold.tokens]
