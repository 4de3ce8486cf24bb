"""How every public fault case ends."""

from __future__ import annotations

from collections.abc import Sequence

from support.engine import Engine, Result, scheduler_client
from support.prompts import restorable_tokens


def assert_case_end(engine: Engine, tokens: list[int], control: Result | Sequence[int]) -> None:
    """Three steps: nothing is held any more; one more request with the prefix is a hit with the control's
    tokens; engine and manager are healthy. The prompt's pages must be in the manager."""
    manager = engine.manager
    assert manager is not None
    expected = control.tokens if isinstance(control, Result) else list(control)
    engine.settle()
    manager.assert_drained()
    engine.reset()
    engine.kv.poison()
    again = engine.run(tokens, len(expected))
    assert (again.cached, again.tokens) == (restorable_tokens(len(tokens)), expected)
    manager.assert_drained()
    assert engine.free_blocks == engine.settings.blocks - 1
    assert manager.is_running
    assert manager.get("/health")
    assert manager.active_instances() == 1
    assert scheduler_client(engine).active
