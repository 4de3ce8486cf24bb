"""The manager dies, restarts or stops answering at the worst moment: the engine serves on, with equal tokens,
and uses the cache again by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.engine import Engine, Result, scheduler_client
from support.holds import COMMIT, COPY_RESTORE, COPY_SAVE, Holds
from support.manager import Manager
from support.prompts import restorable_tokens
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 300
HIT = restorable_tokens(TOKENS)
FROZEN_S = 10.0


@pytest.fixture(scope="module")
def shared_engine(manager: Manager, new_engine: Callable[..., Engine]) -> Engine:
    return new_engine(manager, connector={"load_mode": "async", "verify_restore": "all"})


@pytest.fixture
def engine(shared_engine: Engine) -> Iterator[Engine]:
    """The engine of the module, with its manager running and its own cache empty, before and after."""
    yield shared_engine
    manager = shared_engine.manager
    assert manager is not None
    if not manager.is_running:
        manager.start()
    shared_engine.wait_active()


def serve(engine: Engine, tokens: list[int]) -> Result:
    """One request, without a look at the manager."""
    engine.add("served", tokens)
    return engine.finish(["served"])["served"]


def forget(engine: Engine) -> None:
    """The engine's own cache and memory hold nothing more, without other prompts in between."""
    engine.step_until(lambda: not engine.scheduler.has_requests(), "the engine is idle")
    engine.reset()
    engine.kv.poison()


def stored(engine: Engine, tokens: list[int]) -> Result:
    """Saves a prompt; the engine then holds no byte of it."""
    result = engine.run(tokens)
    assert result.cached == 0
    forget(engine)
    return result


def assert_serves_without_manager(engine: Engine, tokens: list[int], cold: Result) -> None:
    wait_until(lambda: not scheduler_client(engine).active, "the engine knows that the manager is gone")
    forget(engine)
    result = serve(engine, tokens)
    assert (result.cached, result.tokens) == (0, cold.tokens)


def assert_starts_afresh(engine: Engine, tokens: list[int], cold: Result) -> None:
    """With a new manager: attached by itself, no page of the old one, saved again, found again."""
    engine.wait_active()
    forget(engine)
    first = engine.run(tokens)
    assert (first.cached, first.tokens) == (0, cold.tokens), "a page of a manager that is gone"
    assert_hits(engine, tokens, cold)


def assert_hits(engine: Engine, tokens: list[int], cold: Result) -> None:
    engine.settle()
    forget(engine)
    again = engine.run(tokens)
    assert (again.cached, again.tokens) == (HIT, cold.tokens)
    engine.manager.assert_drained()


@pytest.mark.parametrize("kept", ["hold", "release"])
def test_manager_killed_in_the_middle_of_a_restore(
    engine: Engine, holds: Holds, new_prompt: Prompts, kept: str
) -> None:
    """The copy may go on from the old map, or be given up: equal tokens either way."""
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    with holds.held(COPY_RESTORE):
        engine.add("restored", tokens)
        engine.step_until(lambda: holds.reached(COPY_RESTORE) > 0, "the copy is held")
        engine.manager.kill()
        if kept == "hold":
            # The client sees the end of the connection while the copy still waits.
            client = scheduler_client(engine)
            engine.step_until(lambda: not client.connected, "the connection has ended")
            for _ in range(20):
                engine.step()
    result = engine.finish(["restored"])["restored"]
    assert result.tokens == cold.tokens
    assert_serves_without_manager(engine, tokens, cold)
    engine.manager.start()
    assert_starts_afresh(engine, tokens, cold)


@pytest.mark.parametrize("point", [COPY_SAVE, COMMIT])
def test_manager_killed_in_the_middle_of_a_save(
    engine: Engine, holds: Holds, new_prompt: Prompts, point: str
) -> None:
    tokens = new_prompt(TOKENS)
    with holds.held(point):
        engine.add("saved", tokens)
        cold = engine.finish(["saved"])["saved"]
        engine.step_until(lambda: holds.reached(point) > 0, f"{point} is held")
        assert engine.manager.status()["save"]["inflight_bytes"] > 0
        engine.manager.kill()
    assert_serves_without_manager(engine, tokens, cold)
    engine.manager.start()
    assert_starts_afresh(engine, tokens, cold)


