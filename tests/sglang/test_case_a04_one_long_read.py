"""One very long read from a slow tier, and twenty short ones behind it (case A-04): none of the short ones
runs out of time for it, and the long one goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.holds import MEMORY_TIER_DELAY
from support.manager import Manager, slow_tier
from support.sglang import PAGE_TOKENS, Sglang, restorable
from support.sglang_end import assert_case_end
from support.wait import wait_until

Prompts = Callable[..., list[int]]
SHORTS = 20
SHORT_TOKENS = PAGE_TOKENS + 8
LONG_PAGES = 100
LONG_TOKENS = LONG_PAGES * PAGE_TOKENS + 8
# One page at a time: the long read alone takes twice the deadline, twenty short ones less than half of it.
PAGE_MS = 120
DEADLINE_MS = 6000


@pytest.fixture(scope="module")
def engine(new_manager: Callable[..., Manager], new_engine: Callable[..., Sglang]) -> Sglang:
    manager = new_manager(flags=slow_tier(0, depth=1))
    # As many running requests as there are, so that none waits for another to end.
    return new_engine(manager, tokens=16384, running=SHORTS + 1, config={"lookup_deadline_ms": DEADLINE_MS})


@contextmanager
def slow(engine: Sglang, page_ms: int) -> Iterator[None]:
    """All pages are in the tier alone, which takes that long for each."""
    manager = engine.manager
    engine.press_out()
    wait_until(lambda: manager.status()["tier"]["write_queue_pending"] == 0, "the tier has it")
    assert manager.drop_memory() > 0
    with manager.holds.switched(MEMORY_TIER_DELAY, page_ms):
        yield


def reads_pending(manager: Manager) -> int:
    return manager.status()["tier"]["read_queue_pending"]


def test_case_a04_short_reads_are_served_beside_a_long_one(engine: Sglang, new_prompt: Prompts) -> None:
    manager = engine.manager
    long, shorts = new_prompt(LONG_TOKENS), [new_prompt(SHORT_TOKENS, 1 + index) for index in range(SHORTS)]
    cold_long = engine.run(long)
    cold = [engine.run(tokens).tokens for tokens in shorts]
    with slow(engine, PAGE_MS):
        first = engine.add(long)
        wait_until(lambda: reads_pending(manager) > SHORTS, "the long one is being read")
        answers = engine.run_all(shorts)
        assert [answer.restored for answer in answers] == [restorable(SHORT_TOKENS)] * SHORTS
        assert [answer.tokens for answer in answers] == cold
        late = first.result()
        assert 0 < late.restored < restorable(LONG_TOKENS), "control: it had not the time for all of it"
        assert late.tokens == cold_long.tokens
    wait_until(lambda: reads_pending(manager) == 0, "the late reads end")
    assert_case_end(engine, long, cold_long)


def test_without_time_short_reads_fall_back(engine: Sglang, new_prompt: Prompts) -> None:
    """The control: who is not served within the deadline computes."""
    tokens = new_prompt(SHORT_TOKENS)
    cold = engine.run(tokens)
    with slow(engine, 2 * DEADLINE_MS):
        answer = engine.run(tokens)
    assert (answer.restored, answer.tokens) == (0, cold.tokens)
    wait_until(lambda: reads_pending(engine.manager) == 0, "the late read ends", within_s=60)
