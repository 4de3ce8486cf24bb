"""The main job: what was saved comes back, and the engine generates the same tokens from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine
from support.manager import Manager
from support.prompts import BLOCK_TOKENS, restorable_tokens

Prompts = Callable[..., list[int]]
LENGTHS = (300, 512, 100, 31)


@pytest.fixture(scope="module", params=["sync", "async", "auto"])
def engine(
    request: pytest.FixtureRequest, new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]
) -> Engine:
    # Every page is checked, except where a test wants wrong bytes to be used.
    return new_engine(new_manager(), connector={"load_mode": request.param, "verify_restore": "all"})


def restored_pages(engine: Engine) -> int:
    return engine.manager.counters()["restored_pages"]


def test_restored_prefixes_generate_the_same_tokens(engine: Engine, new_prompt: Prompts) -> None:
    prompts = [new_prompt(tokens, index) for index, tokens in enumerate(LENGTHS)]
    cold = engine.generate(prompts, 40)
    warm = engine.generate(prompts, 40)
    engine.press_out()
    before = restored_pages(engine)
    restored = engine.generate(prompts, 40)

    whole = [restorable_tokens(tokens) for tokens in LENGTHS]
    assert [result.cached for result in cold] == [0, 0, 0, 0]
    assert [result.cached for result in warm] == whole, "the engine's own cache"
    assert [result.cached for result in restored] == whole
    assert restored_pages(engine) - before == sum(whole) // BLOCK_TOKENS
    # An output that repeats one token would hide wrong KV.
    assert min(len(set(result.tokens)) for result in cold) > 20
    assert [result.tokens for result in warm] == [result.tokens for result in cold]
    assert [result.tokens for result in restored] == [result.tokens for result in cold]
    engine.manager.assert_drained()


def test_control_nothing_comes_back_after_the_manager_dropped_it(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(300)
    cold = engine.run(tokens)
    engine.press_out()
    assert engine.manager.drop_memory() > 0
    again = engine.run(tokens)
    assert (again.cached, again.tokens) == (0, cold.tokens)


def test_prefix_in_the_engine_is_completed_from_the_manager(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(512)
    cold = engine.run(tokens)
    engine.press_out()
    engine.run(tokens[:200])  # back in the engine's own cache: 6 blocks
    before = restored_pages(engine)
    result = engine.run(tokens)
    assert (result.cached, result.tokens) == (480, cold.tokens)
    assert restored_pages(engine) - before == 480 // BLOCK_TOKENS - 6
    engine.manager.assert_drained()


def test_four_identical_prompts_at_once(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(300)
    cold = engine.run(tokens, 16)
    engine.press_out()
    before = restored_pages(engine)
    results = engine.generate([tokens] * 4, 16)
    assert [result.tokens for result in results] == [cold.tokens] * 4
    assert [result.cached for result in results] == [restorable_tokens(300)] * 4
    assert restored_pages(engine) - before == restorable_tokens(300) // BLOCK_TOKENS, (
        "one of them restored it"
    )
    engine.manager.assert_drained()


@pytest.mark.parametrize(("tokens", "expected"), [(128, 96), (129, 128)])
def test_case_a64_whole_prompt_found(engine: Engine, new_prompt: Prompts, tokens: int, expected: int) -> None:
    """The last token is always computed: a hit never covers the whole prompt."""
    whole = new_prompt(tokens)
    cold = engine.run(whole)
    engine.press_out()
    result = engine.run(whole)
    assert (result.cached, result.tokens) == (expected, cold.tokens)
    engine.manager.assert_drained()


@pytest.mark.parametrize(("generated", "pages"), [(60, 4), (61, 5)])
def test_case_a64_resumed_with_generated_tokens(
    engine: Engine, new_prompt: Prompts, generated: int, pages: int
) -> None:
    """Preempted with exactly five pages of tokens, all of them saved before, and with one token more."""
    tokens = new_prompt(100)
    control = engine.run(tokens, 100)
    engine.press_out()
    engine.add("resumed", tokens, 100)
    engine.step_until(lambda: engine.generated("resumed") == generated, f"{generated} tokens")
    before = restored_pages(engine)
    assert engine.llm.reset_prefix_cache(reset_running_requests=True)
    engine.kv.poison()
    result = engine.finish(["resumed"])["resumed"]
    assert result.tokens == control.tokens
    assert restored_pages(engine) - before == pages
    engine.settle()
    engine.manager.assert_drained()


def test_prompt_shorter_than_a_block_asks_nobody(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(BLOCK_TOKENS - 1)
    before = engine.manager.counters()
    first, second = engine.run(tokens, 1), engine.run(tokens, 1)
    after = engine.manager.counters()
    assert (first.cached, second.cached, first.tokens) == (0, 0, second.tokens)
    for counter in ("queries", "granted_pages", "restored_pages"):
        assert after[counter] == before[counter], counter
    engine.manager.assert_drained()


def test_prompt_logprobs_are_computed_not_restored(engine: Engine, new_prompt: Prompts) -> None:
    """A request that wants log probabilities of its prompt must not skip any of it."""
    tokens = new_prompt(300)
    cold = engine.run(tokens)
    engine.press_out()
    before = engine.manager.counters()["queries"]
    result = engine.run(tokens, prompt_logprobs=1)
    assert (result.cached, result.tokens) == (0, cold.tokens)
    assert engine.manager.counters()["queries"] == before
    # Control: without that wish the same prompt is restored.
    engine.press_out()
    assert engine.run(tokens).cached == restorable_tokens(300)


def test_salt_separates_tenants(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(300)
    cold = engine.run(tokens, salt="A")
    for salt, expected in [("B", 0), (None, 0), ("A", restorable_tokens(300))]:
        engine.press_out()
        result = engine.run(tokens, salt=salt)
        assert (result.cached, result.tokens) == (expected, cold.tokens), salt
    engine.manager.assert_drained()
