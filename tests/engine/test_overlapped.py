"""Engines that schedule a step before they have seen the last one's output: what a restore inside a step that
fails has spoiled is never delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from support.engine import Engine
from support.holds import FAIL_PAGE, Holds
from support.manager import Manager
from support.overlapped import overlapped_scheduling
from support.prompts import restorable_tokens

Prompts = Callable[..., list[int]]
TOKENS, NEW_TOKENS = 300, 40
PAGES = restorable_tokens(TOKENS) // 32


@pytest.fixture(scope="module", params=["sync", "async"])
def engine(
    request: pytest.FixtureRequest, new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]
) -> Iterator[Engine]:
    with overlapped_scheduling():
        engine = new_engine(new_manager(), connector={"load_mode": request.param, "verify_restore": "all"})
        assert engine.core.batch_queue is not None, "steps do not overlap"
        yield engine
        engine.close()


def saved(engine: Engine, tokens: list[int]) -> list[int]:
    """Has a prompt computed and saved, and lets nothing of it stay in the engine; what follows it."""
    cold = engine.run(tokens, NEW_TOKENS).tokens
    engine.press_out()
    engine.kv.poison()
    return cold


def assert_restored(engine: Engine, tokens: list[int], cold: list[int]) -> None:
    """It comes back whole, from the manager alone."""
    engine.manager.assert_drained()
    engine.press_out()
    again = engine.run(tokens, NEW_TOKENS)
    assert (again.cached, again.tokens) == (restorable_tokens(TOKENS), cold)


def test_a_restored_prompt_generates_what_a_computed_one_does(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    assert_restored(engine, tokens, saved(engine, tokens))


@pytest.mark.parametrize("failed", [1, 5, PAGES])
def test_one_failed_page_is_recomputed(
    engine: Engine, holds: Holds, new_prompt: Prompts, failed: int
) -> None:
    tokens = new_prompt(TOKENS)
    cold = saved(engine, tokens)
    with holds.switched(FAIL_PAGE, failed):
        assert engine.run(tokens, NEW_TOKENS).tokens == cold
        assert "fail_page" not in holds.ask("list"), "the page never failed"
    assert_restored(engine, tokens, cold)


def test_others_in_the_step_go_on(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    prompts = [new_prompt(TOKENS, index) for index in range(3)]
    cold = [saved(engine, tokens) for tokens in prompts]
    engine.add("decodes", prompts[2], NEW_TOKENS)
    engine.step_until(lambda: engine.generated("decodes") > 2, "it decodes")
    with holds.switched(FAIL_PAGE, 2):
        for name, tokens in zip("ab", prompts, strict=False):
            engine.add(name, tokens, NEW_TOKENS)
        results = engine.finish(["a", "b", "decodes"])
        assert "fail_page" not in holds.ask("list"), "the page never failed"
    assert [results[name].tokens for name in ("a", "b", "decodes")] == cold
    engine.settle()
    engine.manager.assert_drained()


def test_one_that_lost_its_blocks_meanwhile_samples_again(
    engine: Engine, holds: Holds, new_prompt: Prompts
) -> None:
    """It is preempted for want of memory when its step has run, and nobody has seen the output."""
    tokens = new_prompt(TOKENS)
    cold = saved(engine, tokens)
    with holds.switched(FAIL_PAGE, 3):
        engine.add("a", tokens, NEW_TOKENS)
        engine.step_until(lambda: "fail_page" not in holds.ask("list"), "the page failed")
    request = engine.request("a")
    if request in engine.scheduler.running:
        assert engine.generated("a") == 0
        engine.scheduler.running.remove(request)
        engine.scheduler._preempt_request(request, 0.0)
    assert engine.finish(["a"])["a"].tokens == cold
    engine.settle()
    assert_restored(engine, tokens, cold)


def test_control_of_vllm_alone(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    holds: Holds,
    new_prompt: Prompts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where such a request goes on running, it generates something else, or the engine dies of it."""
    from orbitkv.vllm import recovery

    with overlapped_scheduling():
        engine = new_engine(new_manager(), connector={"load_mode": "sync", "verify_restore": "all"})
        monkeypatch.setattr(recovery, "_preempt_holders", lambda *_: set())
        tokens = new_prompt(TOKENS)
        cold = saved(engine, tokens)
        seen: list[int] | None = None
        with holds.switched(FAIL_PAGE, 5), suppress(IndexError):
            seen = engine.run(tokens, NEW_TOKENS).tokens
        assert seen != cold
        engine.close()
