"""What proves that the tests of restores can fail: wrong bytes that nobody checks change the output."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.holds import RESTORE_FAULT
from support.manager import Manager
from support.sglang import Sglang, restorable
from support.sglang_end import assert_case_end

Prompts = Callable[..., list[int]]
TOKENS = 400
GENERATED = 40


@pytest.fixture(scope="module")
def engine(manager: Manager, new_engine: Callable[..., Sglang]) -> Sglang:
    return new_engine(manager, config={"verify_restore": "off"})


@pytest.mark.parametrize("fault", ["zero", "skip"])
def test_zeroed_or_skipped_copy_changes_the_output(engine: Sglang, new_prompt: Prompts, fault: str) -> None:
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens, GENERATED)
    engine.press_out()
    with engine.holds.switched(RESTORE_FAULT, fault):
        wrong = engine.run(tokens, GENERATED)
    assert wrong.restored == restorable(TOKENS)
    assert wrong.tokens != cold.tokens
    # The pages in the manager are sound.
    assert_case_end(engine, tokens, cold)
