"""A client goes away between the lookup's answer and the allocation (case A-06)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from support.case_end import assert_case_end
from support.engine import Engine
from support.filler import Filler
from support.manager import Manager
from support.prompts import BLOCK_TOKENS, restorable_tokens

Prompts = Callable[..., list[int]]
ROUNDS = 200
TOKENS = 2 * BLOCK_TOKENS + 6
HIT = restorable_tokens(TOKENS)
PAGE_BYTES = 64 << 10
POOL_PAGES = 640
BLOCKS = 24
# The occupant leaves two blocks, one less than a waiting request needs, and may grow into them.
OCCUPANT_TOKENS = (BLOCKS - 3) * BLOCK_TOKENS - 1
OCCUPANT_GROWTH = 2 * BLOCK_TOKENS


@pytest.fixture(scope="module")
def engine(new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]) -> Engine:
    connector = {"verify_restore": "all", "lookup_deadline_ms": 60_000}
    manager = new_manager(pool_size="48mib")
    return new_engine(manager, blocks=BLOCKS, max_model_len=736, connector=connector)


def occupy(engine: Engine, tokens: list[int]) -> None:
    """A running request that leaves too little for another one; a new one where it is about to end."""
    if engine.generated("occupant") > OCCUPANT_GROWTH - 20:
        engine.abort("occupant")
        engine.step()
        start_occupant(engine, tokens)


def start_occupant(engine: Engine, tokens: list[int]) -> None:
    engine.add("occupant", tokens, OCCUPANT_GROWTH)
    engine.step_until(lambda: engine.generated("occupant") > 0, "the occupant runs")
    assert engine.free_blocks < -(-TOKENS // BLOCK_TOKENS)


def test_case_a06_abort_before_allocation(engine: Engine, new_prompt: Prompts) -> None:
    prompts = [new_prompt(TOKENS, 1 + index) for index in range(ROUNDS)]
    # One after the other: so few blocks are given away again before a save that waits could read them.
    controls = [engine.run(tokens, 2) for tokens in prompts]
    assert {result.cached for result in controls} == {0}
    engine.reset()
    occupant = new_prompt(OCCUPANT_TOKENS)
    start_occupant(engine, occupant)
    manager = engine.manager
    before = manager.counters()
    for tokens in prompts:
        occupy(engine, occupant)
        engine.add("waiting", tokens, 2)
        engine.step_until(lambda: manager.status()["query"]["leases"] == 1, "the lookup has its lease")
        engine.step()
        assert engine.request("waiting").num_computed_tokens == 0, "it was given blocks"
        engine.abort("waiting")
        manager.assert_drained(meanwhile=engine.step)
    after = manager.counters()
    assert after["ram_pages"] - before["ram_pages"] == ROUNDS * HIT // BLOCK_TOKENS
    assert after["restored_pages"] == before["restored_pages"]
    assert after["expired_leases"] == before["expired_leases"], "a lease ended by its lifetime alone"

    engine.abort("occupant")
    assert_case_end(engine, prompts[0], controls[0])
    # Nothing is in the way of other data.
    with closing(Filler(manager, PAGE_BYTES)) as filler:
        assert filler.fill(POOL_PAGES) == POOL_PAGES
    assert manager.counters()["evicted_pages"] > after["evicted_pages"]
