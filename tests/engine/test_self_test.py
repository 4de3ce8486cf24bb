"""An engine whose KV memory is not where the adapter believes, or whose path through the manager changes
bytes, is served without the cache, and says so once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from support.engine import Engine, scheduler_client, worker_client
from support.holds import RESTORE_FAULT, Holds, listen
from support.manager import Manager
from support.prompts import restorable_tokens
from support.wait import wait_until

Prompts = Callable[..., list[int]]
Regions = list[tuple[int, int, int, int]]
TOKENS = 300


def swapped_layers(regions: Regions) -> Regions:
    return [regions[1], regions[0], *regions[2:]]


def one_layer_twice(regions: Regions) -> Regions:
    return [regions[0], regions[0], *regions[2:]]


def kernel_block_for_block(regions: Regions) -> Regions:
    """Half of the block, at half of the stride: a kernel's block taken for the scheduler's."""
    return [(address, stride // 2, size // 2, blocks) for address, stride, size, blocks in regions]


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What the adapter says at WARNING and above."""
    # The engine takes handlers away when it is imported.
    from orbitkv.vllm.log import logger

    said: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Collect(logging.WARNING)
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)


def assert_serves_without_cache(engine: Engine, tokens: list[int]) -> list[int]:
    """No hit, no save, equal tokens; the tokens."""
    hit = restorable_tokens(len(tokens), engine.settings.block_tokens)
    manager = engine.manager
    before = manager.counters()
    first = engine.run(tokens)
    assert engine.run(tokens).cached == hit > 0, "the engine's own cache works"
    engine.press_out()
    again = engine.run(tokens)
    assert (first.cached, again.cached, again.tokens) == (0, 0, first.tokens)
    after = manager.counters()
    for counter in ("queries", "granted_pages", "committed_pages", "restored_pages"):
        assert after[counter] == before[counter], counter
    assert manager.active_instances() == 0
    assert not scheduler_client(engine).active
    manager.assert_drained()
    return first.tokens


@pytest.mark.parametrize("lie", [swapped_layers, one_layer_twice, kernel_block_for_block])
def test_layout_that_lies_turns_the_cache_off(
    manager: Manager,
    new_engine: Callable[..., Engine],
    new_prompt: Prompts,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
    lie: Callable[[Regions], Regions],
) -> None:
    import orbitkv.vllm.worker as worker
    from orbitkv import _native as native

    lying = SimpleNamespace(**{name: getattr(native, name) for name in dir(native) if name[0] != "_"})
    lying.Layout = lambda regions: native.Layout(lie(regions))
    monkeypatch.setattr(worker, "load_native", lambda: lying)
    engine = new_engine(manager, wait_active=False)
    assert_serves_without_cache(engine, new_prompt(TOKENS))
    assert len(lines) == 1, lines
    assert "layout self-test failed" in lines[0]
    assert "serving without it" in lines[0]


@pytest.mark.parametrize("fault", ["zero", "skip"])
def test_path_that_changes_bytes_turns_the_cache_off_until_it_is_sound(
    manager: Manager,
    new_engine: Callable[..., Engine],
    holds: Holds,
    new_prompt: Prompts,
    lines: list[str],
    fault: str,
) -> None:
    listen()
    holds.set(RESTORE_FAULT, fault)
    engine = new_engine(manager, wait_active=False)
    worker = worker_client(engine)
    wait_until(lambda: worker.self_test != "pending", "the self-test has ended")
    assert worker.self_test.startswith("failed: byte 0 of scratch block 1 is wrong")
    tokens = new_prompt(TOKENS)
    expected = assert_serves_without_cache(engine, tokens)
    assert len([line for line in lines if "self-test failed" in line]) == 1, lines

    # It is repeated at each attach, so a sound path needs no new engine.
    holds.set(RESTORE_FAULT)
    manager.restart()
    engine.wait_active()
    engine.press_out()
    assert engine.run(tokens).cached == 0
    engine.press_out()
    result = engine.run(tokens)
    assert (result.cached, result.tokens) == (restorable_tokens(TOKENS), expected)
    manager.assert_drained()


def test_pool_smaller_than_a_page_turns_the_cache_off(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    new_prompt: Prompts,
    lines: list[str],
) -> None:
    # A block of 512 tokens is 1 MiB, and its page has a header.
    engine = new_engine(new_manager(pool_size="1mib"), wait_active=False, block_tokens=512, blocks=12)
    worker = worker_client(engine)
    wait_until(lambda: worker.self_test != "pending", "the self-test has ended")
    assert worker.self_test.startswith("failed: ")
    assert_serves_without_cache(engine, new_prompt(2000))
    assert len([line for line in lines if "self-test failed" in line]) == 1, lines
