"""Pages that are in the engine's own cache too are looked up and never loaded: nothing stays pinned
(case A-12)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.case_end import assert_case_end
from support.engine import Engine
from support.gauges import not_drained
from support.manager import Manager
from support.prompts import BLOCK_TOKENS, restorable_tokens
from support.wait import wait_until

Prompts = Callable[..., list[int]]
ROUNDS = 1000
TOKENS = 2 * BLOCK_TOKENS + 8
PAGES = restorable_tokens(TOKENS) // BLOCK_TOKENS


@pytest.fixture(scope="module")
def engine(new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]) -> Engine:
    # 2,000 pages of 64 KiB want into 60 slots.
    return new_engine(new_manager(pool_size="4mib"), connector={"verify_restore": "all"})


def test_case_a12_thousand_prompts_twice_with_the_engine_cache_warm(
    engine: Engine, new_prompt: Prompts
) -> None:
    manager = engine.manager
    before = manager.counters()
    for index in range(ROUNDS):
        tokens = new_prompt(TOKENS, index)
        first = engine.run(tokens, 1)
        again = engine.run(tokens, 1)
        assert (first.cached, again.cached) == (0, PAGES * BLOCK_TOKENS)
        assert again.tokens == first.tokens
        wait_until(lambda: not not_drained(manager.status()), f"nothing is held after round {index}")
    after = manager.counters()
    done = {name: after[name] - before[name] for name in after}
    assert done["committed_pages"] == ROUNDS * PAGES
    assert done["evicted_pages"] > ROUNDS * PAGES * 9 // 10
    assert done["refused_pages"] == done["restored_pages"] == 0
    assert_case_end(engine, tokens, first)