def test_two_restarts_in_a_row(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    boots = {scheduler_client(engine).boot}
    engine.manager.kill()
    engine.manager.start()
    # The engine may be in the middle of its attach.
    engine.manager.kill()
    engine.manager.start()
    assert_starts_afresh(engine, tokens, cold)
    boots.add(scheduler_client(engine).boot)
    engine.manager.restart()
    assert_starts_afresh(engine, tokens, cold)
    boots.add(scheduler_client(engine).boot)
    assert len(boots) == 3


def test_restart_while_a_request_decodes(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    control = engine.run(tokens, 200)
    forget(engine)
    engine.manager.drop_memory()
    engine.add("long", tokens, 200)
    engine.step_until(lambda: engine.generated("long") > 20, "it decodes")
    engine.manager.kill()
    engine.step_until(lambda: engine.generated("long") > 60, "it goes on")
    engine.manager.start()
    client = scheduler_client(engine)
    seen_active = engine.step_until(lambda: client.active or engine.request("long") is None, "attached")
    assert seen_active
    assert engine.finish(["long"])["long"].tokens == control.tokens
    engine.wait_active()
    engine.settle()
    engine.manager.assert_drained()


def test_manager_frozen_for_ten_seconds(engine: Engine, new_prompt: Prompts) -> None:
    """It holds its connections and answers nothing. Requests wait for a lookup's deadline at most."""
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    fresh = [new_prompt(TOKENS, 1 + index) for index in range(100)]
    saved = engine.manager.counters()["committed_pages"]
    engine.manager.freeze()
    try:
        deadline = time.monotonic() + FROZEN_S
        served = 0
        while time.monotonic() < deadline:
            result = serve(engine, tokens)
            assert (result.cached, result.tokens) == (0, cold.tokens)
            assert serve(engine, fresh[served]).cached == 0
            served += 1
            forget_frozen(engine)
        assert served >= 2
    finally:
        engine.manager.thaw()
    engine.wait_active()
    assert_hits(engine, tokens, cold)
    # What was computed in between is saved from now on.
    assert engine.run(new_prompt(TOKENS, 200)).cached == 0
    engine.settle()
    assert engine.manager.counters()["committed_pages"] > saved
    engine.manager.assert_drained()


def forget_frozen(engine: Engine) -> None:
    """As `forget`; blocks that a save may still read are not poisoned."""
    engine.step_until(lambda: not engine.scheduler.has_requests(), "the engine is idle")
    engine.reset()


def test_manager_killed_in_the_middle_of_a_restore_inside_the_forward_pass(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], holds: Holds, new_prompt: Prompts
) -> None:
    """The engine's own thread waits for the copy while the manager dies."""
    manager = new_manager()
    connector = {"load_mode": "sync", "verify_restore": "all", "layer_wait_ms": 60_000}
    engine = new_engine(manager, connector=connector)
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    reached = threading.Event()

    def kill_in_the_middle() -> None:
        try:
            holds.wait_reached(COPY_RESTORE)
            reached.set()
            manager.kill()
        finally:
            holds.release(COPY_RESTORE)

    killer = threading.Thread(target=kill_in_the_middle)
    holds.hold(COPY_RESTORE)
    killer.start()
    result = serve(engine, tokens)
    killer.join()
    assert reached.is_set()
    assert result.tokens == cold.tokens
    assert_serves_without_manager(engine, tokens, cold)
    manager.start()
    assert_starts_afresh(engine, tokens, cold)


def test_engine_started_before_the_manager(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], new_prompt: Prompts
) -> None:
    manager = new_manager()
    manager.stop()
    engine = new_engine(manager, connector={"verify_restore": "all"}, wait_active=False)
    tokens = new_prompt(TOKENS)
    cold = serve(engine, tokens)
    assert cold.cached == 0
    assert not scheduler_client(engine).connected
    assert_serves_without_manager(engine, tokens, cold)
    manager.start()
    assert_starts_afresh(engine, tokens, cold)
