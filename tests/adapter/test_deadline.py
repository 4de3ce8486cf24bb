"""How long a lookup waits for its answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orbitkv.vllm import lookup

TOKENS = list(range(100, 118))  # 4 full blocks of 4 tokens and 2 tokens more


def request(mini: Any, name: str) -> Any:
    return mini.FakeRequest(name, list(TOKENS))


@pytest.mark.parametrize("late_ms", [20, 200])
def test_an_answer_that_comes_at_the_deadline_counts(
    make_engine: Any, mini: Any, manager: Any, monkeypatch: pytest.MonkeyPatch, late_ms: int
) -> None:
    """The manager answers at the deadline with what is ready, and its answer takes a while."""
    engine = make_engine(lookup_deadline_ms=100)
    engine.compute_and_save(request(mini, "a"))
    now_s = 1000.0
    monkeypatch.setattr(lookup, "time", SimpleNamespace(monotonic=lambda: now_s))
    manager.hold_queries = True
    b = engine.add(request(mini, "b"))
    assert engine.match(b) == (None, False)
    assert manager.queries[-1].deadline_ms == 100
    now_s += (100 + late_ms) / 1000
    is_late = late_ms > 50
    assert engine.match(b) == ((0, False) if is_late else (None, False))
    manager.hold_queries = False
    assert engine.match(b) == ((0, False) if is_late else (16, False))
    engine.finish(b)
    assert manager.leases == 0
