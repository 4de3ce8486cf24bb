"""A restore inside a step that fails, and others that have its blocks: none of them ever reads what did not
land."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine
from support.holds import FAIL_PAGE, Holds
from support.manager import Manager
from support.prompts import BLOCK_TOKENS

Prompts = Callable[..., list[int]]
SHARED_TOKENS, OWN_TOKENS, NEW_TOKENS = 512, 12, 20
FAILED_PAGE = 5


# A chunk of a prompt: as much as a step has room for, or half a block, beside which others run on.
@pytest.fixture(scope="module", params=[0, BLOCK_TOKENS // 2])
def engine(
    request: pytest.FixtureRequest, new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]
) -> Engine:
    connector = {"load_mode": "sync", "verify_restore": "all", "refuse_slow_restores": False}
    # Pages are computed again in other chunks than before: only float32 gives the same tokens.
    options = {"dtype": "float32", "long_prefill_token_threshold": request.param}
    return new_engine(new_manager(), blocks=256, connector=connector, options=options)


def failed_for(
    engine: Engine, holds: Holds, new_prompt: Prompts, count: int
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Requests that share a restore which has just failed, none of which has computed anything since; prompts
    and cold tokens."""
    shared = new_prompt(SHARED_TOKENS)
    prompts = {f"r-{at}": [*shared, *new_prompt(OWN_TOKENS, 1 + at)] for at in range(count)}
    cold = {}
    for name, tokens in prompts.items():
        engine.reset()
        engine.manager.drop_memory()
        cold[name] = engine.run(tokens, NEW_TOKENS).tokens
    engine.press_out()
    engine.kv.poison()
    with holds.switched(FAIL_PAGE, FAILED_PAGE):
        for name, tokens in prompts.items():
            engine.add(name, tokens, NEW_TOKENS)
        engine.step_until(lambda: "fail_page" not in holds.ask("list"), "the page failed")
    assert [engine.generated(name) for name in prompts] == [0] * count
    return prompts, cold


def assert_right(engine: Engine, prompts: dict[str, list[int]], cold: dict[str, list[int]]) -> None:
    """Requests that run end with the right tokens, and so do the same ones again, from what is in the engine
    and from what was saved."""
    assert {name: result.tokens for name, result in engine.finish(cold).items()} == cold
    engine.settle()
    engine.manager.assert_drained()
    assert engine.free_blocks == engine.settings.blocks - 1
    for make_ready in (lambda: None, engine.press_out):
        make_ready()
        results = engine.generate([prompts[name] for name in cold], NEW_TOKENS)
        assert [result.tokens for result in results] == list(cold.values())
        assert {result.cached for result in results} == {SHARED_TOKENS}


def test_all_of_them_run_on(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    assert_right(engine, *failed_for(engine, holds, new_prompt, 4))


def test_first_one_is_aborted_before_it_computes(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    prompts, cold = failed_for(engine, holds, new_prompt, 4)
    engine.abort("r-0")
    del cold["r-0"]
    assert_right(engine, prompts, cold)


def test_all_are_aborted_and_others_come(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    """The blocks are in the engine's prefix cache, with what did not land in one of them."""
    prompts, cold = failed_for(engine, holds, new_prompt, 2)
    for name in prompts:
        engine.abort(name)
    for name, tokens in prompts.items():
        engine.add(name, tokens, NEW_TOKENS)
    assert_right(engine, prompts, cold)


def test_all_go_back_to_those_that_wait(engine: Engine, holds: Holds, new_prompt: Prompts) -> None:
    """What is sound in front of the bad block is found again."""
    prompts, cold = failed_for(engine, holds, new_prompt, 3)
    assert not engine.scheduler.running
    assert [engine.request(name).num_preemptions for name in prompts] == [1, 1, 1]
    results = engine.finish(cold)
    assert {name: result.tokens for name, result in results.items()} == cold


def test_control_bad_blocks_that_stay_in_the_prefix_cache_are_read(
    engine: Engine, holds: Holds, new_prompt: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.scheduler.kv_cache_manager, "evict_blocks", lambda blocks: None)
    _, cold = failed_for(engine, holds, new_prompt, 4)
    results = engine.finish(cold)
    assert all(results[name].tokens != right for name, right in cold.items())
    engine.settle()
    # Not for others to find.
    engine.press_out()
    engine.manager.drop_memory()
