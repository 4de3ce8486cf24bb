"""Clients that go away in every place where a request can be (cases A-09 and A-13): nothing stays held."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.gauges import not_drained
from support.holds import COPY_RESTORE, COPY_SAVE, QUERY_REPLY
from support.manager import Manager
from support.sglang import Answer, Sglang, restorable
from support.sglang_end import assert_case_end
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 400
ROUNDS = 500
# Longer than a test holds an answer.
DEADLINE_MS = 30_000


@pytest.fixture(scope="module")
def engine(manager: Manager, new_engine: Callable[..., Sglang]) -> Sglang:
    return new_engine(manager, config={"lookup_deadline_ms": DEADLINE_MS})


def stored(engine: Sglang, tokens: list[int]) -> Answer:
    """Runs a prompt, which is then in the manager and no longer in the engine."""
    answer = engine.run(tokens)
    engine.press_out()
    return answer


def test_case_a09_abort_while_the_lookup_waits(engine: Sglang, new_prompt: Prompts) -> None:
    tokens, others = new_prompt(TOKENS), new_prompt(TOKENS, 1)
    cold = stored(engine, tokens)
    holds = engine.manager.holds
    with holds.held(QUERY_REPLY):
        waiting = engine.add(tokens)
        holds.wait_reached(QUERY_REPLY)
        # Another one, with nothing to look up, is not kept behind it.
        assert engine.run(others[:32]).restored == 0
        assert not waiting.done()
        engine.abort(waiting.name)
        assert waiting.result().finish_reason == "abort"
        wait_until(lambda: not not_drained(engine.manager.status()), "nothing is held for it")
    assert_case_end(engine, tokens, cold)


def test_case_a09_abort_during_the_restore(engine: Sglang, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    holds = engine.holds
    with holds.held(COPY_RESTORE):
        loading = engine.add(tokens, 200)
        holds.wait_reached(COPY_RESTORE)
        assert engine.manager.status()["load"]["inflight_bytes"] > 0
        engine.abort(loading.name)
    loading.result()
    assert_case_end(engine, tokens, cold)


def test_case_a09_abort_while_its_pages_are_saved(engine: Sglang, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    holds = engine.holds
    cold = engine.run(tokens, extra_key="control")
    with holds.held(COPY_SAVE):
        saving = engine.add(tokens, 400)
        holds.wait_reached(COPY_SAVE)
        assert engine.manager.status()["save"]["inflight_bytes"] > 0
        engine.abort(saving.name)
        assert saving.result().finish_reason == "abort"
    assert_case_end(engine, tokens, cold)


def test_case_a09_abort_while_decoding_after_a_restore(engine: Sglang, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    before = engine.manager.counters()["restored_pages"]
    decoding = engine.add(tokens, 2000)
    wait_until(lambda: engine.manager.counters()["restored_pages"] > before, "it was restored")
    engine.abort(decoding.name)
    assert decoding.result().finish_reason == "abort"
    assert_case_end(engine, tokens, cold)


def test_case_a09_five_hundred_aborts_leave_nothing(engine: Sglang, new_prompt: Prompts) -> None:
    """At every moment of their lives, as the clock has it: some wait for a lookup, some load, some decode."""
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    ended = []
    for index in range(0, ROUNDS, 10):
        pending = [
            engine.add(tokens if each % 2 else new_prompt(TOKENS, each), 8)
            for each in range(index, index + 10)
        ]
        for one in pending:
            engine.abort(one.name)
        ended += [one.result().finish_reason for one in pending]
        if index % 100 == 0:
            engine.flush()
    assert len(ended) == ROUNDS
    assert ended.count("abort") > ROUNDS // 2, "most were aborted before they ended"
    engine.settle()
    assert_case_end(engine, tokens, cold)


def test_case_a13_a_request_that_waits_long_is_looked_up_once(engine: Sglang, new_prompt: Prompts) -> None:
    """The scheduler matches a waiting request at every pass; that takes no second hold."""
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    manager = engine.manager
    before = manager.counters()["queries"]
    with manager.holds.held(QUERY_REPLY):
        waiting = engine.add(tokens)
        manager.holds.wait_reached(QUERY_REPLY)
        # Passes of the scheduler, each with a prefill and some steps of decoding.
        for index in range(20):
            engine.run(new_prompt(40, 1 + index), 4)
        assert not waiting.done()
        assert manager.counters()["queries"] - before == 1
    answer = waiting.result()
    assert (answer.restored, answer.tokens) == (restorable(TOKENS), cold.tokens)
    assert manager.counters()["queries"] - before == 1
    assert_case_end(engine, tokens, cold)
