"""Waiting for another's restore is never for long, and stops nobody."""

from __future__ import annotations

from collections.abc import Callable

from support.engine import Engine
from support.holds import COPY_RESTORE, Holds
from support.manager import Manager
from support.prompts import restorable_tokens

Prompts = Callable[..., list[int]]
TOKENS = 300


def build(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    deadline_ms: int,
    **options: object,
) -> Engine:
    connector = {"load_mode": "async", "verify_restore": "all", "refuse_slow_restores": False}
    return new_engine(new_manager(), connector={**connector, "lookup_deadline_ms": deadline_ms}, **options)


def stored(engine: Engine, tokens: list[int]) -> list[int]:
    """The tokens that follow the prompt, whose pages are in the manager alone."""
    cold = engine.run(tokens).tokens
    engine.press_out()
    engine.kv.poison()
    return cold


def status(engine: Engine, name: str) -> str:
    return engine.request(name).status.name


def test_time_is_up(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], holds: Holds, new_prompt: Prompts
) -> None:
    engine = build(new_manager, new_engine, 300)
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    with holds.held(COPY_RESTORE):
        engine.add("first", tokens)
        engine.step_until(lambda: holds.reached(COPY_RESTORE) > 0, "the copy is held")
        engine.add("second", tokens)
        engine.step()
        assert status(engine, "second") == "WAITING"
        engine.step_until(
            lambda: status(engine, "second") == "WAITING_FOR_REMOTE_KVS", "it restores the pages itself"
        )
        assert status(engine, "first") == "WAITING_FOR_REMOTE_KVS"
    results = engine.finish(["first", "second"])
    assert [result.tokens for result in results.values()] == [cold] * 2
    engine.settle()
    engine.manager.assert_drained()


def test_urgent_request_waits_for_one_of_low_priority(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], holds: Holds, new_prompt: Prompts
) -> None:
    """The scan comes to the urgent one first, when the other's blocks are not in the engine's cache yet."""
    engine = build(new_manager, new_engine, 60_000, options={"scheduling_policy": "priority"})
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    with holds.held(COPY_RESTORE):
        engine.add("low", tokens, priority=5)
        engine.step_until(lambda: holds.reached(COPY_RESTORE) > 0, "the copy is held")
        engine.add("urgent", tokens, priority=0)
        engine.step()
        assert status(engine, "urgent") == "WAITING"
    results = engine.finish(["low", "urgent"])
    assert [result.tokens for result in results.values()] == [cold] * 2
    assert engine.scheduler.connector._scheduler._sharing.counters["shared_restores"] == 1
    engine.settle()
    engine.manager.assert_drained()


def test_urgent_request_goes_on_when_the_scan_does_not_reach_the_other(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], holds: Holds, new_prompt: Prompts
) -> None:
    """There is one place to run in, and each time a request of middle priority is before the one whose
    restore is over."""
    engine = build(
        new_manager, new_engine, 600_000, options={"scheduling_policy": "priority"}, max_num_seqs=1
    )
    tokens, other = new_prompt(TOKENS), new_prompt(40, 1)
    cold = stored(engine, tokens)
    with holds.held(COPY_RESTORE):
        engine.add("low", tokens, priority=9)
        engine.step_until(lambda: holds.reached(COPY_RESTORE) > 0, "the copy is held")
        engine.add("urgent", tokens, priority=0)
        engine.step()
        engine.add("middle-0", other, 2, priority=5)
        engine.step_until(lambda: status(engine, "middle-0") == "RUNNING", "it runs before the urgent one")
    for index in range(1, 100):
        if engine.request("urgent") is None or status(engine, "urgent") != "WAITING":
            break
        engine.add(f"middle-{index}", other, 2, priority=5)
        engine.finish([f"middle-{index - 1}"])
    assert engine.request("low") is not None, "nobody came to it"
    assert index < 10
    assert engine.finish(["urgent"])["urgent"].tokens == cold
    assert engine.finish(["low"])["low"].tokens == cold
    engine.step_until(lambda: not engine.scheduler.has_requests(), "all have ended")
    engine.settle()
    engine.manager.assert_drained()


def test_many_prefixes_in_a_small_engine(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], new_prompt: Prompts
) -> None:
    """More requests than fit, of prefixes that take turns, with blocks for two at once: all of them end, with
    preemption and without."""
    engine = build(new_manager, new_engine, 60_000, blocks=30, max_model_len=512)
    prefixes = [new_prompt(TOKENS, index) for index in range(3)]
    prompts = {f"r-{index}": [*prefixes[index % 3], 10 + index] for index in range(12)}
    cold = {}
    for name, tokens in prompts.items():
        engine.reset()
        engine.manager.drop_memory()
        cold[name] = engine.run(tokens, 60).tokens
    engine.generate(prefixes)
    engine.press_out()
    for name, tokens in prompts.items():
        engine.add(name, tokens, 60)
    results = engine.finish(prompts)
    assert {name: result.tokens for name, result in results.items()} == cold
    assert max(result.cached for result in results.values()) == restorable_tokens(TOKENS + 1)
    engine.settle()
    engine.manager.assert_drained()
    assert engine.free_blocks == engine.settings.blocks - 1
