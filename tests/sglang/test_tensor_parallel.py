"""Two ranks, each with its shard of every page: one answer for both (cases A-34 and A-35)."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support.holds import COPY_RESTORE, FAIL_PAGE, RESTORE_FAULT, Holds
from support.manager import Manager
from support.sglang import PAGE_TOKENS, Sglang, restorable
from support.sglang_end import assert_case_end

Prompts = Callable[..., list[int]]
TOKENS = 400
HIT = restorable(TOKENS)
RANKS = 2


@pytest.fixture(scope="module")
def engine(new_manager: Callable[..., Manager], new_engine: Callable[..., Sglang]) -> Sglang:
    # No library of NCCL is there: the ranks speak through gloo. Each is bound to a core of its own.
    cores = sorted(os.sched_getaffinity(0))
    environment = {
        "SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}",
        "SGLANG_NCCL_SO_PATH": "/nonexistent/libnccl.so",
    }
    # Each rank's shards are in segments of their own.
    manager = new_manager(pool_size="128mib", segment_size="64mib")
    return new_engine(manager, flags=("--tp-size", str(RANKS)), environment=environment)


@pytest.fixture
def ranks(engine: Sglang) -> list[Holds]:
    """Hold points of both."""
    return engine.rank_holds


def test_both_ranks_are_active_and_restore(engine: Sglang, new_prompt: Prompts) -> None:
    (row,) = engine.manager.status()["instances"]
    assert (row["world_size"], sorted(row["ranks_attested"])) == (RANKS, [0, 1])
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens)
    assert_case_end(engine, tokens, cold)


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_shard_that_is_not_copied_changes_the_output(
    engine: Sglang, ranks: list[Holds], new_prompt: Prompts, rank: int
) -> None:
    """The control: each rank's shard is what it computes with."""
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens, 40)
    engine.press_out()
    with ranks[rank].switched(RESTORE_FAULT, "zero"):
        wrong = engine.run(tokens, 40)
    assert wrong.restored == HIT
    assert wrong.tokens != cold.tokens
    assert_case_end(engine, tokens, cold)


@pytest.mark.parametrize("rank", range(RANKS))
def test_case_a34_a_damaged_shard_of_one_rank_counts_for_all(
    engine: Sglang, ranks: list[Holds], new_prompt: Prompts, rank: int
) -> None:
    """What one rank cannot restore is promised by none, and neither waits for the other."""
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens)
    engine.press_out()
    with ranks[rank].switched(FAIL_PAGE, 3):
        again = engine.run(tokens)
    assert again.tokens == cold.tokens
    assert again.restored == 2 * PAGE_TOKENS
    assert_case_end(engine, tokens, cold)


def test_case_a35_a_rank_that_copies_late_keeps_both_in_step(
    engine: Sglang, ranks: list[Holds], new_prompt: Prompts
) -> None:
    prompts = [new_prompt(TOKENS, index) for index in range(4)]
    cold = [engine.run(tokens).tokens for tokens in prompts]
    engine.press_out()
    with ranks[1].held(COPY_RESTORE):
        pending = [engine.add(tokens) for tokens in prompts]
        ranks[1].wait_reached(COPY_RESTORE)
        engine.abort(pending[3].name)
        assert not pending[0].done()
    assert [one.result().tokens for one in pending[:3]] == cold[:3]
    pending[3].result()
    engine.settle()
    engine.manager.assert_drained()
    assert engine.is_running
