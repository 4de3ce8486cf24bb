"""A restore fills its destination, all of it and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine
from support.holds import COPY_RESTORE, RESTORE_FAULT, Holds
from support.manager import Manager
from support.memory import POISON
from support.prompts import restorable_tokens
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 300
PAGES = restorable_tokens(TOKENS) // 32


@pytest.fixture(scope="module", params=["sync", "async"])
def engine(
    request: pytest.FixtureRequest, new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]
) -> Engine:
    return new_engine(new_manager(), connector={"load_mode": request.param, "verify_restore": "off"})


def save(engine: Engine, tokens: list[int]) -> list[bytes]:
    """Runs a prompt; the bytes of its whole blocks as they were computed."""
    engine.add("saved", tokens, 8)
    engine.step_until(lambda: engine.generated("saved") > 0, "its first token")
    computed = [engine.kv.block(block) for block in engine.blocks_of("saved")[:PAGES]]
    engine.finish(["saved"])
    engine.settle()
    return computed


def restore_over_poison(engine: Engine, tokens: list[int]) -> tuple[list[int], dict[int, bytes], list[int]]:
    """Runs the prompt again with all of memory poisoned before its restore: its blocks, the memory after its
    first token, and its tokens."""
    engine.press_out()
    engine.kv.poison()
    engine.add("restored", tokens, 8)
    engine.step_until(lambda: engine.generated("restored") > 0, "its first token")
    table, memory = engine.blocks_of("restored"), engine.kv.blocks()
    result = engine.finish(["restored"])["restored"]
    engine.settle()
    return table, memory, result.tokens


def test_no_poison_left_and_no_byte_outside_changed(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    control = engine.run(tokens)
    engine.press_out()
    engine.manager.drop_memory()
    computed = save(engine, tokens)

    null_block = engine.kv.block(0)
    table, memory, generated = restore_over_poison(engine, tokens)
    assert [memory[block] for block in table[:PAGES]] == computed
    untouched = set(memory) - set(table) - {0}
    assert len(untouched) > 100
    assert {memory[block] for block in untouched} == {bytes([POISON]) * len(computed[0])}
    assert memory[0] == null_block
    assert generated == control.tokens
    engine.manager.assert_drained()


def test_control_a_skipped_copy_leaves_the_poison(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    computed = save(engine, tokens)
    with holds.switched(RESTORE_FAULT, "skip"):
        table, memory, _ = restore_over_poison(engine, tokens)
    assert {memory[block] for block in table[:PAGES]} == {bytes([POISON]) * len(computed[0])}


@pytest.mark.parametrize("engine", ["async"], indirect=True)
def test_poisoned_in_mid_restore(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    """Every byte is poisoned after the engine gave the blocks and before the first byte of the copy moves;
    then nothing but the copy runs."""
    tokens = new_prompt(TOKENS)
    computed = save(engine, tokens)
    engine.press_out()
    with holds.held(COPY_RESTORE):
        engine.add("restored", tokens, 8)
        engine.step_until(lambda: holds.reached(COPY_RESTORE) > 0, "the copy is held")
        table = engine.blocks_of("restored")
        engine.kv.poison()
        before = engine.kv.blocks()
    wait_until(lambda: engine.manager.status()["load"]["inflight_bytes"] == 0, "the restore has ended")
    after = engine.kv.blocks()
    assert [after[block] for block in table[:PAGES]] == computed
    changed = {block for block in after if after[block] != before[block]}
    assert changed == set(table[:PAGES])
    engine.finish(["restored"])
    engine.settle()
    engine.manager.assert_drained()
