"""A request that does not fit, in front of a restore that holds the blocks it needs: the queue never stops.

vLLM 0.29 scans one queue and ends at the first request that does not fit, so blocks held behind it are never
given back. The connector's admission rule prevents that order; with the rule off the engine hangs, which is
the control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from support.engine import MAX_STEPS, Engine
from support.holds import QUERY_REPLY, QUERY_REPLY_FIRST, Holds
from support.manager import Manager

Prompts = Callable[..., list[int]]
# 125 usable blocks: the first prompt needs 64, the restore of the second 63.
BLOCKS = 126
FIRST_TOKENS, STORED_TOKENS = 2040, 2000
STEPS_TO_HANG = 300


@pytest.fixture(scope="module", params=["fcfs", "priority"])
def policy(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def build(new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], policy: str) -> Callable:
    def build(*, gate: bool) -> Engine:
        connector = {"load_mode": "async", "lookup_deadline_ms": 60_000, "admission_gate": gate}
        options = {"scheduling_policy": policy}
        return new_engine(
            new_manager(), blocks=BLOCKS, max_model_len=2080, connector=connector, options=options
        )

    return build


@contextmanager
def first_answer_held(holds: Holds) -> Iterator[None]:
    """The first query waits for its answer, later ones do not."""
    with holds.switched(QUERY_REPLY_FIRST, 1), holds.held(QUERY_REPLY):
        yield


def queue_first_and_stored(engine: Engine, first: list[int], stored: list[int]) -> None:
    """The large one in front with its answer held, the stored one behind it with its answer on hand."""
    holds = engine.manager.holds
    with first_answer_held(holds):
        engine.add("first", first)
        engine.step_until(lambda: holds.reached(QUERY_REPLY) > 0, "the first one's answer is held")
        engine.add("stored", stored)
        answered = engine.manager.counters()["ram_pages"] + STORED_TOKENS // 32
        engine.step_until(
            lambda: engine.manager.counters()["ram_pages"] >= answered, "the second is answered"
        )
        for _ in range(20):
            engine.step()


def step_to_end(engine: Engine, names: set[str], steps: int) -> set[str]:
    """Names that are unfinished after so many steps."""
    left = set(names)
    for _ in range(steps):
        left -= set(engine.step())
        if not left:
            break
    return left


def test_case_a01_the_stall_completes(build: Callable[..., Engine], new_prompt: Prompts) -> None:
    engine = build(gate=True)
    first, stored = new_prompt(FIRST_TOKENS, 0), new_prompt(STORED_TOKENS, 1)
    controls = {"first": engine.run(first).tokens, "stored": engine.run(stored).tokens}
    engine.press_out()
    engine.manager.drop_memory()
    engine.run(stored)
    engine.press_out()
    queue_first_and_stored(engine, first, stored)
    assert step_to_end(engine, {"first", "stored"}, MAX_STEPS) == set()
    results = engine.finish(["first", "stored"])
    assert {name: result.tokens for name, result in results.items()} == controls
    assert [results[name].cached for name in ("first", "stored")] == [0, 1984]
    engine.settle()
    engine.manager.assert_drained()


def test_control_the_stall_hangs_without_the_rule(build: Callable[..., Engine], new_prompt: Prompts) -> None:
    engine = build(gate=False)
    first, stored = new_prompt(FIRST_TOKENS, 0), new_prompt(STORED_TOKENS, 1)
    engine.run(stored)
    engine.press_out()
    queue_first_and_stored(engine, first, stored)
    assert step_to_end(engine, {"first", "stored"}, STEPS_TO_HANG) == {"first", "stored"}
    # Not slow but stuck: the restore is done, nothing runs, and nobody is given a block any more.
    assert not engine.scheduler.running
    assert engine.free_blocks == BLOCKS - 1 - 62
    assert engine.manager.status()["load"]["inflight_bytes"] == 0
    # The way out that a user has.
    engine.abort("first")
    engine.finish(["stored"])


def test_case_a01_two_conversations_continue(build: Callable[..., Engine], new_prompt: Prompts) -> None:
    """Two conversations of different length, evicted from the engine; their next turns come together, and the
    first needs a little more than the restore of the second leaves free."""
    engine = build(gate=True)
    long, short = new_prompt(1900, 0), new_prompt(1500, 1)
    turns = {"long": long + new_prompt(140, 2), "short": short + new_prompt(200, 3)}
    controls = {name: engine.run(tokens).tokens for name, tokens in turns.items()}
    engine.press_out()
    engine.manager.drop_memory()
    for conversation in (long, short):
        engine.run(conversation)
    engine.press_out()

    holds = engine.manager.holds
    with first_answer_held(holds):
        engine.add("long", turns["long"])
        engine.step_until(lambda: holds.reached(QUERY_REPLY) > 0, "the first one's answer is held")
        engine.add("short", turns["short"])
        for _ in range(50):
            engine.step()
    assert step_to_end(engine, set(turns), MAX_STEPS) == set()
    results = engine.finish(turns)
    assert {name: result.tokens for name, result in results.items()} == controls
    assert [results[name].cached for name in ("long", "short")] == [1888, 1472]
    engine.settle()
    engine.manager.assert_drained()
