"""Many requests that share a prefix wait for one read of it, and none for another's restore (case A-62)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.case_end import assert_case_end
from support.engine import Engine
from support.manager import Manager, slow_tier
from support.prompts import BLOCK_TOKENS
from support.tier import Counted, leave_on_tier

Prompts = Callable[..., list[int]]
REQUESTS = 50
PAGES = 30
# Behind the shared pages, and too few for a page of their own.
OWN_TOKENS, NEW_TOKENS = 12, 8


# Blocks of the engine: with 80 there is room for two prefixes that are not shared.
@pytest.fixture(scope="module", params=[("sync", 512), ("async", 512), ("async", 80)], ids=str)
def engine(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], request: pytest.FixtureRequest
) -> Engine:
    load_mode, blocks = request.param
    connector = {"verify_restore": "all", "lookup_deadline_ms": 60_000, "load_mode": load_mode}
    manager = new_manager(flags=slow_tier(40, depth=4))
    return new_engine(manager, blocks=blocks, max_num_seqs=16, connector=connector)


def test_case_a62_each_page_is_read_once(engine: Engine, new_prompt: Prompts) -> None:
    shared = new_prompt(PAGES * BLOCK_TOKENS)
    prompts = [[*shared, *new_prompt(OWN_TOKENS, 1 + index)] for index in range(REQUESTS)]
    control = engine.run(prompts[0], NEW_TOKENS)
    assert control.cached == 0
    controls = [control, *(engine.run(tokens, NEW_TOKENS) for tokens in prompts[1:])]
    assert len({tuple(result.tokens) for result in controls}) > 1, "they do not all say the same"
    leave_on_tier(engine)
    counted = Counted(engine)
    names = [f"shared-{index}" for index in range(REQUESTS)]
    for name, tokens in zip(names, prompts, strict=True):
        engine.add(name, tokens, NEW_TOKENS)
    results = engine.finish(names)
    assert [results[name].tokens for name in names] == [result.tokens for result in controls]
    assert {results[name].cached for name in names} == {PAGES * BLOCK_TOKENS}, "nobody computed the prefix"
    assert counted["read_pages"] == PAGES, "one read a page"
    assert counted["coalesced_reads"] >= PAGES, "nobody waited beside another: the test shows nothing"
    assert counted["restored_pages"] % PAGES == 0 < counted["restored_pages"]
    assert counted["adapter_lookup_timeouts"] == counted["bad_pages"] == 0
    assert_case_end(engine, prompts[0], control)
