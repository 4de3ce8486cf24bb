"""Restores between steps: several at once, and none in the way of others."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from support.engine import Engine
from support.holds import COPY_RESTORE, COPY_SAVE, Holds
from support.manager import Manager
from support.prompts import restorable_tokens

Prompts = Callable[..., list[int]]
PAGE_BYTES = 64 << 10


@pytest.fixture(scope="module")
def engine(manager: Manager, new_engine: Callable[..., Engine]) -> Engine:
    return new_engine(manager, connector={"load_mode": "async", "verify_restore": "all"})


def is_loading(engine: Engine, name: str) -> bool:
    return engine.request(name).status.name == "WAITING_FOR_REMOTE_KVS"


def test_four_restores_in_flight_at_once(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    prompts = {f"restore-{index}": new_prompt(200 + 50 * index, index) for index in range(4)}
    cold = {name: engine.run(tokens).tokens for name, tokens in prompts.items()}
    engine.press_out()
    pages = sum(restorable_tokens(len(tokens)) // 32 for tokens in prompts.values())
    with holds.held(COPY_RESTORE):
        for name, tokens in prompts.items():
            engine.add(name, tokens)
        engine.step_until(lambda: all(is_loading(engine, name) for name in prompts), "all four are loading")
        holds.wait_reached(COPY_RESTORE, 4)
        engine.step_until(
            lambda: engine.manager.status()["load"]["inflight_bytes"] >= pages * PAGE_BYTES,
            "the manager knows of all four copies",
        )
        assert [engine.generated(name) for name in prompts] == [0, 0, 0, 0]
    results = engine.finish(prompts)
    assert {name: result.tokens for name, result in results.items()} == cold
    assert sum(result.cached for result in results.values()) == pages * 32
    engine.settle()
    engine.manager.assert_drained()


def test_others_decode_while_copies_are_held(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    stored, other = new_prompt(400, 0), new_prompt(100, 1)
    cold_stored, cold_other = engine.run(stored), engine.run(other, 400)
    engine.press_out()
    engine.manager.drop_memory()
    engine.run(stored)
    engine.press_out()

    with holds.held(COPY_RESTORE), holds.held(COPY_SAVE):
        engine.add("decoding", other, 400)
        engine.step_until(lambda: engine.generated("decoding") > 0, "the other one decodes")
        engine.add("held", stored)
        engine.step_until(lambda: holds.reached(COPY_RESTORE) > 0, "the restore is held")
        before, until = engine.generated("decoding"), time.monotonic() + 0.5
        while time.monotonic() < until and engine.generated("decoding") < 390:
            engine.step()
        assert engine.generated("decoding") - before >= 32
        assert (engine.generated("held"), is_loading(engine, "held")) == (0, True)
        holds.wait_reached(COPY_SAVE, meanwhile=engine.step)
    results = engine.finish(["held", "decoding"])
    assert results["held"].tokens == cold_stored.tokens
    assert results["held"].cached == restorable_tokens(400)
    assert results["decoding"].tokens == cold_other.tokens
    engine.settle()
    engine.manager.assert_drained()
