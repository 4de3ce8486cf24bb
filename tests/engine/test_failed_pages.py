"""Pages that do not come back as they were saved are computed again, and the output is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine
from support.holds import FAIL_PAGE, Holds
from support.manager import Manager
from support.pool import flip_byte
from support.prompts import restorable_tokens

Prompts = Callable[..., list[int]]
TOKENS = 300
PAGES = restorable_tokens(TOKENS) // 32


@pytest.fixture(scope="module", params=["sync", "async"])
def load_mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(load_mode: str, new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]) -> Engine:
    return new_engine(new_manager(), connector={"load_mode": load_mode, "verify_restore": "all"})


@pytest.mark.parametrize("failed", [1, 5, PAGES])
def test_one_failed_page_is_recomputed(
    engine: Engine, holds: Holds, new_prompt: Prompts, failed: int
) -> None:
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens, 40)
    engine.press_out()
    engine.kv.poison()
    with holds.switched(FAIL_PAGE, failed):
        result = engine.run(tokens, 40)
        assert "fail_page" not in holds.ask("list"), "the page never failed"
    assert result.tokens == cold.tokens
    # Failed once, sound in the pool: it serves again.
    engine.manager.assert_drained()
    engine.press_out()
    again = engine.run(tokens, 40)
    assert (again.cached, again.tokens) == (restorable_tokens(TOKENS), cold.tokens)


def test_flipped_byte_in_the_pool_is_found(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    engine.add("saved", tokens, 40)
    engine.step_until(lambda: engine.generated("saved") > 0, "its first token")
    payload = engine.kv.block(engine.blocks_of("saved")[4])
    cold = engine.finish(["saved"])["saved"]
    engine.settle()
    engine.press_out()
    before = engine.manager.counters()["bad_pages"]

    flip_byte(engine.manager.pid, payload, at=len(payload) // 2)
    result = engine.run(tokens, 40)
    assert result.tokens == cold.tokens
    assert engine.manager.counters()["bad_pages"] - before == 1
    engine.manager.assert_drained()
    # The bad page is gone and a good one has taken its place.
    engine.press_out()
    again = engine.run(tokens, 40)
    assert (again.cached, again.tokens) == (restorable_tokens(TOKENS), cold.tokens)
    assert engine.manager.counters()["bad_pages"] - before == 1
