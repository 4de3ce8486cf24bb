"""The pool grows while pages are being saved, and no page is lost to that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine
from support.manager import Manager
from support.prompts import restorable_tokens

Prompts = Callable[..., list[int]]
PROMPT_TOKENS = 1000
# 31 pages of 68 KiB a prompt; a segment holds 30.
SEGMENT_SIZE = "2mib"
COUNT = 6


@pytest.fixture(scope="module")
def engine(new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]) -> Engine:
    manager = new_manager(pool_size="64mib", segment_size=SEGMENT_SIZE)
    return new_engine(manager, connector={"load_mode": "sync"})


def assert_restored(engine: Engine, prompts: list[list[int]], cold: list[list[int]]) -> None:
    engine.press_out()
    restored = [engine.run(tokens) for tokens in prompts]
    assert [result.cached for result in restored] == [restorable_tokens(PROMPT_TOKENS)] * len(prompts)
    assert [result.tokens for result in restored] == cold


def test_every_page_saved_while_segments_are_made_comes_back(engine: Engine, new_prompt: Prompts) -> None:
    assert engine.manager.status()["pool"]["segments"] <= 2
    prompts = [new_prompt(PROMPT_TOKENS, index) for index in range(COUNT)]
    cold = [engine.run(tokens) for tokens in prompts]
    assert engine.manager.status()["pool"]["segments"] > COUNT
    assert_restored(engine, prompts, [result.tokens for result in cold])


def test_the_first_pages_after_everything_was_dropped_are_saved(engine: Engine, new_prompt: Prompts) -> None:
    assert engine.manager.drop_memory() > 0
    tokens = new_prompt(PROMPT_TOKENS)
    cold = engine.run(tokens)
    assert cold.cached == 0
    assert_restored(engine, [tokens], [cold.tokens])
