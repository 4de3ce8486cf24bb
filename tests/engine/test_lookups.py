"""Lookups that the engine repeats while a request waits: one owner, one lease, no page lost in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.engine import Engine, worker_client
from support.filler import Filler
from support.holds import QUERY_REPLY, QUERY_REPLY_FIRST
from support.lookups import count_lookups
from support.manager import Manager
from support.prompts import BLOCK_TOKENS, restorable_tokens
from support.tier import Counted

Prompts = Callable[..., list[int]]
TOKENS = 960
PAGE_BYTES = 64 << 10
POOL_PAGES = 256
LOOKUPS = 50
# Pages of its prompt that the engine gets elsewhere while a lookup waits for its answer.
HEAD_PAGES = 10


@pytest.fixture(scope="module")
def engine(new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]) -> Engine:
    connector = {"verify_restore": "all", "lookup_deadline_ms": 60_000}
    return new_engine(new_manager(pool_size="16mib", segment_size="2mib"), connector=connector)


@pytest.fixture
def filler(engine: Engine) -> Iterator[Filler]:
    filler = Filler(engine.manager, PAGE_BYTES)
    yield filler
    filler.close()


def occupy(engine: Engine, new_prompt: Prompts) -> list[str]:
    """Two running requests that leave no room for a third of `TOKENS`."""
    names = ["occupant-0", "occupant-1"]
    for index, name in enumerate(names):
        engine.add(name, new_prompt(1700, 50 + index), 300)
    engine.step_until(lambda: all(engine.generated(name) > 0 for name in names), "the occupants run")
    assert engine.free_blocks < TOKENS // 32
    return names


def waiting_operations(engine: Engine) -> int:
    return sum(engine.manager.status()["query"]["operations"].values())


def wait_for_blocks(engine: Engine, lookups: list[tuple[str, int | None]]) -> None:
    """Steps until the waiting request was looked up `LOOKUPS` times, always with the same one owner."""
    lookups.clear()
    engine.step_until(lambda: any(answer for _, answer in lookups), "the lookup is answered")
    lookups.clear()
    while len(lookups) < LOOKUPS:
        engine.step()
        assert engine.manager.status()["query"]["leases"] == 1
        assert waiting_operations(engine) == 1
    assert {answer for _, answer in lookups} == {restorable_tokens(TOKENS)}


def stored(engine: Engine, tokens: list[int]) -> list[int]:
    """Saves a prompt into the emptied pool; the engine then holds no byte of it. Its tokens."""
    engine.manager.drop_memory()
    result = engine.run(tokens)
    assert result.cached == 0
    # Pressing it out by other prompts would press it out of the small pool too.
    engine.reset()
    engine.kv.poison()
    return result.tokens


@pytest.mark.parametrize("ending", ["load", "abort"])
def test_case_a13_asking_again_takes_no_other_hold(
    engine: Engine, new_prompt: Prompts, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    occupants = occupy(engine, new_prompt)
    queries = engine.manager.counters()["queries"]
    lookups = count_lookups(engine, monkeypatch)
    engine.add("waiting", tokens)
    wait_for_blocks(engine, lookups)
    assert engine.manager.counters()["queries"] - queries == 1

    if ending == "abort":
        engine.abort("waiting")
        engine.step()
        engine.manager.assert_drained(meanwhile=engine.step)
    for name in occupants:
        engine.abort(name)
    if ending == "load":
        result = engine.finish(["waiting"])["waiting"]
        assert (result.cached, result.tokens) == (restorable_tokens(TOKENS), cold)
    engine.settle()
    engine.manager.assert_drained()
    engine.reset()
    engine.kv.poison()
    again = engine.run(tokens)
    assert (again.cached, again.tokens) == (restorable_tokens(TOKENS), cold)


def test_case_a13_asking_before_the_answer(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    holds = engine.manager.holds
    with holds.held(QUERY_REPLY):
        engine.add("waiting", tokens)
        for _ in range(LOOKUPS):
            engine.step()
        holds.wait_reached(QUERY_REPLY)
        assert holds.reached(QUERY_REPLY) == 1
        assert waiting_operations(engine) == 1
    result = engine.finish(["waiting"])["waiting"]
    assert (result.cached, result.tokens) == (restorable_tokens(TOKENS), cold)
    engine.settle()
    engine.manager.assert_drained()


@pytest.mark.parametrize("grown", [True, False])
def test_of_a_lease_counts_what_the_engine_still_wants(
    engine: Engine, new_prompt: Prompts, grown: bool
) -> None:
    """The answer covers the whole prompt. Before it comes, another request brings the head into the engine's
    own cache: the ticket is for the rest of the lease, and both sides count the same pages."""
    tokens, pages = new_prompt(TOKENS), restorable_tokens(TOKENS) // BLOCK_TOKENS
    cold = stored(engine, tokens)
    counted, worker = Counted(engine), worker_client(engine)
    copied = worker.stats()["restored_pages"]
    holds = engine.manager.holds
    # One answer waits, those behind it do not.
    with holds.switched(QUERY_REPLY_FIRST, 1), holds.held(QUERY_REPLY):
        engine.add("whole", tokens)
        engine.step_until(lambda: holds.reached(QUERY_REPLY) > 0, "its answer is held")
        if grown:
            engine.add("head", tokens[: HEAD_PAGES * BLOCK_TOKENS + 1])
            assert engine.finish(["head"])["head"].cached == HEAD_PAGES * BLOCK_TOKENS
            assert counted["restored_pages"] == HEAD_PAGES
    result = engine.finish(["whole"])["whole"]
    engine.settle()
    assert (result.cached, result.tokens) == (restorable_tokens(TOKENS), cold)
    assert counted["client_hits_pages"] == pages + (HEAD_PAGES if grown else 0), "all of it was leased"
    assert counted["restored_pages"] == worker.stats()["restored_pages"] - copied == pages
    engine.manager.assert_drained()


def test_case_a18_pages_promised_by_the_lookup_stay(
    engine: Engine, filler: Filler, new_prompt: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the answer and the allocation another client fills the pool several times over."""
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    occupants = occupy(engine, new_prompt)
    lookups = count_lookups(engine, monkeypatch)
    engine.add("waiting", tokens)
    wait_for_blocks(engine, lookups)
    evicted = engine.manager.counters()["evicted_pages"]
    assert filler.fill(2 * POOL_PAGES) > 0
    assert engine.manager.counters()["evicted_pages"] - evicted > POOL_PAGES // 2
    for name in occupants:
        engine.abort(name)
    engine.kv.poison(keep=set(range(engine.kv.num_blocks)) - free_block_ids(engine))
    result = engine.finish(["waiting"])["waiting"]
    assert (result.cached, result.tokens) == (restorable_tokens(TOKENS), cold)
    engine.settle()
    engine.manager.assert_drained()

    # Control: without a lease the same pages are the first to go.
    filler.fill(2 * POOL_PAGES)
    engine.reset()
    engine.kv.poison()
    again = engine.run(tokens)
    assert (again.cached, again.tokens) == (0, cold)


def free_block_ids(engine: Engine) -> set[int]:
    pool = engine.scheduler.kv_cache_manager.block_pool
    return {block.block_id for block in pool.free_block_queue.get_all_free_blocks()}
