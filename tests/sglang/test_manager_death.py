"""The manager dies, restarts or stops answering: the engine serves on, with equal tokens, and uses the cache
again by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.holds import COPY_RESTORE, COPY_SAVE
from support.manager import Manager
from support.sglang import Answer, Sglang, restorable
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 400
HIT = restorable(TOKENS)


@pytest.fixture(scope="module")
def shared_engine(manager: Manager, new_engine: Callable[..., Sglang]) -> Sglang:
    return new_engine(manager)


@pytest.fixture
def engine(shared_engine: Sglang) -> Iterator[Sglang]:
    """The engine of the module, with its manager running before and after."""
    yield shared_engine
    if not shared_engine.manager.is_running:
        shared_engine.manager.start()
    shared_engine.wait_active()


def stored(engine: Sglang, tokens: list[int]) -> Answer:
    """Runs a prompt, which is then in the manager and no longer in the engine."""
    answer = engine.run(tokens)
    engine.press_out()
    return answer


def assert_serves_afresh(engine: Sglang, tokens: list[int], cold: Answer) -> None:
    """With a new manager: active by itself, no page of the old one, saved again, found again."""
    engine.wait_active()
    engine.press_out()
    first = engine.run(tokens)
    assert (first.local, first.restored, first.tokens) == (0, 0, cold.tokens)
    engine.press_out()
    again = engine.run(tokens)
    assert (again.restored, again.tokens) == (HIT, cold.tokens)
    engine.manager.assert_drained()


def test_manager_killed_in_the_middle_of_a_restore(engine: Sglang, new_prompt: Prompts) -> None:
    """What was promised lands from the map that the engine still has."""
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    holds = engine.holds
    with holds.held(COPY_RESTORE):
        loading = engine.add(tokens)
        holds.wait_reached(COPY_RESTORE)
        engine.manager.kill()
    assert loading.result().tokens == cold.tokens
    assert engine.is_running
    engine.flush()
    assert engine.run(tokens).tokens == cold.tokens, "without a manager"
    engine.manager.start()
    assert_serves_afresh(engine, tokens, cold)


def test_manager_killed_in_the_middle_of_a_save(engine: Sglang, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    holds = engine.holds
    with holds.held(COPY_SAVE):
        saving = engine.add(tokens)
        holds.wait_reached(COPY_SAVE)
        engine.manager.kill()
        cold = saving.result()
    assert engine.is_running
    engine.flush()
    assert engine.run(tokens).tokens == cold.tokens, "without a manager"
    engine.manager.start()
    assert_serves_afresh(engine, tokens, cold)


def test_manager_stopped_and_restarted(engine: Sglang, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    engine.manager.restart()
    assert_serves_afresh(engine, tokens, cold)


def test_manager_frozen_while_requests_come(engine: Sglang, new_prompt: Prompts) -> None:
    """It holds its connections and answers nothing: a request waits for its lookup's deadline at most."""
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    engine.manager.freeze()
    try:
        for index in range(5):
            answer = engine.run(tokens)
            assert answer.tokens == cold.tokens
            assert answer.restored == 0
            assert engine.run(new_prompt(TOKENS, 1 + index)).restored == 0
    finally:
        engine.manager.thaw()
    wait_until(lambda: engine.manager.active_instances() == 1, "the engine is active")
    engine.press_out()
    again = engine.run(tokens)
    assert (again.restored, again.tokens) == (HIT, cold.tokens)
    engine.manager.assert_drained()


def test_engine_started_before_the_manager(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Sglang], new_prompt: Prompts
) -> None:
    manager = new_manager()
    manager.stop()
    engine = new_engine(manager, wait_active=False)
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens)
    assert cold.restored == 0
    manager.start()
    assert_serves_afresh(engine, tokens, cold)
