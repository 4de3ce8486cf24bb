"""The engine's default: scheduler and worker in processes of their own, with the manager as a third."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.engine import EngineSettings
from support.holds import COPY_RESTORE, RESTORE_FAULT
from support.manager import Manager
from support.multiprocess import MultiprocessEngine
from support.prompts import restorable_tokens
from support.wait import wait_until

Prompts = Callable[..., list[int]]
LENGTHS = (300, 512, 100, 31)
TOKENS = 300
HIT = restorable_tokens(TOKENS)


@pytest.fixture(scope="module")
def engine(manager: Manager, test_dir: Path) -> Iterator[MultiprocessEngine]:
    connector = {"verify_restore": "all", "load_mode": "async"}
    engine = MultiprocessEngine(manager, test_dir, EngineSettings(connector=connector))
    yield engine
    engine.close()


def test_restored_prefixes_generate_the_same_tokens(
    engine: MultiprocessEngine, manager: Manager, new_prompt: Prompts
) -> None:
    prompts = [new_prompt(tokens, index) for index, tokens in enumerate(LENGTHS)]
    whole = [restorable_tokens(tokens) for tokens in LENGTHS]
    cold = engine.generate(prompts, 40)
    warm = engine.generate(prompts, 40)
    engine.press_out()
    before = manager.counters()["restored_pages"]
    restored = engine.generate(prompts, 40)
    assert [result.cached for result in cold] == [0, 0, 0, 0]
    assert [result.cached for result in warm] == whole, "the engine's own cache"
    assert [result.cached for result in restored] == whole
    assert manager.counters()["restored_pages"] - before == sum(whole) // 32
    assert min(len(set(result.tokens)) for result in cold) > 20
    assert [result.tokens for result in warm] == [result.tokens for result in cold]
    assert [result.tokens for result in restored] == [result.tokens for result in cold]
    manager.assert_drained()


def test_control_a_restore_that_copies_nothing_changes_the_output(
    engine: MultiprocessEngine, new_prompt: Prompts
) -> None:
    tokens = new_prompt(TOKENS)
    [cold] = engine.generate([tokens], 40)
    engine.press_out()
    with engine.worker_holds.switched(RESTORE_FAULT, "skip"):
        [wrong] = engine.generate([tokens], 40)
    assert wrong.cached == HIT
    assert wrong.tokens != cold.tokens
    # The engine keeps what it believes to have restored; nothing else may meet it.
    engine.press_out()
    [again] = engine.generate([tokens], 40)
    assert (again.cached, again.tokens) == (HIT, cold.tokens)


def test_abort_during_the_restore(engine: MultiprocessEngine, manager: Manager, new_prompt: Prompts) -> None:
    from vllm import SamplingParams, TokensPrompt

    tokens = new_prompt(TOKENS)
    [cold] = engine.generate([tokens])
    engine.press_out()
    with engine.worker_holds.held(COPY_RESTORE):
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
        engine.llm.llm_engine.add_request("aborted", TokensPrompt(prompt_token_ids=tokens), params)
        engine.worker_holds.wait_reached(COPY_RESTORE)
        engine.llm.llm_engine.abort_request(["aborted"])
        # Interest is over, custody is not; others are served meanwhile.
        [other] = engine.generate([new_prompt(TOKENS, 1)])
        assert other.cached == 0
        assert manager.status()["load"]["inflight_bytes"] > 0
    manager.assert_drained()
    engine.press_out()
    [again] = engine.generate([tokens])
    assert (again.cached, again.tokens) == (HIT, cold.tokens)
    manager.assert_drained()


def test_verdict_of_the_self_test_reaches_the_scheduler(
    engine: MultiprocessEngine, manager: Manager, new_prompt: Prompts
) -> None:
    """The worker's process finds the path unsound, the scheduler's process stops asking."""
    tokens = new_prompt(TOKENS)
    with engine.worker_holds.switched(RESTORE_FAULT, "zero"):
        manager.restart()
        wait_until(lambda: probe_has_ended(manager), "the self-test has ended")
        before = manager.counters()
        [cold] = engine.generate([tokens])
        engine.press_out()
        [again] = engine.generate([tokens])
        assert (cold.cached, again.cached, again.tokens) == (0, 0, cold.tokens)
        after = manager.counters()
        for counter in ("queries", "granted_pages", "restored_pages"):
            assert after[counter] == before[counter], counter
        assert manager.active_instances() == 0
    manager.restart()
    wait_until(lambda: manager.active_instances() == 1, "active again")
    engine.press_out()
    assert engine.generate([tokens])[0].cached == 0
    engine.press_out()
    [found] = engine.generate([tokens])
    assert (found.cached, found.tokens) == (HIT, cold.tokens)
    manager.assert_drained()


def probe_has_ended(manager: Manager) -> bool:
    """The worker has told its verdict, which counters of pages say nothing about."""
    return manager.metrics().get('orbitkv_frames_received_total{kind="Attest"}', 0) > 0
