"""Two ranks with a shard of each page: there is one answer for both, and a page is there when both shards
are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from support.engine import EngineSettings, Result
from support.holds import COPY_RESTORE, COPY_SAVE, FAIL_PAGE, RESTORE_FAULT
from support.manager import Manager
from support.memory import POISON
from support.pool import flip_byte
from support.processes import is_alive
from support.prompts import restorable_tokens
from support.tensor_parallel import RANKS, TensorParallelEngine
from support.wait import wait_until

Prompts = Callable[..., list[int]]
LENGTHS = (300, 512, 100, 31)
TOKENS = 300
HIT = restorable_tokens(TOKENS)
PAGES = HIT // 32
# By itself a request is restored inside the step; beside one that decodes, between steps.
CONNECTOR = {"verify_restore": "all", "load_mode": "auto", "sync_max_ms": 0}
MODES = pytest.mark.parametrize("mode", ["sync", "async"])


@pytest.fixture(scope="module")
def manager(new_manager: Callable[..., Manager]) -> Manager:
    """A segment for each rank, and no more."""
    return new_manager(pool_size="128mib", segment_size="64mib")


@pytest.fixture(scope="module")
def new_engine(manager: Manager, test_dir: Path) -> Iterator[Callable[[], TensorParallelEngine]]:
    """Builds an engine; the one built before it ends first."""
    engines: list[TensorParallelEngine] = []

    def build() -> TensorParallelEngine:
        while engines:
            engines.pop().close()
        engines.append(TensorParallelEngine(manager, test_dir, EngineSettings(connector=CONNECTOR)))
        return engines[-1]

    yield build
    while engines:
        engines.pop().close()


@pytest.fixture(scope="module")
def engine(new_engine: Callable[[], TensorParallelEngine]) -> TensorParallelEngine:
    return new_engine()


def loading(engine: TensorParallelEngine, mode: str) -> AbstractContextManager[None]:
    """In which requests are restored in that way."""
    return engine.decoding() if mode == "async" else nullcontext()


def run(engine: TensorParallelEngine, tokens: list[int], max_tokens: int = 40) -> Result:
    """One request to its end, whatever else runs."""
    engine.add("run", tokens, max_tokens)
    return engine.finish("run")


def assert_sound_afterwards(engine: TensorParallelEngine, tokens: list[int], cold: Result) -> None:
    """Nothing is held, and the prompt is found whole in the manager."""
    manager = engine.manager
    manager.wait_saved()
    manager.assert_drained()
    engine.poison()
    result = run(engine, tokens)
    assert (result.cached, result.tokens) == (restorable_tokens(len(tokens)), cold.tokens)
    manager.assert_drained()


def test_restored_prefixes_generate_the_same_tokens(
    engine: TensorParallelEngine, manager: Manager, new_prompt: Prompts
) -> None:
    prompts = [new_prompt(tokens, index) for index, tokens in enumerate(LENGTHS)]
    whole = [restorable_tokens(tokens) for tokens in LENGTHS]
    cold = engine.generate(prompts, 40)
    engine.press_out()
    before = engine.stats("restored_pages")
    restored = engine.generate(prompts, 40)
    assert [result.cached for result in cold] == [0, 0, 0, 0]
    assert [result.cached for result in restored] == whole
    moved = [now - then for now, then in zip(engine.stats("restored_pages"), before, strict=True)]
    assert moved == [sum(whole) // 32] * RANKS
    assert min(len(set(result.tokens)) for result in cold) > 20
    assert [result.tokens for result in restored] == [result.tokens for result in cold]
    manager.assert_drained()


def test_metrics_of_the_engine_sum_its_ranks(engine: TensorParallelEngine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    engine.generate([tokens])
    engine.poison()
    names = ("load_pages", "load_bytes", "load_tokens", "lookups")
    before = [engine.counted(name) for name in names]
    assert run(engine, tokens, 8).cached == HIT
    engine.wait(lambda: engine.counted("load_pages") > before[0], "the restore is counted")
    moved = [engine.counted(name) - then for name, then in zip(names, before, strict=True)]
    # A rank has one of the two KV heads.
    assert moved == [RANKS * PAGES, PAGES * 65536, HIT, 1]
    for counter, source in (("load_pages", "restored_pages"), ("save_pages", "saved_pages")):
        assert engine.counted(counter) == sum(engine.stats(source))


def save(engine: TensorParallelEngine, tokens: list[int]) -> list[list[bytes]]:
    """Computes a prompt and saves its pages; for each rank their bytes as they were computed."""
    engine.manager.drop_memory()
    engine.poison()
    result, computed = engine.payloads(tokens, PAGES)
    assert result.cached == 0
    wait_until(lambda: engine.manager.status()["pool"]["pages"] >= PAGES, "its pages are saved")
    first, second = computed
    assert len({*first, *second}) == RANKS * PAGES, "shards with equal bytes prove nothing"
    engine.poison()
    return computed


@MODES
def test_each_rank_gets_the_bytes_of_its_shard_back(
    engine: TensorParallelEngine, manager: Manager, new_prompt: Prompts, mode: str
) -> None:
    tokens = new_prompt(TOKENS)
    computed = save(engine, tokens)
    with loading(engine, mode):
        result, restored = engine.payloads(tokens, PAGES)
    assert result.cached == HIT
    assert restored == computed
    manager.assert_drained()


@pytest.mark.parametrize("rank", range(RANKS))
def test_control_a_rank_that_copies_nothing_keeps_its_poison(
    engine: TensorParallelEngine, new_prompt: Prompts, rank: int
) -> None:
    tokens = new_prompt(TOKENS)
    computed = save(engine, tokens)
    with engine.holds[rank].switched(RESTORE_FAULT, "skip"):
        result, restored = engine.payloads(tokens, PAGES)
    assert result.cached == HIT
    assert set(restored[rank]) == {bytes([POISON]) * len(computed[rank][0])}
    assert restored[1 - rank] == computed[1 - rank]
    # The engine keeps what it believes to have restored; nothing else may meet it.
    engine.poison()


@MODES
def test_byte_flipped_in_one_shard_is_recomputed_on_both_ranks(
    engine: TensorParallelEngine, manager: Manager, new_prompt: Prompts, mode: str
) -> None:
    tokens = new_prompt(TOKENS)
    [cold] = engine.generate([tokens], 40)
    _, payloads = engine.payloads(tokens, PAGES)
    before = manager.counters()["bad_pages"]
    engine.poison()
    flip_byte(manager.pid, payloads[1][4], at=len(payloads[1][4]) // 2)
    with loading(engine, mode):
        result = run(engine, tokens)
    assert result.tokens == cold.tokens
    assert manager.counters()["bad_pages"] - before == 1
    # The bad page is gone with both its shards, and a good one has taken its place.
    assert_sound_afterwards(engine, tokens, cold)
    assert manager.counters()["bad_pages"] - before == 1


def test_ranks_fail_different_pages_of_one_step(engine: TensorParallelEngine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    [cold] = engine.generate([tokens], 40)
    engine.poison()
    first, second = engine.holds
    with first.switched(FAIL_PAGE, 7), second.switched(FAIL_PAGE, 3):
        result = run(engine, tokens)
        assert "fail_page" not in first.ask("list") + second.ask("list"), "a page never failed"
    assert result.tokens == cold.tokens
    assert_sound_afterwards(engine, tokens, cold)


@pytest.mark.parametrize(("early", "late"), [(7, 3), (3, 7), (5, None)])
def test_ranks_report_failed_pages_in_different_steps(
    engine: TensorParallelEngine, new_prompt: Prompts, early: int, late: int | None
) -> None:
    """Rank 0 reports while rank 1 still copies: the request waits for both, and the first page that failed
    anywhere counts. The second rank may also have nothing to report."""
    tokens = new_prompt(TOKENS)
    [cold] = engine.generate([tokens], 40)
    engine.poison()
    failed = engine.stats("failed_pages")
    first, second = engine.holds
    with first.switched(FAIL_PAGE, early), engine.decoding():
        if late is not None:
            second.set(FAIL_PAGE, late)
        with second.held(COPY_RESTORE):
            engine.add("restored", tokens, 40)
            engine.wait(lambda: second.reached(COPY_RESTORE), "rank 1 is held")
            engine.wait(
                lambda: engine.stats("failed_pages")[0] == failed[0] + 1, "a page of rank 0 has failed"
            )
            # Steps enough for its report.
            run(engine, new_prompt(TOKENS, 1), 8)
            assert engine.result("restored") is None
        result = engine.finish("restored")
    now = engine.stats("failed_pages")
    assert [now[0] - failed[0], now[1] - failed[1]] == [1, int(late is not None)]
    assert result.tokens == cold.tokens
    assert_sound_afterwards(engine, tokens, cold)


def test_blocks_reused_while_the_slower_rank_still_reads_them(
    engine: TensorParallelEngine, manager: Manager, new_prompt: Prompts
) -> None:
    """Its saves are given up, and with them the shards that the other rank has saved."""
    tokens = new_prompt(TOKENS)
    engine.poison()
    saved, aborted = engine.stats("saved_pages"), engine.stats("aborted_pages")
    with engine.holds[1].held(COPY_SAVE):
        cold = run(engine, tokens)
        engine.holds[1].wait_reached(COPY_SAVE)
        wait_until(lambda: engine.stats("saved_pages")[0] >= saved[0] + PAGES, "rank 0 has saved its shards")
        # One after the other they go through all of memory.
        for index in (1, 2, 3):
            run(engine, new_prompt(engine.settings.max_model_len - 1, index), 1)
        assert engine.stats("aborted_pages")[1] >= aborted[1] + PAGES
    manager.wait_saved()
    engine.poison()
    again = run(engine, tokens)
    assert (again.cached, again.tokens) == (0, cold.tokens)
    assert_sound_afterwards(engine, tokens, cold)


def test_page_is_visible_once_the_slower_rank_has_saved_it(
    engine: TensorParallelEngine, manager: Manager, new_prompt: Prompts
) -> None:
    tokens = new_prompt(TOKENS)
    engine.reset()
    pages = manager.status()["pool"]["pages"]
    saved = engine.stats("saved_pages")
    with engine.holds[1].held(COPY_SAVE):
        cold = run(engine, tokens)
        engine.holds[1].wait_reached(COPY_SAVE)
        wait_until(lambda: engine.stats("saved_pages")[0] >= saved[0] + PAGES, "rank 0 has saved its shards")
        assert engine.stats("saved_pages")[1] == saved[1]
        assert manager.status()["pool"]["pages"] == pages
        engine.reset()
        again = run(engine, tokens)
        assert (again.cached, again.tokens) == (0, cold.tokens)
    wait_until(lambda: manager.status()["pool"]["pages"] >= pages + PAGES, "both ranks have saved")
    assert_sound_afterwards(engine, tokens, cold)


def test_restore_between_steps_waits_for_the_slower_rank(
    engine: TensorParallelEngine, manager: Manager, new_prompt: Prompts
) -> None:
    tokens = new_prompt(TOKENS)
    [cold] = engine.generate([tokens], 40)
    engine.poison()
    before = engine.stats("restored_pages")
    with engine.decoding():
        with engine.holds[1].held(COPY_RESTORE):
            engine.add("restored", tokens, 40)
            engine.wait(lambda: engine.holds[1].reached(COPY_RESTORE), "the restore is held")
            engine.wait(
                lambda: engine.stats("restored_pages")[0] == before[0] + PAGES, "rank 0 has its shards"
            )
            # Others are served meanwhile.
            run(engine, new_prompt(TOKENS, 1), 8)
            assert engine.stats("restored_pages")[1] == before[1]
            assert engine.result("restored") is None
            assert manager.status()["load"]["inflight_bytes"] > 0
        result = engine.finish("restored")
    assert (result.cached, result.tokens) == (HIT, cold.tokens)
    assert_sound_afterwards(engine, tokens, cold)


def test_restore_in_the_step_gives_up_a_rank_that_hangs(
    engine: TensorParallelEngine, new_prompt: Prompts
) -> None:
    """The other rank has its shards; both compute the prompt all the same."""
    tokens = new_prompt(TOKENS)
    [cold] = engine.generate([tokens], 40)
    engine.poison()
    with engine.holds[1].held(COPY_RESTORE):
        result = run(engine, tokens)
        assert engine.holds[1].reached(COPY_RESTORE) > 0
    assert result.tokens == cold.tokens
    assert_sound_afterwards(engine, tokens, cold)


def test_worker_killed_in_the_middle_of_a_save(
    engine: TensorParallelEngine,
    manager: Manager,
    new_engine: Callable[[], TensorParallelEngine],
    new_prompt: Prompts,
) -> None:
    """The last test of this engine, which dies with its worker."""
    warm, lost = new_prompt(TOKENS), new_prompt(TOKENS, 1)
    [warm_cold] = engine.generate([warm], 40)
    manager.assert_drained()
    pool = manager.status()["pool"]
    saved = engine.stats("saved_pages")
    quarantined = manager.counters()["quarantined_slots"]
    engine.holds[1].hold(COPY_SAVE)
    lost_cold = run(engine, lost)
    engine.holds[1].wait_reached(COPY_SAVE)
    wait_until(lambda: engine.stats("saved_pages")[0] >= saved[0] + PAGES, "rank 0 has saved its shards")
    engine.kill(rank=1)
    wait_until(lambda: not any(is_alive(pid) for pid in engine.pids), "the engine's workers have ended")
    wait_until(lambda: manager.active_instances() == 0, "the manager knows that the engine is gone")
    manager.assert_drained()
    assert manager.counters()["quarantined_slots"] - quarantined >= PAGES
    after = manager.status()["pool"]
    assert (after["pages"], after["used_bytes"]) == (pool["pages"], pool["used_bytes"])

    engine = new_engine()
    result = run(engine, lost)
    assert (result.cached, result.tokens) == (0, lost_cold.tokens)
    result = run(engine, warm)
    assert (result.cached, result.tokens) == (HIT, warm_cold.tokens)
    assert_sound_afterwards(engine, lost, lost_cold)
