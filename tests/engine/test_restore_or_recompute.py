"""A restore that takes longer than computing is not done, until the tier is fast again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine import Engine
from support.holds import MEMORY_TIER_DELAY, SSD_FAULT
from support.manager import Manager, slow_tier
from support.prompts import BLOCK_TOKENS, restorable_tokens
from support.tier import Counted, leave_on_tier, reads_pending, stored
from support.wait import wait_until

from orbitkv.vllm.estimate import MIN_SAMPLES, PROBE_MOST_S

Prompts = Callable[..., list[int]]
TOKENS = 1000
HIT = restorable_tokens(TOKENS)
PAGES = HIT // BLOCK_TOKENS
# Longer than any lookup waits by default.
SLOW_MS = 1500
SWITCH = "ORBITKV_REFUSE_SLOW_RESTORES"


@pytest.fixture(scope="module")
def manager(new_manager: Callable[..., Manager]) -> Manager:
    return new_manager(flags=slow_tier(0))


@pytest.fixture
def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH)


@pytest.fixture
def engine(manager: Manager, new_engine: Callable[..., Engine], by_default: None) -> Engine:
    """Each test's estimate is its own. In bfloat16 what is computed behind a restored head rounds otherwise
    than in a whole prompt, without a cache manager too."""
    return new_engine(manager, connector={"verify_restore": "all"}, options={"dtype": "float32"})


def worth(engine: Engine) -> object:
    return engine.scheduler.connector._scheduler._worth


def slow_lookups(engine: Engine, prompts: list[list[int]], cold: list[list[int]]) -> None:
    """Lookups that learn how slow the tier is: it brings nothing while they wait."""
    for tokens, expected in zip(prompts, cold, strict=True):
        leave_on_tier(engine)
        result = engine.run(tokens)
        assert (result.cached, result.tokens) == (0, expected)
        wait_until(lambda: reads_pending(engine) == 0, "the late reads end")
    leave_on_tier(engine)


def test_a_slow_tier_is_left_alone_until_a_probe_finds_it_fast(
    engine: Engine, manager: Manager, new_prompt: Prompts
) -> None:
    prompts = [new_prompt(TOKENS, index) for index in range(MIN_SAMPLES)]
    cold = stored(engine, prompts)
    counted = Counted(engine)
    with manager.holds.switched(MEMORY_TIER_DELAY, SLOW_MS):
        slow_lookups(engine, prompts, cold)
        assert counted["client_tier_left"] == 0, "nothing is refused before it is known"
        assert counted["read_pages"] == MIN_SAMPLES * PAGES
        result = engine.run(prompts[0])
        assert (result.cached, result.tokens) == (0, cold[0])
        assert counted["client_tier_left"] == 1
        assert counted["client_tier_left_pages"] == PAGES
        assert counted["read_pages"] == MIN_SAMPLES * PAGES, "and nothing was read for it"
        assert counted["adapter_lookup_timeouts"] == MIN_SAMPLES, "nor waited for"
        manager.assert_drained()
        assert worth(engine).counters(worth(engine)._client.stats())["refused_slow"] == 1

    # What is in memory is restored all the same.
    engine.reset()
    engine.kv.poison()
    result = engine.run(prompts[0])
    assert (result.cached, result.tokens) == (HIT, cold[0]), "it was saved again when it was computed"

    leave_on_tier(engine)
    assert engine.run(prompts[1]).cached == 0, "fast again, which nobody knows"
    worth(engine)._clock = lambda: time.monotonic() + PROBE_MOST_S
    for tokens, expected in zip(prompts, cold, strict=True):
        leave_on_tier(engine)
        result = engine.run(tokens)
        assert (result.cached, result.tokens) == (HIT, expected)
    assert counted["client_tier_left"] == 2
    assert counted["bad_pages"] == 0
    engine.settle()
    manager.assert_drained()
    assert engine.scheduler.connector._scheduler.records == {}


def test_a_throttled_ssd_is_left_alone(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    new_prompt: Prompts,
    by_default: None,
    tmp_path: Path,
) -> None:
    flags = ("--ssd-cache-path", str(tmp_path / "throttled"), "--ssd-cache-capacity", "512mib")
    manager = new_manager(flags=flags)
    engine = new_engine(manager, connector={"verify_restore": "all"}, options={"dtype": "float32"})
    prompts = [new_prompt(TOKENS, index) for index in range(MIN_SAMPLES)]
    cold = stored(engine, prompts)
    counted = Counted(engine)
    leave_on_tier(engine)
    result = engine.run(prompts[0])
    assert (result.cached, result.tokens) == (HIT, cold[0]), "control: as fast as it is, it is read"
    assert counted["read_pages"] == PAGES
    with manager.holds.switched(SSD_FAULT, f"throttled read slow={SLOW_MS}"):
        # The fast one counts as well.
        slow_lookups(engine, prompts[1:], cold[1:])
        read = counted["read_pages"]
        assert counted["client_tier_left"] == 0
        result = engine.run(prompts[0])
        assert (result.cached, result.tokens) == (0, cold[0])
        assert (counted["client_tier_left_pages"], counted["read_pages"]) == (PAGES, read)
    engine.settle()
    manager.assert_drained()


def test_the_head_that_is_in_memory_is_restored(
    engine: Engine, manager: Manager, new_prompt: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    head_pages = 10
    prompts = [new_prompt(TOKENS, index) for index in range(MIN_SAMPLES)]
    cold = stored(engine, prompts)
    with manager.holds.switched(MEMORY_TIER_DELAY, SLOW_MS):
        slow_lookups(engine, prompts, cold)
        with monkeypatch.context() as patch:
            patch.setattr(worth(engine), "_is_on", False)
            manager.holds.set(MEMORY_TIER_DELAY, 0)
            head = prompts[0][: head_pages * BLOCK_TOKENS + 1]
            assert engine.run(head, 1).cached == head_pages * BLOCK_TOKENS
        manager.holds.set(MEMORY_TIER_DELAY, SLOW_MS)
        engine.reset()
        engine.kv.poison()
        counted = Counted(engine)
        result = engine.run(prompts[0])
        assert (result.cached, result.tokens) == (head_pages * BLOCK_TOKENS, cold[0])
        assert counted["client_tier_left_pages"] == PAGES - head_pages
        assert counted["read_pages"] == 0
        manager.assert_drained()


@pytest.mark.parametrize("way", ["setting", "environment"])
def test_control_switched_off_it_is_restored_slowly(
    manager: Manager,
    new_engine: Callable[..., Engine],
    new_prompt: Prompts,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    monkeypatch.setenv(SWITCH, "0" if way == "environment" else "1")
    off = {"refuse_slow_restores": False} if way == "setting" else {}
    engine = new_engine(manager, connector={**off, "verify_restore": "all", "lookup_deadline_ms": 60_000})
    prompts = [new_prompt(TOKENS, index) for index in range(MIN_SAMPLES)]
    cold = stored(engine, prompts)
    counted = Counted(engine)
    with manager.holds.switched(MEMORY_TIER_DELAY, SLOW_MS):
        for tokens, expected in zip([*prompts, prompts[0]], [*cold, cold[0]], strict=True):
            leave_on_tier(engine)
            result = engine.run(tokens)
            assert (result.cached, result.tokens) == (HIT, expected)
    assert counted["client_tier_left"] == 0
    manager.assert_drained()
