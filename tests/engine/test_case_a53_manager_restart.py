"""A manager that restarts needs no engine restart (case A-53), and leaves nothing behind in the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.case_end import assert_case_end
from support.engine import Engine, Result, scheduler_client
from support.manager import Manager
from support.prompts import restorable_tokens
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 100
HIT = restorable_tokens(TOKENS)
GENERATED = 60
LOAD = 24
RESTARTS = 20


@pytest.fixture(scope="module")
def engine(new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]) -> Engine:
    return new_engine(new_manager(pool_size="16mib"), connector={"verify_restore": "all"})


def known_prefix_twice(engine: Engine, tokens: list[int], control: Result) -> None:
    """The new manager knows nothing of it: the first request saves it, the second is a hit."""
    for cached in (0, HIT):
        engine.reset()
        engine.kv.poison()
        result = engine.run(tokens)
        assert (result.cached, result.tokens) == (cached, control.tokens)


def assert_registered_once(engine: Engine) -> None:
    """One instance, with a scheduler and a worker."""
    status = engine.manager.status()
    assert [row["active"] for row in status["instances"]] == [True], status["instances"]
    assert status["sessions"] == {"open": 2, "unfinished": 0}


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_case_a53_manager_restarts_under_load(engine: Engine, new_prompt: Prompts, end: str) -> None:
    prompts = {f"load-{index}": new_prompt(TOKENS, index) for index in range(LOAD)}
    known = new_prompt(TOKENS, LOAD)
    controls = engine.generate(list(prompts.values()), GENERATED)
    control = engine.run(known)
    engine.reset()

    boot = scheduler_client(engine).boot
    for name, tokens in prompts.items():
        engine.add(name, tokens, GENERATED)
    engine.step_until(lambda: engine.generated("load-0") > 5, "the load runs")
    if end == "killed":
        engine.manager.kill()
    else:
        engine.manager.stop()
    client = scheduler_client(engine)
    engine.step_until(lambda: not client.active, "the engine knows")
    engine.manager.start()
    results = engine.finish(prompts)
    assert {result.finish_reason for result in results.values()} == {"length"}
    assert [results[name].tokens for name in prompts] == [result.tokens for result in controls]

    engine.wait_active()
    assert client.boot != boot
    engine.settle()
    known_prefix_twice(engine, known, control)
    assert_registered_once(engine)
    assert_case_end(engine, known, control)


class Shared(NamedTuple):
    """Shared memory segments that this process has."""

    maps: int
    mapped_bytes: int
    descriptors: int


def shared_memory() -> Shared:
    """Maps of memory files, and descriptors that hold such files, of this process."""
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:" in line]
    bounds = [line[0].split("-") for line in maps]
    mapped_bytes = sum(int(end, 16) - int(start, 16) for start, end in bounds)
    return Shared(len(maps), mapped_bytes, sum("/memfd:" in link for link in descriptor_links()))


def descriptor_links() -> list[str]:
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except FileNotFoundError:
            continue
    return links


def test_twenty_manager_restarts_shared_memory_flat(engine: Engine, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    control = engine.run(tokens)
    before = shared_memory()
    assert before.maps >= 1
    assert before.mapped_bytes >= 16 << 20
    descriptors = len(descriptor_links())
    for restart in range(RESTARTS):
        if restart % 2:
            engine.manager.kill()
        else:
            engine.manager.stop()
        engine.manager.start()
        engine.step()
        client = scheduler_client(engine)
        wait_until(lambda client=client: client.active, "attached")
        engine.wait_active()
        known_prefix_twice(engine, tokens, control)
        wait_until(lambda: shared_memory() == before, f"{restart}: {shared_memory()}, at first {before}")
        assert_registered_once(engine)
    assert len(descriptor_links()) == descriptors
    assert_case_end(engine, tokens, control)
