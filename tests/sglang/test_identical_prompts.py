"""Four identical prompts of whole pages at once, after the engine has restarted: all finish, with equal
tokens, and their pages are restored once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.manager import Manager
from support.sglang import PAGE_TOKENS, Sglang
from support.sglang_ssd import leave_on_ssd, new_ssd_manager

Prompts = Callable[..., list[int]]
TOKENS = 10 * PAGE_TOKENS
PAGES = TOKENS // PAGE_TOKENS - 1
ALIKE = 4
GENERATED = 24
# Prompt tokens that the engine did not compute because they were loaded, in its own metrics.
RESTORED, HOST_HIT = "sglang:prefill_effective_tokens_total", 'mode="host_hit"'


@pytest.fixture(scope="module")
def manager(new_manager: Callable[..., Manager], tmp_path_factory: pytest.TempPathFactory) -> Manager:
    return new_ssd_manager(new_manager, tmp_path_factory)


@pytest.fixture(scope="module")
def engine(manager: Manager, new_engine: Callable[..., Sglang]) -> Sglang:
    return new_engine(manager, config={"lookup_deadline_ms": 30_000})


@pytest.mark.parametrize("source", ["memory", "ssd"])
def test_four_identical_prompts_after_a_restart_of_the_engine(
    engine: Sglang, new_prompt: Prompts, source: str
) -> None:
    tokens, manager = new_prompt(TOKENS), engine.manager
    cold = engine.run(tokens, GENERATED)
    if source == "ssd":
        leave_on_ssd(engine)
    engine.settle()
    engine.restart()
    before, restored = manager.counters(), engine.metric(RESTORED, HOST_HIT)
    answers = engine.run_all([tokens] * ALIKE, GENERATED)
    assert [answer.tokens for answer in answers] == [cold.tokens] * ALIKE
    assert all(answer.local + answer.restored == PAGES * PAGE_TOKENS for answer in answers)
    # Whoever comes second finds the pages in the engine.
    assert sum(answer.restored for answer in answers) == PAGES * PAGE_TOKENS
    after = manager.counters()
    assert engine.metric(RESTORED, HOST_HIT) - restored == PAGES * PAGE_TOKENS
    assert after["read_pages"] - before["read_pages"] == (PAGES if source == "ssd" else 0)
    manager.assert_drained()


def test_without_the_pages_all_four_compute(engine: Sglang, new_prompt: Prompts) -> None:
    """The control: no page, no restore, and the same tokens."""
    tokens = new_prompt(TOKENS)
    (alone, *_) = engine.run_all([tokens] * ALIKE, GENERATED)
    engine.press_out()
    answers = engine.run_all([tokens] * ALIKE, GENERATED, extra_key="nobody saved this")
    assert [answer.tokens for answer in answers] == [alone.tokens] * ALIKE
    assert sum(answer.restored for answer in answers) == 0
