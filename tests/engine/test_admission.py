"""A request that does not fit, in front of a restore that holds the blocks it needs: the queue never stops.

vLLM 0.29 scans one queue and ends at the first request that does not fit, so blocks held behind it are never
given back. The connector's admission rule prevents that order; with the rule off the engine hangs, which is
the control.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine
from support.holds import COPY_RESTORE, QUERY_REPLY, QUERY_REPLY_FIRST, Holds
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


def queue_first_and_stored(
    engine: Engine, copies: Holds, first: list[int], stored: list[int], on_hand: Callable[[], bool]
) -> int:
    """The large one in front, its answer held until the stored one behind it is as far as `on_hand` says; the
    restore, if there is one by then, ends last. How many restores began in front of the large one."""
    answers = engine.manager.holds
    with copies.held(COPY_RESTORE):
        with answers.switched(QUERY_REPLY_FIRST, 1), answers.held(QUERY_REPLY):
            engine.add("first", first)
            engine.step_until(lambda: answers.reached(QUERY_REPLY) > 0, "the first one's answer is held")
            engine.add("stored", stored)
            engine.step_until(on_hand, "the second is as far as it gets")
            for _ in range(5):
                engine.step()
            assert engine.generated("first") == engine.generated("stored") == 0
            overtook = copies.reached(COPY_RESTORE)
        for _ in range(20):
            engine.step()
    return overtook


def is_stuck(engine: Engine, names: set[str]) -> bool:
    """Not slow but stuck: nothing runs, no copy is under way, and the blocks of the restore stay taken."""
    return (
        engine.unfinished(names, STEPS_TO_HANG) == names
        and not engine.scheduler.running
        and engine.manager.status()["load"]["inflight_bytes"] == 0
        and engine.free_blocks == BLOCKS - 1 - STORED_TOKENS // 32
    )


def test_case_a01_the_stall_completes(
    build: Callable[..., Engine], holds: Holds, new_prompt: Prompts
) -> None:
    engine = build(gate=True)
    first, stored = new_prompt(FIRST_TOKENS, 0), new_prompt(STORED_TOKENS, 1)
    controls = {"first": engine.run(first).tokens, "stored": engine.run(stored).tokens}
    engine.press_out()
    engine.manager.drop_memory()
    engine.run(stored)
    engine.press_out()

    answered = engine.manager.counters()["ram_pages"] + STORED_TOKENS // 32
    overtook = queue_first_and_stored(
        engine, holds, first, stored, lambda: engine.manager.counters()["ram_pages"] >= answered
    )
    assert overtook == 0, "a restore took the room that the request in front of it needs"
    results = engine.finish(["first", "stored"])
    assert {name: result.tokens for name, result in results.items()} == controls
    assert [results[name].cached for name in ("first", "stored")] == [0, 1984]
    engine.settle()
    engine.manager.assert_drained()


def test_control_the_stall_hangs_without_the_rule(
    build: Callable[..., Engine], holds: Holds, new_prompt: Prompts
) -> None:
    engine = build(gate=False)
    first, stored = new_prompt(FIRST_TOKENS, 0), new_prompt(STORED_TOKENS, 1)
    engine.run(stored)
    engine.press_out()
    overtook = queue_first_and_stored(engine, holds, first, stored, lambda: holds.reached(COPY_RESTORE) > 0)
    assert overtook == 1
    assert is_stuck(engine, {"first", "stored"})
    # The way out that a user has.
    engine.abort("first")
    engine.finish(["stored"])


@pytest.mark.parametrize("gate", [True, False])
def test_case_a01_urgent_request_in_front_of_a_restore(
    build: Callable[..., Engine], holds: Holds, new_prompt: Prompts, policy: str, gate: bool
) -> None:
    """A request of higher priority that does not fit comes while the restore is under way."""
    engine = build(gate=gate)
    urgent, stored = new_prompt(FIRST_TOKENS, 0), new_prompt(STORED_TOKENS, 1)
    cold = engine.run(stored)
    engine.press_out()
    with holds.held(COPY_RESTORE):
        engine.add("stored", stored, priority=1)
        engine.step_until(lambda: holds.reached(COPY_RESTORE) > 0, "the restore is under way")
        engine.add("urgent", urgent, priority=0)
        for _ in range(20):
            engine.step()
        assert engine.generated("urgent") == 0
    if policy == "priority" and not gate:
        assert is_stuck(engine, {"urgent", "stored"})
        engine.abort("urgent")
        engine.finish(["stored"])
        return
    results = engine.finish(["urgent", "stored"])
    assert (results["stored"].cached, results["stored"].tokens) == (1984, cold.tokens)
    engine.settle()
    engine.manager.assert_drained()


def test_case_a01_two_conversations_continue(build: Callable[..., Engine], new_prompt: Prompts) -> None:
    """Two conversations of different length, evicted from the engine; their next turns come together, and
    the first needs a little more than the restore of the second leaves free."""
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
    with holds.switched(QUERY_REPLY_FIRST, 1), holds.held(QUERY_REPLY):
        engine.add("long", turns["long"])
        engine.step_until(lambda: holds.reached(QUERY_REPLY) > 0, "the first one's answer is held")
        engine.add("short", turns["short"])
        for _ in range(50):
            engine.step()
    results = engine.finish(turns)
    assert {name: result.tokens for name, result in results.items()} == controls
    assert [results[name].cached for name in ("long", "short")] == [1888, 1472]
    engine.settle()
    engine.manager.assert_drained()
