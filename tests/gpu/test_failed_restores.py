"""Restores that fail are computed again, with the engine's own scheduling and model runner: overlapped steps,
and the runner that keeps its requests on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from benches.gpu.prompts import BLOCK_TOKENS, restorable_tokens
from benches.gpu.settings import GIB, EngineSettings
from benches.gpu.systems import Site, System
from support import Engines, ask, forget, hit, ready, wait_drained

Prompts = Callable[..., list[int]]
TOKENS = 2048
SMALL = {"kv_cache_bytes": 2 * GIB, "max_model_tokens": 10_000}
# Whether blocks that did not land are named to the engine.
NAMED, UNNAMED = "failing", "zeroing"


@pytest.fixture(scope="module", params=["sync", "async"])
def fleet(
    request: pytest.FixtureRequest, site: Site, settings: EngineSettings
) -> Iterator[dict[str, System]]:
    """Engines whose restores are spoiled, inside steps or between them."""
    # Without a GPU nothing makes tokens independent of how many are computed at once; precision does.
    small = {"dtype": "float32", "kv_cache_bytes": GIB // 16} if settings.is_dry_run else SMALL
    engines = Engines(replace(site, connector={**site.connector, "load_mode": request.param}), settings)
    begun = {
        module: engines.begin(engines.new_manager(), module=module, **small) for module in (NAMED, UNNAMED)
    }
    try:
        yield {name: ready(system) for name, system in begun.items()}
    finally:
        engines.close()


@pytest.fixture
def engine(fleet: dict[str, System]) -> System:
    return fleet[NAMED]


def test_a_failed_restore_is_computed_again(engine: System, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    expected = ask(engine, tokens)["tokens"]
    fill(engine, tokens)
    before = engine.manager.status()["counters"]["restored_pages"]
    assert ask(engine, tokens)["tokens"] == expected
    restored = engine.manager.status()["counters"]["restored_pages"] - before
    assert restored == restorable_tokens(TOKENS) // BLOCK_TOKENS, "nothing was restored that could fail"
    # What the engine has in its own memory now was computed.
    found = ask(engine, tokens)
    assert (found["cached"], found["tokens"]) == (restorable_tokens(TOKENS), expected)
    wait_drained(engine.manager)


def test_failed_restores_beside_each_other_and_beside_others(engine: System, new_prompt: Prompts) -> None:
    shared = new_prompt(TOKENS)
    prompts = [shared + new_prompt(100, 1 + index) for index in range(3)] + [new_prompt(500, 9)]
    expected = [ask(engine, tokens)["tokens"] for tokens in prompts]
    fill(engine, *prompts[:3])
    answers = engine.engine.call("ask_all", prompts, len(expected[0]), within_s=300)["answers"]
    engine.wait_saved()
    assert [answer["tokens"] for answer in answers] == expected
    wait_drained(engine.manager)


def test_control_blocks_that_nobody_names_are_read(fleet: dict[str, System], new_prompt: Prompts) -> None:
    unnamed = fleet[UNNAMED]
    tokens = new_prompt(TOKENS)
    expected = hit(unnamed, tokens)
    forget(unnamed, tokens)
    assert ask(unnamed, tokens)["tokens"] != expected


def fill(system: System, *prompts: list[int]) -> None:
    """Has prompts saved, and the engine's memory filled with others. That they were saved whole shows when
    they are asked for: such an engine never serves one from its cache."""
    for tokens in prompts:
        ask(system, tokens, 1)
    system.wait_saved(patiently=True)
    system.engine.call("reset")
    system.engine.call("press_out", within_s=300)
    system.wait_saved(patiently=True)
    system.engine.call("reset")
