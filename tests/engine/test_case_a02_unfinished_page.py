"""A page whose save does not end keeps no reader waiting (case A-02)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.case_end import assert_case_end
from support.engine import Engine
from support.holds import COMMIT, COPY_SAVE, Holds
from support.lookups import count_lookups
from support.manager import Manager
from support.prompts import BLOCK_TOKENS

Prompts = Callable[..., list[int]]
# Three whole blocks and a little; the generated tokens complete no further one.
SEALED_TOKENS, TOKENS = 2 * BLOCK_TOKENS, 3 * BLOCK_TOKENS + 4
# Longer than a test waits for anything: a reader that waits for the writer fails the test.
LOOKUP_DEADLINE_MS = 120_000
# One answer takes a few steps of an idle engine; the reports speak of a million.
MAX_LOOKUPS = 1000


@pytest.fixture(scope="module", params=[False, True], ids=["asked", "prepared"])
def prepares(request: pytest.FixtureRequest) -> bool:
    """Whether pages are read ahead for the readers, whose lookups then are claims."""
    return request.param


@pytest.fixture(scope="module")
def engine(manager: Manager, new_engine: Callable[..., Engine], prepares: bool) -> Engine:
    connector = {
        "verify_restore": "all",
        "lookup_deadline_ms": LOOKUP_DEADLINE_MS,
        "prepare_requests": prepares,
    }
    return new_engine(manager, connector=connector)


@pytest.mark.parametrize("point", [COPY_SAVE, COMMIT])
def test_case_a02_reader_of_a_page_whose_save_never_ends(
    engine: Engine,
    holds: Holds,
    new_prompt: Prompts,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    prepares: bool,
) -> None:
    tokens = new_prompt(TOKENS)
    engine.run(tokens[: SEALED_TOKENS + 1], 1)
    with holds.held(point):
        engine.add("writer", tokens)
        control = engine.finish(["writer"])["writer"]
        assert control.cached == SEALED_TOKENS
        engine.step_until(lambda: holds.reached(point) > 0, "the save of the last page is held")
        before = engine.manager.counters()
        for reader in range(3):
            lookups = count_lookups(engine, monkeypatch)
            engine.reset()
            engine.add("reader", tokens)
            result = engine.finish(["reader"])["reader"]
            assert result.tokens == control.tokens
            assert result.cached == SEALED_TOKENS, "the page in writing is a miss, those before it are hits"
            assert len(lookups) <= MAX_LOOKUPS
            after = engine.manager.counters()
            assert after["queries"] - before["queries"] == reader + 1
            assert after["claims"] - before["claims"] == (reader + 1 if prepares else 0)
        assert engine.manager.status()["save"]["inflight_bytes"] > 0, "the save never ended"
    assert_case_end(engine, tokens, control)
