"""A hit in the engine's own cache that is longer than the manager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine
from support.lookups import count_lookups
from support.manager import Manager


@pytest.mark.parametrize("load_mode", ["sync", "async"])
def test_case_a05_engine_holds_more_than_the_manager(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    new_prompt: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
    load_mode: str,
) -> None:
    """A prompt of 25 blocks, twenty of them in the engine and ten in the manager: nothing is left to load,
    which is zero."""
    engine = new_engine(new_manager(), connector={"load_mode": load_mode})
    tokens = new_prompt(800)
    cold = engine.run(tokens)
    engine.press_out()
    engine.manager.drop_memory()
    engine.run(tokens[:641])
    engine.manager.drop_memory()
    engine.run(tokens[:321])
    assert engine.manager.status()["pool"]["pages"] == 10

    lookups = count_lookups(engine, monkeypatch)
    restored = engine.manager.counters()["restored_pages"]
    engine.add("again", tokens)
    steps = 0
    while engine.request("again").num_computed_tokens == 0:
        engine.step()
        steps += 1
        assert steps < 20, "the engine spins on the lookup"
    result = engine.finish(["again"])["again"]
    assert (result.cached, result.tokens) == (640, cold.tokens)
    assert [answer for _, answer in lookups if answer is not None] == [0]
    assert engine.manager.counters()["restored_pages"] == restored
    engine.settle()
    engine.manager.assert_drained()
