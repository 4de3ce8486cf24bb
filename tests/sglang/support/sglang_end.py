"""How every fault case ends."""

from __future__ import annotations

from collections.abc import Sequence

from support.sglang import Answer, Sglang, restorable


def assert_case_end(engine: Sglang, tokens: Sequence[int], control: Answer) -> None:
    """Three steps: nothing is held any more; one more request with the prefix is a hit with the control's
    tokens; engine and manager are healthy. The prompt's pages must be in the manager."""
    manager = engine.manager
    engine.settle()
    manager.assert_drained()
    engine.press_out()
    again = engine.run(tokens, len(control.tokens))
    assert (again.local, again.restored, again.tokens) == (0, restorable(len(tokens)), control.tokens)
    manager.assert_drained()
    assert engine.is_running
    assert manager.is_running
    assert manager.active_instances() == 1
