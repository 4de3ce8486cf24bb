"""A block that is given away before its save was copied: the save ends, and nobody ever sees the page."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine
from support.holds import COPY_SAVE, Holds
from support.manager import Manager
from support.prompts import restorable_tokens

Prompts = Callable[..., list[int]]
TOKENS = 300


@pytest.fixture(scope="module")
def engine(manager: Manager, new_engine: Callable[..., Engine]) -> Engine:
    return new_engine(manager, connector={"verify_restore": "all"})


def test_block_reused_while_its_save_is_held(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    before = engine.manager.counters()
    with holds.held(COPY_SAVE):
        engine.add("saved", tokens)
        cold = engine.finish(["saved"])["saved"]
        engine.step_until(lambda: holds.reached(COPY_SAVE) > 0, "the save is held")
        # Other prompts take every block. Nothing in the engine waits for the copy for long.
        fill(engine, new_prompt)
    engine.settle()
    counters = engine.manager.counters()
    assert counters["aborted_pages"] - before["aborted_pages"] >= TOKENS // 32
    engine.manager.assert_drained()
    engine.reset()
    again = engine.run(tokens)
    assert (again.cached, again.tokens) == (0, cold.tokens)


def test_control_without_the_hold_it_becomes_visible(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    engine.add("saved", tokens)
    cold = engine.finish(["saved"])["saved"]
    fill(engine, new_prompt)
    engine.settle()
    engine.reset()
    again = engine.run(tokens)
    assert (again.cached, again.tokens) == (restorable_tokens(TOKENS), cold.tokens)


def fill(engine: Engine, new_prompt: Prompts) -> None:
    """Overwrites every block, without the pause between requests that `press_out` makes."""
    names = [f"fill-{index}" for index in range(6)]
    for index, name in enumerate(names):
        engine.add(name, new_prompt(1000, 100 + index), 1)
    engine.finish(names)
