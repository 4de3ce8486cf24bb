"""Restore or recompute in the connector: what is asked of the manager, what is refused, counted and shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orbitkv.engine.settings import Settings, SettingsError
from orbitkv.vllm.estimate import MIN_SAMPLES, PROBE_FIRST_S

SWITCH = "ORBITKV_REFUSE_SLOW_RESTORES"
BLOCK, BLOCKS = 4, 40
TOKENS = BLOCK * BLOCKS + 1
STEP_S = 0.04  # a block a millisecond
PAGE_US = int(1e6 * STEP_S / BLOCKS)
SLOW, FAST = 10, 0.01


class Clock:
    """Stands still between two looks, but for what a test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(make_engine: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    def make(**settings: Any) -> Any:
        engine = make_engine(**settings)
        engine.connector._scheduler._worth._clock = clock
        return engine

    return make


def request(mini: Any, name: str, first: int = 0, tokens: int = TOKENS) -> Any:
    return mini.FakeRequest(name, list(range(first, first + tokens)))


def compute(engine: Any, mini: Any, clock: Clock, count: int = MIN_SAMPLES) -> None:
    """Different prompts, each in one step of `STEP_S`; all are saved."""
    for index in range(count):
        one = engine.add(request(mini, f"cold-{index}", 1000 * (index + 1)))
        assert engine.match(one) == (0, False)
        table = engine.allocate(one, 0)

        def forward() -> None:
            clock.now += STEP_S

        engine.step(mini.output(new=[(one, table, 0, TOKENS)]), forward)
        engine.finish(one, table)
        engine.pool.free += table
        for _ in range(3):
            engine.step()


def look(engine: Any, mini: Any, index: int, name: str = "again", tokens: int = TOKENS) -> tuple[int, Any]:
    """A request for a prompt that was computed: restorable blocks, and its query."""
    one = engine.add(request(mini, f"{name}-{index}", 1000 * (index + 1), tokens))
    queries = len(module(engine).MANAGER.queries)
    external, _ = engine.match(one)
    assert engine.match(one) == (external, False), "the same, however often it is asked"
    engine.finish(one)
    engine.step()
    asked = module(engine).MANAGER.queries[queries:]
    return external // BLOCK, asked[0] if asked else None


def module(engine: Any) -> Any:
    from orbitkv.engine.native import load_native

    return load_native()


def counted(engine: Any) -> tuple[int, int]:
    return engine.counts["refused_slow"], engine.counts["refused_slow_pages"]


def learn_slow(engine: Any, mini: Any, manager: Any, clock: Clock) -> None:
    """The tier is slow, and that is known."""
    compute(engine, mini, clock)
    manager.read_us = SLOW * PAGE_US
    for index in range(MIN_SAMPLES):
        manager.to_tier()
        assert look(engine, mini, index, "learn")[0] == BLOCKS, "not before it is known"
    manager.to_tier()


def test_a_slow_tier_is_not_read(make: Any, mini: Any, manager: Any, clock: Clock) -> None:
    engine = make()
    learn_slow(engine, mini, manager, clock)
    hits, query = look(engine, mini, 0)
    assert (hits, query.memory_only) == (0, True)
    assert counted(engine) == (1, BLOCKS)
    assert manager.tier_counts["tier_reads"] == MIN_SAMPLES
    assert manager.leases == 0
    assert engine.counts["lookup_misses"] == MIN_SAMPLES + 1, "and the cold ones"


def test_pages_that_were_read_beside_others_are_not_left_out(make: Any, manager: Any) -> None:
    """Time of several reads at once counts once, and so with one of them."""
    worth = make().connector._scheduler._worth
    for pages, micros in ((2, 0), (0, 0), (6, 1000), (4, 0), (0, 1000)):
        counts = manager.tier_counts
        counts["tier_reads"] += 1
        counts["tier_read_pages"] += pages
        counts["tier_read_us"] += micros
        worth.may_read()
    read, page_bytes = worth.estimate.read, worth.estimate._read_bytes
    assert read.samples == 5
    assert 4 * page_bytes / 1e-3 < read.per_second < 8 * page_bytes / 1e-3


def test_the_head_that_is_in_memory_is_restored(make: Any, mini: Any, manager: Any, clock: Clock) -> None:
    engine = make()
    learn_slow(engine, mini, manager, clock)
    head = request(mini, "head", 1000).block_hashes[:7]
    manager.pages |= {page: manager.tier[page] for page in head}
    assert look(engine, mini, 0)[0] == 7
    assert counted(engine) == (1, BLOCKS - 7)


def test_a_fast_tier_is_read(make: Any, mini: Any, manager: Any, clock: Clock) -> None:
    """The control: as slow a query, of an engine that is slower still."""
    engine = make()
    compute(engine, mini, clock)
    manager.read_us = int(0.5 * PAGE_US)
    for index in (0, 1, 2, 3, 0, 1, 2, 3):
        manager.to_tier()
        hits, query = look(engine, mini, index, f"again-{manager.operations}")
        assert (hits, query.memory_only) == (BLOCKS, False)
    assert counted(engine) == (0, 0)


@pytest.mark.parametrize("way", ["setting", "environment"])
def test_switched_off_it_is_read_slowly(
    make: Any, mini: Any, manager: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "environment":
        monkeypatch.setenv(SWITCH, "0")
    engine = make(**({"refuse_slow_restores": False} if way == "setting" else {}))
    learn_slow(engine, mini, manager, clock)
    assert look(engine, mini, 0)[0] == BLOCKS
    assert counted(engine) == (0, 0)
    assert manager.queries[-1].deadline_ms == 10_000, "and nothing ends the wait early"


def test_a_probe_finds_a_tier_that_became_fast(make: Any, mini: Any, manager: Any, clock: Clock) -> None:
    engine = make()
    learn_slow(engine, mini, manager, clock)
    assert look(engine, mini, 0)[0] == 0
    clock.now += PROBE_FIRST_S
    assert look(engine, mini, 1)[0] == BLOCKS, "it is slow still, and read for once"
    manager.to_tier()
    assert look(engine, mini, 2)[0] == 0
    manager.read_us = int(FAST * PAGE_US)
    assert look(engine, mini, 3)[0] == 0
    clock.now += 2 * PROBE_FIRST_S
    assert look(engine, mini, 0, "probe")[0] == BLOCKS
    manager.to_tier()
    assert look(engine, mini, 1, "after")[0] == BLOCKS
    assert engine.counts["slow_probes"] == 2
    assert counted(engine) == (3, 3 * BLOCKS)


def restore(engine: Any, mini: Any, name: str = "learn") -> None:
    """Restores each prompt that was computed, between steps."""
    for index in range(MIN_SAMPLES):
        one = engine.add(request(mini, f"{name}-{index}", 1000 * (index + 1)))
        external, is_async = engine.match(one)
        assert (external, is_async) == (BLOCKS * BLOCK, True)
        table = engine.allocate(one, external, tokens=external)
        engine.step()
        engine.finish(one, table)
        engine.pool.free += table
        engine.step()


def test_what_copies_wait_for_does_not_make_them_slow(
    make: Any, mini: Any, manager: Any, clock: Clock
) -> None:
    """On a device a restore comes after the step before it, and after others."""
    engine = make(load_mode="async")
    compute(engine, mini, clock)
    manager.copy_us = int(1e6 * SLOW * STEP_S)
    restore(engine, mini)
    restore(engine, mini, "again")
    assert counted(engine) == (0, 0)


def test_copies_slower_than_computing_are_refused(make: Any, mini: Any, manager: Any, clock: Clock) -> None:
    engine = make(load_mode="async")
    compute(engine, mini, clock)
    manager.timed_us = int(1e6 * SLOW * STEP_S)
    restore(engine, mini)
    assert look(engine, mini, 0)[0] == 0
    assert (manager.leases, counted(engine)) == (0, (1, BLOCKS))
    clock.now += PROBE_FIRST_S
    one = engine.add(request(mini, "probe", 1000))
    assert engine.match(one) == (BLOCKS * BLOCK, True)
    assert engine.match(one) == (BLOCKS * BLOCK, True), "one lookup, one decision"
    engine.finish(one)
    assert manager.leases == 0


def test_the_wait_is_no_longer_than_computing(make: Any, mini: Any, manager: Any, clock: Clock) -> None:
    engine = make()
    compute(engine, mini, clock)
    assert manager.queries[0].deadline_ms == 10_000
    look(engine, mini, 0)
    assert manager.queries[-1].deadline_ms <= 100
    clock.now += 1.0
    engine.connector._scheduler._worth.estimate.prefill.observe(1, 1000.0)
    look(engine, mini, 1)
    assert 9_000 < manager.queries[-1].deadline_ms <= 10_000


@pytest.mark.parametrize("switch", ["prepare_requests", "queue_warmup"])
def test_nothing_is_read_ahead_that_would_be_refused(
    make: Any, mini: Any, manager: Any, clock: Clock, switch: str
) -> None:
    engine = make(**{switch: True})
    learn_slow(engine, mini, manager, clock)
    ahead = len(manager.preparations) + len(manager.warm_ups)
    assert ahead > 0
    one = engine.add(request(mini, "waits", 1000))
    engine.step()
    assert len(manager.preparations) + len(manager.warm_ups) == ahead
    engine.finish(one)


def test_a_preparation_that_ended_is_not_read_anew(make: Any, mini: Any, manager: Any, clock: Clock) -> None:
    engine = make(prepare_requests=True)
    compute(engine, mini, clock)
    one = engine.add(request(mini, "waits", 1000))
    manager.preparations[-1].lose("expired")
    engine.connector._scheduler._worth.estimate.read.observe(1, 1000.0, MIN_SAMPLES)
    manager.to_tier()
    assert engine.match(one) == (0, False)
    assert manager.queries[-1].memory_only
    assert manager.preparations[-1].cancelled
    engine.finish(one)


def test_it_is_shown(make: Any, mini: Any, manager: Any, clock: Clock, lines: list[str]) -> None:
    engine = make()
    learn_slow(engine, mini, manager, clock)
    look(engine, mini, 0)
    gauges = engine.connector._scheduler._worth._speeds
    assert gauges["prefill_tokens_per_second"] == pytest.approx(TOKENS / STEP_S, rel=0.01)
    assert gauges["tier_read_bytes_per_second"] > 0
    said = [line for line in lines if "slower" in line]
    assert len(said) == 1
    assert "reading from the slower tier is slower than computing" in said[0]
    engine.connector._scheduler._worth.estimate.read.observe(1 << 40, 1e-3)
    engine.step()
    assert len([line for line in lines if "faster" in line]) == 0, "once a minute at most"
    clock.now += 60.0
    engine.step()
    assert len([line for line in lines if "faster than computing again" in line]) == 1


def test_the_switch_is_a_setting_too() -> None:
    assert Settings.parse({}, {}).refuse_slow_restores
    assert Settings.parse({}, {SWITCH: "1"}).refuse_slow_restores
    assert not Settings.parse({}, {SWITCH: "0"}).refuse_slow_restores
    assert Settings.parse({"refuse_slow_restores": True}, {SWITCH: "0"}).refuse_slow_restores
    with pytest.raises(SettingsError, match=f"{SWITCH} is 'no'; it must be 1"):
        Settings.parse({}, {SWITCH: "no"})
