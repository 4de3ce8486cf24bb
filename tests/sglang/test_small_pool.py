"""A pool that is much too small: pages that are never loaded do not stay pinned (case A-12), and pages that
were promised (A-18) or are being copied (A-24) are not evicted, whoever wants their room."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.filler import Filler
from support.gauges import not_drained
from support.holds import COPY_RESTORE, QUERY_REPLY
from support.manager import Manager
from support.sglang import PAGE_TOKENS, Answer, Sglang, restorable
from support.wait import wait_until

Prompts = Callable[..., list[int]]
ROUNDS = 200
TOKENS = 2 * PAGE_TOKENS + 8
PAGES = restorable(TOKENS) // PAGE_TOKENS
PAGE_BYTES = 256 << 10
# About twice what the pool has slots for.
MANY_PAGES = 120
LONG = 400


@pytest.fixture(scope="module")
def engine(new_manager: Callable[..., Manager], new_engine: Callable[..., Sglang]) -> Sglang:
    # In several segments, as another client needs some of its own.
    return new_engine(new_manager(pool_size="16mib", segment_size="2mib"))


def test_case_a12_two_hundred_prompts_twice_with_the_engine_cache_warm(
    engine: Sglang, new_prompt: Prompts
) -> None:
    manager = engine.manager
    before = manager.counters()
    for index in range(ROUNDS):
        tokens = new_prompt(TOKENS, index)
        first = engine.run(tokens, 1)
        again = engine.run(tokens, 1)
        assert (first.local + first.restored, again.restored) == (0, 0)
        assert (again.local, again.tokens) == (PAGES * PAGE_TOKENS, first.tokens)
        wait_until(lambda: not not_drained(manager.status()), f"nothing is held after round {index}")
    after = manager.counters()
    done = {name: after[name] - before[name] for name in after}
    # While a pool grows, some pages find no slot.
    assert done["committed_pages"] > ROUNDS * PAGES * 9 // 10
    assert done["evicted_pages"] > ROUNDS * PAGES // 2
    assert done["restored_pages"] == 0
    # The last one is still there.
    engine.flush()
    last = engine.run(tokens, 1)
    assert (last.restored, last.tokens) == (PAGES * PAGE_TOKENS, first.tokens)


@pytest.fixture
def filler(engine: Sglang) -> Iterator[Filler]:
    """Another client of the manager, that wants all of the pool."""
    filler = Filler(engine.manager, PAGE_BYTES)
    yield filler
    filler.close()


def stored(engine: Sglang, tokens: list[int], new_prompt: Prompts) -> Answer:
    """Runs a prompt, which is then in the pool and no longer in the engine. After a flush the engine gives
    out its pages from the first one on, so that half a pool of another prompt overwrites what it had."""
    engine.flush()
    cold = engine.run(tokens)
    engine.settle()
    engine.flush()
    engine.run(new_prompt(30 * PAGE_TOKENS, 1), 1)
    engine.settle()
    engine.flush()
    return cold


def test_case_a18_promised_pages_are_kept_from_another_client(
    engine: Sglang, filler: Filler, new_prompt: Prompts
) -> None:
    tokens, manager = new_prompt(LONG), engine.manager
    cold = stored(engine, tokens, new_prompt)
    evicted = manager.counters()["evicted_pages"]
    with manager.holds.held(QUERY_REPLY):
        waiting = engine.add(tokens)
        manager.holds.wait_reached(QUERY_REPLY)
        assert filler.fill(MANY_PAGES) > 0
    again = waiting.result()
    assert (again.restored, again.tokens) == (restorable(LONG), cold.tokens)
    assert manager.counters()["evicted_pages"] > evicted, "control: others had to go"
    manager.assert_drained()


def test_case_a24_pages_in_copy_are_kept_from_another_client(
    engine: Sglang, filler: Filler, new_prompt: Prompts
) -> None:
    tokens, manager = new_prompt(LONG), engine.manager
    cold = stored(engine, tokens, new_prompt)
    evicted = manager.counters()["evicted_pages"]
    holds = engine.holds
    with holds.held(COPY_RESTORE):
        loading = engine.add(tokens)
        holds.wait_reached(COPY_RESTORE)
        assert filler.fill(MANY_PAGES) > 0
        assert manager.status()["load"]["inflight_bytes"] >= restorable(LONG) // PAGE_TOKENS * PAGE_BYTES
    again = loading.result()
    assert (again.restored, again.tokens) == (restorable(LONG), cold.tokens)
    assert manager.counters()["evicted_pages"] > evicted, "control: others had to go"
    manager.assert_drained()


def test_without_a_hold_another_client_takes_all_of_the_pool(
    engine: Sglang, filler: Filler, new_prompt: Prompts
) -> None:
    """The control of both: the same client, and nobody who holds the pages."""
    tokens = new_prompt(LONG)
    cold = stored(engine, tokens, new_prompt)
    filler.fill(MANY_PAGES)
    again = engine.run(tokens)
    assert (again.restored, again.tokens) == (0, cold.tokens)
