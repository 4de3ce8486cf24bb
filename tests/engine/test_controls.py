"""What proves that the tests of restores can fail: wrong bytes that nobody checks change the output."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine
from support.holds import RESTORE_FAULT, Holds
from support.manager import Manager
from support.pool import flip_byte
from support.prompts import restorable_tokens

Prompts = Callable[..., list[int]]
TOKENS = 300
GENERATED = 40


@pytest.fixture(scope="module", params=["sync", "async"])
def engine(
    request: pytest.FixtureRequest, new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]
) -> Engine:
    return new_engine(new_manager(), connector={"load_mode": request.param, "verify_restore": "off"})


@pytest.mark.parametrize("fault", ["zero", "skip"])
def test_zeroed_or_skipped_copy_changes_the_output(
    engine: Engine, holds: Holds, new_prompt: Prompts, fault: str
) -> None:
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens, GENERATED)
    engine.press_out()
    with holds.switched(RESTORE_FAULT, fault):
        wrong = engine.run(tokens, GENERATED)
    assert wrong.cached == restorable_tokens(TOKENS)
    assert wrong.tokens != cold.tokens


def test_flipped_byte_in_the_pool_changes_the_output(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    engine.add("saved", tokens, GENERATED)
    engine.step_until(lambda: engine.generated("saved") > 0, "its first token")
    payload = engine.kv.block(engine.blocks_of("saved")[4])
    cold = engine.finish(["saved"])["saved"]
    engine.settle()
    engine.press_out()
    # The exponent of one bf16 value of a middle layer.
    flip_byte(engine.manager.pid, payload, at=len(payload) // 2 + 1, mask=0x40)
    wrong = engine.run(tokens, GENERATED)
    assert wrong.cached == restorable_tokens(TOKENS)
    assert wrong.tokens != cold.tokens
