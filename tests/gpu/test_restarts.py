"""What was saved outlives the engine, from memory, and the manager, from the SSD."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benches.gpu.process import Manager, wait_until
from benches.gpu.prompts import BLOCK_TOKENS, restorable_tokens
from benches.gpu.systems import Site, System
from support import Engines, ask, forget, wait_active, wait_drained

Prompts = Callable[..., list[int]]
TOKENS = 4096
HIT = restorable_tokens(TOKENS)


@pytest.fixture(scope="module")
def manager(engines: Engines, site: Site) -> Manager:
    directory = site.work / "ssd"
    return engines.new_manager(
        "--ssd-cache-path", str(directory), "--ssd-cache-capacity", "8gib", "--ssd-min-free", "0"
    )


@pytest.fixture(scope="module")
def kept() -> list[tuple[list[int], list[int]]]:
    """Prompts of the first engine, and what followed them."""
    return []


@pytest.fixture(scope="module")
def first(engines: Engines, manager: Manager) -> System:
    return engines.start(manager)


def test_an_engine_that_restarts_finds_its_pages_in_memory(
    engines: Engines,
    manager: Manager,
    first: System,
    kept: list[tuple[list[int], list[int]]],
    new_prompt: Prompts,
) -> None:
    for index in range(2):
        tokens = new_prompt(TOKENS, index)
        cold = ask(first, tokens)
        assert cold["cached"] == 0
        kept.append((tokens, cold["tokens"]))
    first.close()
    second = engines.start(manager)
    before = manager.status()["counters"]
    for tokens, expected in kept:
        answer = ask(second, tokens)
        assert (answer["cached"], answer["tokens"]) == (HIT, expected)
    after = manager.status()["counters"]
    assert after["restored_pages"] - before["restored_pages"] == len(kept) * HIT // BLOCK_TOKENS
    assert after["read_pages"] == before["read_pages"], "memory alone was needed"
    wait_drained(manager)
    forget(second)
    _from_the_ssd(manager, second, kept)


def _from_the_ssd(manager: Manager, engine: System, kept: list[tuple[list[int], list[int]]]) -> None:
    """The same engine goes on with a manager that has started anew, and finds them on the SSD."""
    manager.restart()
    wait_until(
        lambda: all(row["recovery"]["finished"] for row in manager.status()["ssd"]),
        "the SSD was looked through",
    )
    wait_active(manager)
    for tokens, expected in kept:
        answer = ask(engine, tokens)
        assert (answer["cached"], answer["tokens"]) == (HIT, expected)
    counters = manager.status()["counters"]
    assert counters["read_pages"] >= len(kept) * HIT // BLOCK_TOKENS
    assert counters["restored_pages"] == len(kept) * HIT // BLOCK_TOKENS
    wait_drained(manager)
    # Control: with the pages in neither place they are computed, and the tokens are the same.
    engine.engine.call("reset", reset_connector=True)
    tokens, expected = kept[0]
    answer = ask(engine, tokens)
    assert (answer["cached"], answer["tokens"]) == (0, expected)
