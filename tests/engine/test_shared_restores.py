"""Requests that wait for the same prefix: it is restored once, whatever becomes of who restores it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine, worker_client
from support.holds import COPY_RESTORE, FAIL_PAGE, RESTORE_FAULT, Holds
from support.manager import Manager
from support.prompts import BLOCK_TOKENS

Prompts = Callable[..., list[int]]
REQUESTS = 8
PAGES = 32
SHARED_TOKENS = PAGES * BLOCK_TOKENS
# Behind the shared pages, and too few for a page of their own.
OWN_TOKENS, NEW_TOKENS = 12, 20
# Where pages are computed again, more or fewer at once than before, only float32 gives the same tokens.
OPTIONS = {"dtype": "float32"}


@pytest.fixture(scope="module", params=["sync", "async"])
def load_mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(load_mode: str, new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]) -> Engine:
    # Requests wait as long as a test holds copies.
    connector = {"load_mode": load_mode, "lookup_deadline_ms": 600_000, "refuse_slow_restores": False}
    connector["verify_restore"] = "all"
    return new_engine(new_manager(pool_size="256mib"), blocks=512, connector=connector, options=OPTIONS)


class Restored:
    """What the worker has copied, and the scheduler side counted, since."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = self._totals()

    def _totals(self) -> dict[str, int]:
        side = self._engine.scheduler.connector._scheduler
        return {**worker_client(self._engine).stats(), **side._sharing.counters}

    def __getitem__(self, name: str) -> int:
        return self._totals().get(name, 0) - self._before.get(name, 0)

    @property
    def pages(self) -> int:
        page_bytes = len(self._engine.kv.block(1))
        assert self["restored_bytes"] == self["restored_pages"] * page_bytes
        return self["restored_pages"]


def stored(engine: Engine, new_prompt: Prompts, count: int) -> tuple[dict[str, list[int]], list[list[int]]]:
    """Prompts by name, with equal pages, which are in the manager alone, and tails of their own; and their
    cold tokens."""
    shared = new_prompt(SHARED_TOKENS)
    prompts = [[*shared, *new_prompt(OWN_TOKENS, 1 + index)] for index in range(count)]
    cold = []
    for tokens in prompts:
        engine.reset()
        engine.manager.drop_memory()
        result = engine.run(tokens, NEW_TOKENS)
        assert result.cached == 0
        cold.append(result.tokens)
    assert len({tuple(tokens) for tokens in cold}) == count, "their tails make no difference"
    engine.press_out()
    engine.kv.poison()
    return {f"shared-{index}": tokens for index, tokens in enumerate(prompts)}, cold


def add_all(engine: Engine, prompts: dict[str, list[int]]) -> None:
    for name, tokens in prompts.items():
        engine.add(name, tokens, NEW_TOKENS)


def finished(engine: Engine, names: list[str]) -> tuple[list[list[int]], list[int]]:
    """Their tokens, and how many of each prompt were not computed; nothing is held any more."""
    results = engine.finish(names)
    engine.settle()
    engine.manager.assert_drained()
    assert engine.free_blocks == engine.settings.blocks - 1
    assert engine.scheduler.connector._scheduler._sharing._of_page == {}
    return [results[name].tokens for name in names], [results[name].cached for name in names]


def is_loading(engine: Engine, name: str) -> bool:
    return engine.request(name).status.name == "WAITING_FOR_REMOTE_KVS"


def only_async(load_mode: str) -> None:
    if load_mode != "async":
        pytest.skip("a restore inside a step has ended with it")


def test_eight_requests_restore_it_once(engine: Engine, load_mode: str, new_prompt: Prompts) -> None:
    prompts, cold = stored(engine, new_prompt, REQUESTS)
    restored = Restored(engine)
    add_all(engine, prompts)
    assert finished(engine, list(prompts)) == (cold, [SHARED_TOKENS] * REQUESTS)
    assert restored.pages == PAGES
    # In one step the engine shares the blocks by itself.
    waited = REQUESTS - 1 if load_mode == "async" else 0
    assert (restored["shared_restores"], restored["shared_tokens"]) == (waited, waited * SHARED_TOKENS)


