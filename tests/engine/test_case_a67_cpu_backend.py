"""The engine's CPU backend, its own prefix cache cleared: an exact round trip through plain host copies
(case A-67; what the layout probe finds is in `test_self_test`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.case_end import assert_case_end
from support.engine import Engine
from support.manager import Manager
from support.prompts import BLOCK_TOKENS, restorable_tokens

Prompts = Callable[..., list[int]]
TOKENS = 300
PAGES = restorable_tokens(TOKENS) // BLOCK_TOKENS


@pytest.fixture(scope="module")
def engine(new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]) -> Engine:
    return new_engine(new_manager(), connector={"verify_restore": "all"})


def blocks_at_first_token(engine: Engine, tokens: list[int]) -> tuple[list[bytes], list[int], int]:
    """Runs a prompt: its whole blocks' bytes at its first token, its tokens, how many came from a cache."""
    engine.add("request", tokens)
    engine.step_until(lambda: engine.generated("request") > 0, "its first token")
    computed = [engine.kv.block(block) for block in engine.blocks_of("request")[:PAGES]]
    result = engine.finish(["request"])["request"]
    engine.settle()
    return computed, result.tokens, result.cached


def test_case_a67_exact_round_trip(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    saved, control, cached = blocks_at_first_token(engine, tokens)
    assert cached == 0
    assert len(set(saved)) == PAGES
    engine.reset()
    engine.kv.poison()
    restored, again, cached = blocks_at_first_token(engine, tokens)
    assert (restored, again) == (saved, control)
    assert cached == restorable_tokens(TOKENS)
    assert engine.manager.counters()["restored_pages"] >= PAGES
    # Control: with the manager empty nothing comes from anywhere.
    engine.manager.drop_memory()
    engine.reset()
    assert engine.run(tokens).cached == 0
    assert_case_end(engine, tokens, control)


def test_case_a67_prefix_cache_off(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], new_prompt: Prompts
) -> None:
    """Blocks have no hash then: such an engine serves without the cache."""
    manager = new_manager()
    engine = new_engine(manager, prefix_caching=False, wait_active=False)
    tokens = new_prompt(TOKENS)
    first, again = engine.run(tokens), engine.run(tokens)
    assert (first.cached, again.cached, again.tokens) == (0, 0, first.tokens)
    assert manager.active_instances() == 0
    assert manager.counters()["granted_pages"] == 0
