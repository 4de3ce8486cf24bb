"""A tier slower than computing makes no request wait beyond its deadline (case A-61)."""

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
PAGE_BYTES = 64 << 10
# One page at a time: all of them take fifty deadlines.
DELAY_MS, HASTY_MS, PATIENT_MS = 250, 150, 60_000


@pytest.fixture(scope="module", params=[HASTY_MS, PATIENT_MS], ids=["hasty", "patient"])
def deadline_ms(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def engine(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], deadline_ms: int
) -> Engine:
    manager = new_manager(flags=slow_tier(DELAY_MS, depth=1))
    connector = {"verify_restore": "all", "lookup_deadline_ms": deadline_ms}
    return new_engine(manager, connector=connector)


def test_case_a61_first_token_is_not_later_than_deadline_and_recompute(
    engine: Engine, new_prompt: Prompts, deadline_ms: int
) -> None:
    """The patient engine is the control: its first token comes after the last read."""
    tokens = new_prompt(TOKENS)
    (cold,) = stored(engine, [tokens])
    counted = Counted(engine)
    engine.add("slow", tokens)
    engine.step_until(lambda: engine.generated("slow") > 0, "the first token")
    query, pending = engine.manager.status()["query"], reads_pending(engine)
    result = engine.finish(["slow"])["slow"]
    assert result.tokens == cold
    assert counted["adapter_lookups"] == counted["queries"] == 1
    if deadline_ms == PATIENT_MS:
        assert (pending, result.cached) == (0, restorable_tokens(TOKENS))
        assert counted["read_pages"] == counted["restored_pages"] == PAGES
        return
    assert pending > PAGES // 2, "it waited for the tier"
    assert query["reserved_bytes"] > pending * PAGE_BYTES, "slots are reserved until their read ends"
    assert result.cached < restorable_tokens(TOKENS) // 2
    assert counted["restored_pages"] == result.cached // BLOCK_TOKENS

    # What is read late is kept: the next request reads nothing.
    wait_until(lambda: reads_pending(engine) == 0, "the late reads end")
    assert counted["read_pages"] == PAGES
    found = counted["ram_pages"]
    assert_case_end(engine, tokens, cold)
    assert counted["read_pages"] == PAGES, "each page was read once"
    assert counted["ram_pages"] - found == PAGES