def test_control_without_waiting_each_restores_it(
    engine: Engine, load_mode: str, new_prompt: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_async(load_mode)
    prompts, cold = stored(engine, new_prompt, REQUESTS)
    sharing = engine.scheduler.connector._scheduler._sharing
    monkeypatch.setattr(sharing, "puts_off", lambda *_: False)
    restored = Restored(engine)
    add_all(engine, prompts)
    assert finished(engine, list(prompts)) == (cold, [SHARED_TOKENS] * REQUESTS)
    assert restored.pages == REQUESTS * PAGES


def test_who_waits_holds_nothing(engine: Engine, load_mode: str, holds: Holds, new_prompt: Prompts) -> None:
    only_async(load_mode)
    prompts, cold = stored(engine, new_prompt, REQUESTS)
    [first, *others] = prompts
    with holds.held(COPY_RESTORE):
        engine.add(first, prompts[first], NEW_TOKENS)
        engine.step_until(lambda: holds.reached(COPY_RESTORE) > 0, "the copy is held")
        query, free = engine.manager.status()["query"], engine.free_blocks
        add_all(engine, {name: prompts[name] for name in others})
        for _ in range(20):
            engine.step()
        assert [engine.request(name).status.name for name in others] == ["WAITING"] * len(others)
        assert engine.free_blocks == free
        now = engine.manager.status()["query"]
        assert [now[name] for name in ("leases", "reserved_bytes")] == [
            query[name] for name in ("leases", "reserved_bytes")
        ]
    assert finished(engine, list(prompts)) == (cold, [SHARED_TOKENS] * REQUESTS)


def test_first_one_is_aborted_during_its_restore(
    engine: Engine, load_mode: str, holds: Holds, new_prompt: Prompts
) -> None:
    only_async(load_mode)
    prompts, cold = stored(engine, new_prompt, 3)
    restored = Restored(engine)
    first, second, third = prompts
    with holds.held(COPY_RESTORE):
        add_all(engine, prompts)
        engine.step_until(lambda: holds.reached(COPY_RESTORE) > 0, "the copy is held")
        assert [is_loading(engine, name) for name in prompts] == [True, False, False]
        engine.abort(first)
        engine.step_until(lambda: is_loading(engine, second), "the second one restores it itself")
        assert not is_loading(engine, third)
        assert engine.request(first) is not None, "its copy has been given up first"
    assert finished(engine, [second, third]) == (cold[1:], [SHARED_TOKENS] * 2)
    assert restored["shared_restores"] == 1
    assert restored.pages in (PAGES, 2 * PAGES), "of the aborted one all or nothing"


@pytest.mark.parametrize("failed", [1, 5, PAGES])
def test_page_of_the_first_one_fails(engine: Engine, holds: Holds, new_prompt: Prompts, failed: int) -> None:
    prompts, cold = stored(engine, new_prompt, 3)
    add_all(engine, prompts)
    with holds.switched(FAIL_PAGE, failed):
        tokens, _ = finished(engine, list(prompts))
        assert "fail_page" not in holds.ask("list"), "the page never failed"
    assert tokens == cold
    # And what they have computed and saved since is right.
    engine.press_out()
    add_all(engine, prompts)
    assert finished(engine, list(prompts)) == (cold, [SHARED_TOKENS] * 3)


def test_longer_prompt_restores_the_rest(
    engine: Engine, load_mode: str, holds: Holds, new_prompt: Prompts
) -> None:
    only_async(load_mode)
    long, own = new_prompt(1600), new_prompt(OWN_TOKENS, 1)
    prompts = {"short": [*long[:SHARED_TOKENS], *own], "long": long}
    cold = [engine.run(prompts["short"], NEW_TOKENS).tokens, engine.run(long, NEW_TOKENS).tokens]
    engine.press_out()
    engine.kv.poison()
    restored = Restored(engine)
    with holds.held(COPY_RESTORE):
        add_all(engine, prompts)
        engine.step_until(lambda: holds.reached(COPY_RESTORE) > 0, "the copy is held")
        for _ in range(5):
            engine.step()
        assert [is_loading(engine, name) for name in prompts] == [True, False]
    whole = 1599 // BLOCK_TOKENS
    assert finished(engine, list(prompts)) == (cold, [SHARED_TOKENS, whole * BLOCK_TOKENS])
    assert restored.pages == whole
    assert restored["shared_tokens"] == SHARED_TOKENS


def test_control_wrong_bytes_reach_everybody(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    load_mode: str,
    holds: Holds,
    new_prompt: Prompts,
) -> None:
    """Those that share it do read what was restored for the first one. Last of its mode: an engine of its
    own."""
    connector = {"load_mode": load_mode, "verify_restore": "off", "refuse_slow_restores": False}
    engine = new_engine(new_manager(pool_size="256mib"), blocks=512, connector=connector, options=OPTIONS)
    prompts, cold = stored(engine, new_prompt, 3)
    with holds.switched(RESTORE_FAULT, "skip"):
        add_all(engine, prompts)
        tokens, cached = finished(engine, list(prompts))
    assert cached == [SHARED_TOKENS] * 3
    assert all(wrong != right for wrong, right in zip(tokens, cold, strict=True))
