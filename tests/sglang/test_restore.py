"""Evicted prefixes come back from the manager, with equal tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.holds import FAIL_PAGE
from support.manager import Manager
from support.sglang import PAGE_TOKENS, TREE_LINE, Sglang, restorable
from support.sglang_end import assert_case_end
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 400
GENERATED = 24
# Keys and values of four layers of two heads of 64 numbers of four bytes.
PAGE_BYTES = PAGE_TOKENS * 4 * 2 * 2 * 64 * 4


@pytest.fixture(scope="module", params=["overlap", "plain"])
def engine(request: pytest.FixtureRequest, manager: Manager, new_engine: Callable[..., Sglang]) -> Sglang:
    flags = () if request.param == "overlap" else ("--disable-overlap-schedule",)
    return new_engine(manager, flags=flags)


def test_the_engine_says_that_the_tree_cache_is_ours(engine: Sglang) -> None:
    assert TREE_LINE in engine.log()


def test_cold_then_from_the_device_then_restored(engine: Sglang, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens, GENERATED)
    assert (cold.local, cold.restored) == (0, 0)
    held = engine.run(tokens, GENERATED)
    assert (held.tokens, held.local, held.restored) == (cold.tokens, restorable(TOKENS), 0)
    engine.press_out()
    again = engine.run(tokens, GENERATED)
    assert (again.tokens, again.local, again.restored) == (cold.tokens, 0, restorable(TOKENS))
    engine.manager.assert_drained()


def test_what_is_restored_is_in_the_engines_metrics(engine: Sglang, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    engine.run(tokens)
    engine.press_out()

    def counted() -> list[float]:
        return [
            engine.metric(f"sglang:orbitkv_load_{name}_total") for name in ("pages", "bytes", "failed_pages")
        ]

    before = counted()
    engine.run(tokens)
    pages = restorable(TOKENS) // PAGE_TOKENS
    grown = [pages, pages * PAGE_BYTES, 0]
    wait_until(
        lambda: [now - then for now, then in zip(counted(), before, strict=True)] == grown, "it is counted"
    )


def test_dropped_pages_are_computed(engine: Sglang, new_prompt: Prompts) -> None:
    """The control of every restore here: without the manager's pages there is none."""
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens, GENERATED)
    engine.press_out()
    assert engine.manager.drop_memory() > 0
    again = engine.run(tokens, GENERATED)
    assert (again.tokens, again.local, again.restored) == (cold.tokens, 0, 0)


@pytest.mark.parametrize("tokens", [320, 640], ids=str)
def test_the_last_page_of_an_aligned_prompt_is_computed(
    engine: Sglang, new_prompt: Prompts, tokens: int
) -> None:
    """Its last token gives the first logits. The page is saved like any other, for longer prompts."""
    whole = new_prompt(tokens)
    cold = engine.run(whole, GENERATED)
    longer = [*whole, *new_prompt(40, 1)]
    longer_cold = engine.run(longer, GENERATED)
    engine.press_out()
    again = engine.run(whole, GENERATED)
    assert (again.tokens, again.restored) == (cold.tokens, tokens - PAGE_TOKENS)
    engine.press_out()
    again = engine.run(longer, GENERATED)
    assert (again.tokens, again.restored) == (longer_cold.tokens, tokens)


def test_input_log_probabilities_bound_what_is_restored(engine: Sglang, new_prompt: Prompts) -> None:
    """They are computed from `logprob_start_len` on, so no page that holds that token is restored."""
    tokens = new_prompt(320)
    engine.run(tokens, GENERATED)
    engine.press_out()
    options = {"return_logprob": True, "logprob_start_len": 100}
    again = engine.run(tokens, GENERATED, **options)
    assert again.restored == PAGE_TOKENS
    engine.press_out()
    cold = engine.run(tokens, GENERATED)
    assert again.tokens == cold.tokens
    engine.manager.assert_drained()


def test_a_salted_prompt_is_another_one(engine: Sglang, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens, GENERATED, extra_key="tenant a")
    engine.press_out()
    other = engine.run(tokens, GENERATED, extra_key="tenant b")
    assert (other.restored, other.tokens) == (0, cold.tokens)
    engine.press_out()
    same = engine.run(tokens, GENERATED, extra_key="tenant a")
    assert (same.restored, same.tokens) == (restorable(TOKENS), cold.tokens)


@pytest.mark.parametrize("failed", [1, 3, restorable(TOKENS) // PAGE_TOKENS])
def test_a_page_that_fails_between_lookup_and_load_is_not_promised(
    engine: Sglang, new_prompt: Prompts, failed: int
) -> None:
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens, GENERATED)
    engine.press_out()
    with engine.holds.switched(FAIL_PAGE, failed):
        again = engine.run(tokens, GENERATED)
    assert (again.restored, again.tokens) == ((failed - 1) * PAGE_TOKENS, cold.tokens)
    # Failed once, sound in the pool: it serves again.
    assert_case_end(engine, tokens, cold)


def test_more_prompts_than_the_engine_holds_all_come_back(engine: Sglang, new_prompt: Prompts) -> None:
    """Under pressure: each restore evicts what another one has brought."""
    prompts = [new_prompt(900, index) for index in range(8)]
    cold = [engine.run(tokens, 8).tokens for tokens in prompts]
    engine.press_out()
    again = engine.run_all(prompts, 8)
    assert [answer.tokens for answer in again] == cold
    assert sum(answer.restored for answer in again) == len(prompts) * restorable(900)
    engine.settle()
    engine.manager.assert_drained()
