"""An engine that slept saves and restores as before, in memory that was unmapped meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benches.gpu.process import wait_until
from benches.gpu.prompts import BLOCK_TOKENS, restorable_tokens
from benches.gpu.settings import GIB
from benches.gpu.systems import System
from support import Engines, ask, forget, hit, ready, wait_active, wait_drained

Prompts = Callable[..., list[int]]
TOKENS = 2048
SMALL = {"kv_cache_bytes": 2 * GIB, "max_model_tokens": 10_000}


@pytest.fixture(scope="module")
def fleet(engines: Engines) -> dict[str, System]:
    """OrbitKV, and with restores that are spoiled; each with a cache of its own, and sleep mode on."""
    if engines.settings.is_dry_run:
        pytest.skip("sleep mode needs a GPU")
    begun = {
        name: engines.begin(engines.new_manager(), module=module, can_sleep=True, **SMALL)
        for name, module in (("sound", "orbitkv.vllm"), ("zeroed", "zeroing"))
    }
    return {name: ready(system) for name, system in begun.items()}


def nap(system: System, level: int) -> None:
    """Puts it to sleep and wakes it up."""
    system.engine.call("sleep", level, within_s=120)
    # Before its memory was unmapped the client had ended.
    wait_until(lambda: system.manager.active_instances() == 0, "the engine has detached")
    system.engine.call("wake_up", within_s=120)
    wait_active(system.manager)


@pytest.mark.parametrize("level", [1, 2])
def test_pages_are_restored_into_memory_that_was_mapped_anew(
    fleet: dict[str, System], new_prompt: Prompts, level: int
) -> None:
    engine = fleet["sound"]
    tokens = new_prompt(TOKENS, level)
    expected = hit(engine, tokens)
    forget(engine, tokens)
    assert ask(engine, tokens)["tokens"] == expected
    nap(engine, level)
    # Falling asleep, the engine has its connector forget what was saved: weights may be others by now.
    assert ask(engine, tokens)["cached"] == 0
    forget(engine, tokens)
    before = engine.manager.status()["counters"]["restored_pages"]
    answer = ask(engine, tokens)
    assert (answer["cached"], answer["tokens"]) == (restorable_tokens(TOKENS), expected)
    restored = engine.manager.status()["counters"]["restored_pages"] - before
    assert restored == restorable_tokens(TOKENS) // BLOCK_TOKENS
    wait_drained(engine.manager)


def test_falling_asleep_right_after_a_request_ends_its_saves(
    fleet: dict[str, System], new_prompt: Prompts
) -> None:
    engine = fleet["sound"]
    engine.engine.call("ask", new_prompt(9000), within_s=120)
    nap(engine, 1)
    wait_drained(engine.manager)
    tokens = new_prompt(TOKENS, 1)
    expected = hit(engine, tokens)
    forget(engine, tokens)
    answer = ask(engine, tokens)
    assert (answer["cached"], answer["tokens"]) == (restorable_tokens(TOKENS), expected)


def test_control_a_spoiled_restore_after_waking_up_is_seen(
    fleet: dict[str, System], new_prompt: Prompts
) -> None:
    engine = fleet["zeroed"]
    tokens = new_prompt(TOKENS)
    nap(engine, 1)
    expected = hit(engine, tokens)
    forget(engine, tokens)
    spoiled = ask(engine, tokens)
    assert spoiled["cached"] == restorable_tokens(TOKENS)
    assert spoiled["tokens"] != expected
