"""What was saved outlives the manager and the engine: it comes back from the SSD with the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine import Engine
from support.manager import Manager
from support.prompts import BLOCK_TOKENS, restorable_tokens
from support.tier import leave_on_tier, stored, wait_written
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 300
HIT = restorable_tokens(TOKENS)
PAGES = HIT // BLOCK_TOKENS
PROMPTS = 3


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of the cache, on a real file system."""
    return tmp_path / "ssd"


@pytest.fixture
def manager(new_manager: Callable[..., Manager], directory: Path) -> Manager:
    return new_manager(
        pool_size="64mib",
        flags=("--ssd-cache-path", str(directory), "--ssd-cache-capacity", "512mib"),
    )


@pytest.fixture
def engine(manager: Manager, new_engine: Callable[..., Engine]) -> Engine:
    return new_engine(manager, connector={"verify_restore": "all"})


def wait_found(manager: Manager) -> None:
    """Waits until the manager has looked everywhere in its directory."""
    wait_until(
        lambda: [row["state"] for row in manager.status()["ssd"]] == ["serving"], "everything is found"
    )


def found(manager: Manager) -> int:
    """Pages that the manager has found in its directory."""
    wait_found(manager)
    return manager.counters()["found_pages"]


def assert_restored_from_ssd(engine: Engine, prompts: list[list[int]], cold: list[list[int]]) -> None:
    """Each prompt is a hit whose pages were read from the SSD, with the same tokens."""
    before = engine.manager.counters()["tier_pages"]
    for tokens, expected in zip(prompts, cold, strict=True):
        result = engine.run(tokens)
        assert (result.cached, result.tokens) == (HIT, expected)
    assert engine.manager.counters()["tier_pages"] - before == len(prompts) * PAGES
    engine.manager.assert_drained()


def test_pages_come_back_after_the_memory_is_dropped(engine: Engine, new_prompt: Prompts) -> None:
    prompts = [new_prompt(TOKENS, index) for index in range(PROMPTS)]
    cold = stored(engine, prompts)
    assert_restored_from_ssd(engine, prompts, cold)


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_case_a48_a_manager_that_restarts_is_warm(engine: Engine, new_prompt: Prompts, end: str) -> None:
    prompts = [new_prompt(TOKENS, index) for index in range(PROMPTS)]
    cold = stored(engine, prompts)
    if end == "stopped":
        engine.manager.stop()
    else:
        engine.manager.kill()
    engine.manager.start()
    assert found(engine.manager) == PROMPTS * PAGES
    engine.wait_active()
    engine.reset()
    engine.kv.poison()
    assert_restored_from_ssd(engine, prompts, cold)


def test_a_new_engine_of_the_same_model_is_warm(
    manager: Manager, new_engine: Callable[..., Engine], new_prompt: Prompts
) -> None:
    prompts = [new_prompt(TOKENS, index) for index in range(PROMPTS)]
    first = new_engine(manager, connector={"verify_restore": "all"})
    cold = stored(first, prompts)
    first.close()
    manager.stop()
    manager.start()
    second = new_engine(manager, connector={"verify_restore": "all"})
    assert_restored_from_ssd(second, prompts, cold)


def test_control_nothing_is_found_where_nothing_was_written(
    engine: Engine, new_prompt: Prompts, directory: Path
) -> None:
    tokens = new_prompt(TOKENS)
    (cold,) = stored(engine, [tokens])
    engine.manager.stop()
    for segment in directory.glob("segment-*"):
        segment.unlink()
    engine.manager.start()
    assert found(engine.manager) == 0
    engine.wait_active()
    engine.reset()
    engine.kv.poison()
    result = engine.run(tokens)
    assert (result.cached, result.tokens) == (0, cold)


def test_a_flipped_bit_is_a_miss_and_never_a_wrong_token(
    engine: Engine, new_prompt: Prompts, directory: Path
) -> None:
    tokens = new_prompt(TOKENS)
    (cold,) = stored(engine, [tokens])
    engine.manager.stop()
    for segment in directory.glob("segment-*"):
        content = bytearray(segment.read_bytes())
        # One bit in the payload of each page there may be: pages are aligned to 4 KiB.
        for at in range(4096 + 100, len(content), 8192):
            content[at] ^= 1
        segment.write_bytes(content)
    engine.manager.start()
    wait_found(engine.manager)
    engine.wait_active()
    engine.reset()
    engine.kv.poison()
    result = engine.run(tokens)
    assert (result.cached, result.tokens) == (0, cold)
    engine.manager.assert_drained()


def test_case_a33_a_reset_reaches_the_ssd_and_lasts(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    (cold,) = stored(engine, [tokens])
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    wait_until(lambda: engine.manager.status()["ssd"][0]["recorded_resets"] > 0, "the reset is recorded")
    engine.manager.stop()
    engine.manager.start()
    assert found(engine.manager) == 0
    engine.wait_active()
    engine.reset()
    engine.kv.poison()
    result = engine.run(tokens)
    assert (result.cached, result.tokens) == (0, cold)
    wait_written(engine)
    leave_on_tier(engine)
    assert_restored_from_ssd(engine, [tokens], [cold])
