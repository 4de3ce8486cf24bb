"""Clients that go away in every place where a request can wait (case A-07: it must never hurt the engine)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine, Result
from support.holds import COPY_RESTORE, COPY_SAVE, QUERY_REPLY, Holds
from support.manager import Manager
from support.prompts import restorable_tokens

Prompts = Callable[..., list[int]]
TOKENS = 300


@pytest.fixture(scope="module")
def engine(manager: Manager, new_engine: Callable[..., Engine]) -> Engine:
    # Lookups wait as long as a test holds their answers.
    connector = {"load_mode": "async", "verify_restore": "all", "lookup_deadline_ms": 60_000}
    return new_engine(manager, connector=connector)


def stored(engine: Engine, tokens: list[int]) -> Result:
    """Runs a prompt, which is then in the manager and no longer in the engine."""
    result = engine.run(tokens)
    engine.press_out()
    return result


def assert_hits_again(engine: Engine, tokens: list[int], cold: Result) -> None:
    """The end of every case: nothing is left, and the prefix still serves."""
    engine.settle()
    engine.manager.assert_drained()
    assert engine.free_blocks == engine.settings.blocks - 1
    engine.press_out()
    again = engine.run(tokens)
    assert (again.cached, again.tokens) == (restorable_tokens(len(tokens)), cold.tokens)
    engine.manager.assert_drained()


def test_case_a07_abort_while_the_lookup_waits(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    holds = engine.manager.holds
    with holds.held(QUERY_REPLY):
        engine.add("aborted", tokens)
        engine.step_until(lambda: holds.reached(QUERY_REPLY) > 0, "the answer is held")
        assert engine.request("aborted").num_computed_tokens == 0
        engine.abort("aborted")
        engine.step()
        assert engine.request("aborted") is None
        # The answer is still on its way, and nobody waits for it.
        engine.settle()
        engine.manager.assert_drained()
    assert_hits_again(engine, tokens, cold)


def test_case_a07_abort_during_the_restore(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    free = engine.free_blocks
    with holds.held(COPY_RESTORE):
        engine.add("aborted", tokens)
        engine.step_until(lambda: holds.reached(COPY_RESTORE) > 0, "the copy is held")
        engine.abort("aborted")
        for _ in range(5):
            engine.step()
        # Interest is over, custody is not: the copy may still write these blocks, and read those pages.
        assert engine.free_blocks <= free - restorable_tokens(TOKENS) // 32
        assert engine.manager.status()["load"]["inflight_bytes"] > 0
    assert_hits_again(engine, tokens, cold)


def test_case_a07_abort_while_saving(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    engine.manager.drop_memory()
    with holds.held(COPY_SAVE):
        engine.add("aborted", tokens, 200)
        engine.step_until(lambda: holds.reached(COPY_SAVE) > 0, "the copy is held")
        assert engine.manager.status()["save"]["inflight_bytes"] > 0
        engine.abort("aborted")
        for _ in range(5):
            engine.step()
        # The engine has its blocks back at once: a save never delays the end of a request.
        assert engine.free_blocks == engine.settings.blocks - 1
    assert_hits_again(engine, tokens, cold)


def test_case_a07_abort_while_decoding_after_a_restore(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    engine.add("aborted", tokens, 200)
    engine.step_until(lambda: engine.generated("aborted") > 10, "it decodes")
    engine.abort("aborted")
    assert_hits_again(engine, tokens, cold)
