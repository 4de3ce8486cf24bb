"""Pages read ahead for requests that wait, from a slow tier behind an emptied pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from support.engine import Engine
from support.gauges import not_drained
from support.manager import Manager, slow_tier
from support.prompts import BLOCK_TOKENS, restorable_tokens
from support.tier import Counted, leave_on_tier, stored
from support.wait import wait_until

Prompts = Callable[..., list[int]]
PREPARE, WARM_UP = "ORBITKV_PREPARE_REQUESTS", "ORBITKV_QUEUE_WARMUP"
QUEUE = [f"queued-{index}" for index in range(8)]
WINDOW = 4
TOKENS = 1000
PAGES = restorable_tokens(TOKENS) // BLOCK_TOKENS
PAGE_BYTES = 64 << 10
SLOTS = ["slot-0", "slot-1"]


@pytest.fixture(scope="module", params=["prepare", "warm_up", "off"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], mode: str
) -> Iterator[Engine]:
    """Runs two requests at a time, so that a queue forms behind them."""
    manager = new_manager(flags=slow_tier(100))
    switch = {"prepare": PREPARE, "warm_up": WARM_UP, "off": None}[mode]
    with pytest.MonkeyPatch.context() as patch:
        for variable in (PREPARE, WARM_UP):
            patch.setenv(variable, str(int(variable == switch)))
        yield new_engine(
            manager,
            max_num_seqs=len(SLOTS),
            connector={"verify_restore": "all", "lookup_deadline_ms": 60_000},
            options={"scheduling_policy": "priority"},
        )


@pytest.fixture
def prepares(mode: str) -> None:
    if mode != "prepare":
        pytest.skip("about preparations alone")


def take_slots(engine: Engine, new_prompt: Prompts) -> None:
    """Two short requests run, and the queue waits for their end."""
    for index, name in enumerate(SLOTS):
        engine.add(name, new_prompt(20, 100 + index), 1000)
    engine.step_until(lambda: all(engine.generated(name) > 0 for name in SLOTS), "the slots are taken")


def free_slots(engine: Engine) -> None:
    for name in SLOTS:
        engine.abort(name)


def not_drained_but_saves(manager: Manager) -> list[str]:
    return [name for name in not_drained(manager.status()) if not name.startswith("save_")]


def operations(engine: Engine, phase: str) -> int:
    return engine.manager.status()["query"]["operations"][phase]


def wait_ahead(engine: Engine, mode: str, counted: Counted) -> None:
    """Steps until what can be read ahead has been."""
    if mode == "prepare":
        engine.step_until(lambda: operations(engine, "prepared") == WINDOW, "four are prepared")
    elif mode == "warm_up":
        wanted = WINDOW * PAGES
        engine.step_until(lambda: counted["client_warmed_pages"] == wanted, "four are warm")
    else:
        for _ in range(50):
            engine.step()


def assert_served(engine: Engine, cold: list[list[int]]) -> None:
    results = engine.finish(QUEUE)
    assert [results[name].tokens for name in QUEUE] == cold
    assert {results[name].cached for name in QUEUE} == {restorable_tokens(TOKENS)}
    assert_idle(engine)


def assert_idle(engine: Engine) -> None:
    engine.settle()
    engine.manager.assert_drained()
    side = engine.scheduler.connector._scheduler
    assert side.records == {}
    assert not side._lookahead._waiting


@pytest.mark.parametrize("order", ["arrival", "reversed"])
def test_a_queue_of_eight(engine: Engine, new_prompt: Prompts, mode: str, order: str) -> None:
    """In `reversed`, the last one to arrive runs first: what was read for others must not reach it."""
    prompts = [new_prompt(TOKENS, index) for index in range(len(QUEUE))]
    cold = stored(engine, prompts)
    take_slots(engine, new_prompt)
    counted = Counted(engine)
    for index, (name, tokens) in enumerate(zip(QUEUE, prompts, strict=True)):
        engine.add(name, tokens, priority=0 if order == "arrival" else len(QUEUE) - index)
    wait_ahead(engine, mode, counted)
    assert counted["queries"] == counted["adapter_lookups"] == 0, "nobody has asked yet"
    assert counted["read_pages"] == (0 if mode == "off" else WINDOW * PAGES)
    free_slots(engine)
    assert_served(engine, cold)

    assert counted["queries"] == counted["adapter_lookups"] == len(QUEUE), "each counts once"
    assert counted["restored_pages"] == len(QUEUE) * PAGES
    assert counted["bad_pages"] == 0
    assert counted["claims"] == counted["adapter_preparations_claimed"]
    assert (counted["claims"] >= WINDOW) == (mode == "prepare")
    assert (counted["claims"] == 0) == (mode != "prepare")
    # With their headers, which count too.
    assert (counted["ahead_read_bytes"] > WINDOW * PAGES * PAGE_BYTES) == (mode != "off")
    # Of what was read ahead, nothing but what was restored has left.
    assert counted["ahead_restored_bytes"] == counted["ahead_read_bytes"]
    assert (counted["speculations"] == 0) == (mode == "off")


@pytest.mark.parametrize("place", ["reading", "ready", "asked"])
def test_abort_in_the_queue(engine: Engine, new_prompt: Prompts, mode: str, place: str) -> None:
    prompts = [new_prompt(TOKENS, index) for index in range(len(QUEUE))]
    cold = stored(engine, prompts)
    take_slots(engine, new_prompt)
    counted = Counted(engine)
    for name, tokens in zip(QUEUE, prompts, strict=True):
        engine.add(name, tokens)
    if place != "reading":
        wait_ahead(engine, mode, counted)
    if place == "asked":
        free_slots(engine)
        engine.step_until(lambda: counted["adapter_lookups"] > 0, "the first one is looked up")
    for name in QUEUE:
        engine.abort(name)
    if place != "asked":
        engine.step()
        if mode == "prepare":
            # With others still running: nothing but the end of the requests lets go.
            engine.step_until(lambda: not operations(engine, "prepared"), "nothing is held")
            engine.manager.assert_drained(meanwhile=engine.step)
        free_slots(engine)
    assert_idle(engine)
    assert counted["client_preparations_expired"] == 0, "time ended what the abort should have"

    # The same prompts still serve.
    leave_on_tier(engine)
    for name, tokens in zip(QUEUE, prompts, strict=True):
        engine.add(name, tokens)
    assert_served(engine, cold)


@pytest.mark.usefixtures("prepares")
def test_changed_residency(engine: Engine, new_prompt: Prompts) -> None:
    """Prepared behind a prefix that the engine had, which is gone when the request is looked up."""
    tokens = new_prompt(TOKENS)
    (cold,) = stored(engine, [tokens])
    had = 10
    engine.run(tokens[: had * BLOCK_TOKENS + 1])
    engine.manager.drop_memory()
    take_slots(engine, new_prompt)
    counted = Counted(engine)
    engine.add("queued", tokens)
    engine.step_until(lambda: operations(engine, "prepared") == 1, "it is prepared")
    assert counted["read_pages"] == PAGES - had
    pool = engine.scheduler.kv_cache_manager.block_pool
    pool.evict_blocks(set(range(1, engine.settings.blocks)))
    free_slots(engine)
    result = engine.finish(["queued"])["queued"]
    assert (result.tokens, result.cached) == (cold, restorable_tokens(TOKENS))
    assert_idle(engine)
    assert counted["restored_pages"] == PAGES
    assert counted["claims"] == counted["adapter_preparations_claimed"] == 0
    assert counted["queries"] == counted["adapter_lookups"] == 1


@pytest.mark.usefixtures("prepares")
def test_an_engine_that_does_not_step_lets_go(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    (cold,) = stored(engine, [tokens])
    take_slots(engine, new_prompt)
    counted = Counted(engine)
    engine.add("queued", tokens)
    engine.step_until(lambda: operations(engine, "prepared") == 1, "it is prepared")
    # Nothing steps here, so nothing says that the request still waits.
    wait_until(lambda: counted["client_preparations_expired"] == 1, "it has expired")
    # What the running requests were about to save waits for a step.
    wait_until(lambda: not not_drained_but_saves(engine.manager), "nothing is held")
    free_slots(engine)
    result = engine.finish(["queued"])["queued"]
    assert (result.tokens, result.cached) == (cold, restorable_tokens(TOKENS))
    assert_idle(engine)
    assert counted["claims"] == counted["adapter_preparations_claimed"] == 0
    assert counted["queries"] == counted["adapter_lookups"] == 1


@pytest.mark.usefixtures("prepares")
def test_an_engine_that_steps_does_not(engine: Engine, new_prompt: Prompts) -> None:
    """The control of the one above, for longer than an unclaimed preparation lives."""
    tokens = new_prompt(TOKENS)
    (cold,) = stored(engine, [tokens])
    take_slots(engine, new_prompt)
    counted = Counted(engine)
    engine.add("queued", tokens)
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        engine.step()
        time.sleep(0.02)
    assert operations(engine, "prepared") == 1
    free_slots(engine)
    result = engine.finish(["queued"])["queued"]
    assert (result.tokens, result.cached) == (cold, restorable_tokens(TOKENS))
    assert_idle(engine)
    assert counted["claims"] == counted["adapter_preparations_claimed"] == 1
    assert counted["client_preparations_expired"] == counted["expired_preparations"] == 0
