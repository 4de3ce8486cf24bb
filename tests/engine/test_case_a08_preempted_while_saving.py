"""A request is preempted while its save is under way, and comes back before that has ended (case A-08)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.case_end import assert_case_end
from support.engine import Engine
from support.holds import COMMIT, COPY_SAVE, Holds
from support.manager import Manager
from support.prompts import BLOCK_TOKENS

Prompts = Callable[..., list[int]]
BLOCKS = 40
# Together they fill the blocks but one. The competitor, scheduled first, grows into it, and the other has no
# room to grow: it is preempted, and its blocks stay as they are, for nobody else needs them.
TOKENS = 10 * BLOCK_TOKENS + 4
GENERATED = 40
COMPETITOR_TOKENS = 26 * BLOCK_TOKENS + 4
COMPETITOR_GENERATED = 2 * BLOCK_TOKENS - 8


@pytest.fixture(scope="module")
def engine(manager: Manager, new_engine: Callable[..., Engine]) -> Engine:
    connector = {"verify_restore": "all", "lookup_deadline_ms": 60_000}
    return new_engine(manager, blocks=BLOCKS, max_model_len=1024, connector=connector)


def preempted(engine: Engine, name: str) -> bool:
    """Whether a request was preempted so far."""
    return engine.request(name).num_preemptions > 0


def start(engine: Engine, holds: Holds, point: str, tokens: list[int], competitor: list[int]) -> None:
    """Both run, and the save of the first one's blocks stands still at `point`."""
    engine.add("competitor", competitor, COMPETITOR_GENERATED)
    engine.step_until(lambda: engine.generated("competitor") > 0, "the competitor runs")
    manager = engine.manager
    engine.step_until(lambda: manager.status()["save"]["inflight_bytes"] == 0, "its prompt is saved")
    holds.hold(point)
    engine.add("first", tokens, GENERATED)
    engine.step_until(lambda: holds.reached(point) > 0, "its save is held")
    assert engine.generated("first") > 0


@pytest.mark.parametrize("point", [COPY_SAVE, COMMIT])
def test_case_a08_preempted_by_a_competitor(
    engine: Engine, holds: Holds, new_prompt: Prompts, point: str
) -> None:
    """It comes back as soon as the competitor ends, the engine's own cache holding most of its blocks."""
    tokens, competitor = new_prompt(TOKENS), new_prompt(COMPETITOR_TOKENS, 1)
    control = engine.run(tokens, GENERATED)
    competitor_control = engine.run(competitor, COMPETITOR_GENERATED)
    engine.manager.drop_memory()
    engine.reset()
    start(engine, holds, point, tokens, competitor)
    engine.step_until(lambda: preempted(engine, "first"), "it is preempted")
    assert engine.manager.status()["save"]["inflight_bytes"] > 0
    results = engine.finish(["first", "competitor"])
    assert holds.reached(point) > 0
    assert engine.manager.status()["save"]["inflight_bytes"] > 0, "it came back while its save was held"
    holds.release(point)
    assert results["first"].tokens == control.tokens
    assert results["competitor"].tokens == competitor_control.tokens
    assert_case_end(engine, tokens, control)


@pytest.mark.parametrize("point", [COPY_SAVE, COMMIT])
def test_case_a08_comes_back_with_an_empty_engine_cache(
    engine: Engine, holds: Holds, new_prompt: Prompts, point: str
) -> None:
    """Every running request is preempted and the engine's own cache emptied: the manager is asked for pages
    that it is being given."""
    tokens, competitor = new_prompt(TOKENS), new_prompt(4 * BLOCK_TOKENS, 1)
    control = engine.run(tokens, GENERATED)
    competitor_control = engine.run(competitor, COMPETITOR_GENERATED)
    engine.manager.drop_memory()
    engine.reset()
    start(engine, holds, point, tokens, competitor)
    queries = engine.manager.counters()["queries"]
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert preempted(engine, "first")
    results = engine.finish(["first"])
    assert engine.manager.counters()["queries"] > queries, "it was looked up again"
    assert engine.manager.status()["save"]["inflight_bytes"] > 0, "it came back while its save was held"
    holds.release(point)
    results |= engine.finish(["competitor"])
    assert results["first"].tokens == control.tokens
    assert results["competitor"].tokens == competitor_control.tokens
    assert_case_end(engine, tokens, control)
