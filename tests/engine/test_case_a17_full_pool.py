"""Far more prompts than the pool holds, all at once (case A-17)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.case_end import assert_case_end
from support.engine import Engine
from support.holds import COPY_SAVE, Holds
from support.manager import Manager
from support.prompts import BLOCK_TOKENS

Prompts = Callable[..., list[int]]
REQUESTS = 600
TOKENS = BLOCK_TOKENS + 8
GENERATED = 2


@pytest.fixture(scope="module")
def engine(new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]) -> Engine:
    # 600 pages of 64 KiB want into 30 slots.
    manager = new_manager(pool_size="2mib")
    return new_engine(manager, max_num_seqs=32, connector={"verify_restore": "all"})


def test_case_a17_six_hundred_prompts_and_a_full_pool(
    engine: Engine, holds: Holds, new_prompt: Prompts
) -> None:
    prompts = {f"request-{index}": new_prompt(TOKENS, index) for index in range(REQUESTS)}
    manager, saves = engine.manager, engine.scheduler.connector._scheduler.saves
    before = manager.counters()
    # Saves that stand still fill the pool with pages that cannot be evicted: all others are refused.
    with holds.held(COPY_SAVE):
        for name, tokens in prompts.items():
            engine.add(name, tokens, GENERATED)
        engine.step_until(lambda: saves.counters["refused"] > 0, "a save was refused")
    results = engine.finish(prompts)
    engine.settle()
    assert {(len(result.tokens), result.finish_reason) for result in results.values()} == {
        (GENERATED, "length")
    }
    counters = manager.counters()
    committed = counters["committed_pages"] - before["committed_pages"]
    assert 0 < committed < REQUESTS
    assert counters["refused_pages"] > before["refused_pages"]
    assert saves.counters["refused"] > 0
    manager.assert_drained()

    # What did fit is still there: every page in the pool is a hit, each with the tokens of its first time.
    engine.reset()
    engine.kv.poison()
    hits = 0
    for count, name in enumerate(reversed(prompts)):
        # Which prompts found room depends on how fast they were served.
        if hits > 0 and count >= 150:
            break
        again = engine.run(prompts[name], GENERATED)
        assert again.tokens == results[name].tokens
        hits += again.cached // BLOCK_TOKENS
    assert hits > 0
    assert manager.counters()["restored_pages"] - before["restored_pages"] == hits

    tokens = new_prompt(TOKENS, REQUESTS)
    assert_case_end(engine, tokens, engine.run(tokens, GENERATED))
