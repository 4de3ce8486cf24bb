"""At its deadline a lookup is answered with what is ready, and everything it had begun ends by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.case_end import assert_case_end
from support.engine import Engine
from support.manager import Manager, slow_tier
from support.prompts import BLOCK_TOKENS, restorable_tokens
from support.tier import Counted, reads_pending, stored
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 1000
PAGES = restorable_tokens(TOKENS) // BLOCK_TOKENS
# In memory at the deadline, whatever the tier does.
HEAD_PAGES = 10
NAMES = ["one", "two", "three"]


@pytest.fixture(scope="module")
def engine(new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]) -> Engine:
    manager = new_manager(flags=slow_tier(60, depth=1))
    return new_engine(manager, connector={"verify_restore": "all", "lookup_deadline_ms": 100})


def bring_heads(engine: Engine, prompts: list[list[int]]) -> None:
    """Has the first pages of each prompt in memory again."""
    for tokens in prompts:
        head = tokens[: HEAD_PAGES * BLOCK_TOKENS + 1]
        engine.run(head, 1)
        wait_until(lambda: reads_pending(engine) == 0, "its pages are read")
    engine.reset()
    engine.kv.poison()


@pytest.mark.parametrize("repetition", range(3))
def test_the_prefix_that_is_ready_is_used(engine: Engine, new_prompt: Prompts, repetition: int) -> None:
    prompts = [new_prompt(TOKENS, index) for index in range(len(NAMES))]
    cold = stored(engine, prompts)
    bring_heads(engine, prompts)
    engine.manager.assert_drained()
    counted = Counted(engine)
    for name, tokens in zip(NAMES, prompts, strict=True):
        engine.add(name, tokens)
    results = engine.finish(NAMES)
    assert reads_pending(engine) > 0, "control: they did not wait for the tier"
    assert [results[name].tokens for name in NAMES] == cold
    cached = [results[name].cached // BLOCK_TOKENS for name in NAMES]
    assert all(HEAD_PAGES <= pages < PAGES for pages in cached), cached
    assert counted["restored_pages"] == sum(cached)
    assert counted["adapter_lookups"] == len(NAMES)
    assert counted["adapter_lookup_timeouts"] == counted["bad_pages"] == 0
    engine.settle()
    wait_until(lambda: reads_pending(engine) == 0, "the late reads end")
    engine.manager.assert_drained()
    assert engine.scheduler.connector._scheduler.records == {}
    # Read late and kept.
    assert counted["read_pages"] == len(NAMES) * (PAGES - HEAD_PAGES)
    assert_case_end(engine, prompts[0], cold[0])
