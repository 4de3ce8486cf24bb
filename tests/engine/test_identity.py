"""Pages of one model, dtype or block size never serve another, however alike the configurations are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.engine import Engine
from support.manager import Manager
from support.models import tiny_model
from support.prompts import restorable_tokens

TOKENS = 300
OTHERS: dict[str, dict[str, Any]] = {
    "weights": {"model": 8},  # seed
    "dtype": {"options": {"dtype": "float32"}},
    "block_size": {"block_tokens": 64, "blocks": 64},
}


@pytest.mark.parametrize("difference", OTHERS)
def test_never_serves_an_engine_that_differs_in(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    new_prompt: Callable[..., list[int]],
    difference: str,
) -> None:
    other = dict(OTHERS[difference])
    if "model" in other:
        other["model"] = tiny_model(other["model"])
    tokens = new_prompt(TOKENS)
    control = new_engine(None, **other).run(tokens, 24)

    # A segment holds pages of one namespace.
    manager = new_manager(segment_size="32mib")
    first = new_engine(manager).run(tokens, 24)
    pages = manager.status()["pool"]["pages"]
    assert pages >= TOKENS // 32

    engine = new_engine(manager, **other)
    # After its self-test, which finds pages of its own.
    found = manager.counters()["ram_pages"]
    cold = engine.run(tokens, 24)
    assert (cold.cached, cold.tokens) == (0, control.tokens)
    assert manager.counters()["ram_pages"] == found
    # Its own pages lie beside the first one's, and serve it.
    assert manager.status()["pool"]["pages"] > pages
    engine.press_out()
    restored = engine.run(tokens, 24)
    assert restored.cached == restorable_tokens(TOKENS, engine.settings.block_tokens)
    assert restored.tokens == control.tokens

    # Control: an engine like the first finds the first one's pages.
    again = new_engine(manager).run(tokens, 24)
    assert (again.cached, again.tokens) == (restorable_tokens(TOKENS), first.tokens)
    if difference == "weights":
        assert first.tokens != control.tokens, "the two models must not agree by chance"
    manager.assert_drained()
