"""A clear that reaches every tier (case A-33): nothing that was saved before it is found after it, in memory,
on the SSD, or by a manager that starts anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.holds import QUERY_REPLY
from support.manager import Manager
from support.models import tiny_model
from support.sglang import Answer, Sglang, restorable
from support.sglang_end import assert_case_end
from support.sglang_ssd import leave_on_ssd, new_ssd_manager, wait_serving

Prompts = Callable[..., list[int]]
TOKENS = 400
HIT = restorable(TOKENS)
DEADLINE_MS = 30_000


@pytest.fixture(scope="module")
def manager(new_manager: Callable[..., Manager], tmp_path_factory: pytest.TempPathFactory) -> Manager:
    return new_ssd_manager(new_manager, tmp_path_factory)


@pytest.fixture(scope="module")
def engine(manager: Manager, new_engine: Callable[..., Sglang]) -> Sglang:
    return new_engine(manager, config={"lookup_deadline_ms": DEADLINE_MS})


def stored(engine: Sglang, tokens: list[int]) -> Answer:
    cold = engine.run(tokens)
    engine.press_out()
    return cold


def restart(engine: Sglang) -> int:
    """Another manager on the same directory; the pages that it finds there."""
    engine.manager.restart()
    wait_serving(engine.manager)
    engine.wait_active()
    return engine.manager.counters()["found_pages"]


@pytest.mark.parametrize("place", ["memory", "SSD", "SSD of a manager that was restarted"])
@pytest.mark.parametrize("is_cleared", [True, False], ids=["cleared", "control"])
def test_case_a33_nothing_is_found_after_a_clear(
    engine: Sglang, new_prompt: Prompts, place: str, is_cleared: bool
) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    if place != "memory":
        leave_on_ssd(engine)
    if is_cleared:
        assert engine.clear()
    if place.endswith("restarted"):
        assert (restart(engine) == 0) is is_cleared
    again = engine.run(tokens)
    assert (again.local, again.restored, again.tokens) == (0, 0 if is_cleared else HIT, cold.tokens)
    assert_case_end(engine, tokens, cold)


def test_case_a33_who_waits_for_pages_that_are_cleared_computes_them(
    engine: Sglang, new_prompt: Prompts
) -> None:
    tokens, manager = new_prompt(TOKENS), engine.manager
    cold = stored(engine, tokens)
    with manager.holds.held(QUERY_REPLY):
        waiting = engine.add(tokens)
        manager.holds.wait_reached(QUERY_REPLY)
        assert engine.clear()
    answer = waiting.result()
    assert (answer.restored, answer.tokens) == (0, cold.tokens)
    assert_case_end(engine, tokens, cold)


def test_case_a33_a_clear_that_nobody_confirms_is_no_success(engine: Sglang, new_prompt: Prompts) -> None:
    """The next manager hears of it before anything is asked of it."""
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    leave_on_ssd(engine)
    engine.manager.stop()
    assert not engine.clear()
    assert restart(engine) > 0
    answer = engine.run(tokens)
    assert (answer.restored, answer.tokens) == (0, cold.tokens)
    assert_case_end(engine, tokens, cold)


def test_case_a33_other_weights_find_nothing_of_the_first_ones(engine: Sglang, new_prompt: Prompts) -> None:
    """SGLang flushes its own cache after the update. Ours goes off: the last test of this engine."""
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    engine.update_weights(tiny_model())
    saved = engine.manager.counters()["committed_pages"]
    answer = engine.run(tokens)
    assert (answer.restored, answer.tokens) == (0, cold.tokens)
    engine.flush()
    assert engine.run(tokens).restored == 0
    assert engine.manager.counters()["committed_pages"] == saved
    engine.manager.assert_drained()
