"""Cold, partial and warm hits on a GPU generate what vLLM alone generates, and the checks can fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benches.gpu.prompts import BLOCK_TOKENS, restorable_tokens
from benches.gpu.settings import GIB
from benches.gpu.systems import System
from support import GENERATED, Engines, ask, forget, hit, ready, wait_drained

Prompts = Callable[..., list[int]]
# Less than a block, a block and a bit, no whole number of blocks, a whole number, several chunks of prefill.
LENGTHS = (63, 70, 1000, 2048, 9000)
SMALL = {"kv_cache_bytes": 2 * GIB, "max_model_tokens": 10_000}
MODES = ("multiprocess", "in-process")


@pytest.fixture(scope="module")
def fleet(engines: Engines) -> dict[str, System]:
    """vLLM alone, OrbitKV in both process modes, and with restores that are spoiled; each with a cache of
    its own."""
    small = {} if engines.settings.is_dry_run else SMALL
    begun = {
        "native": engines.begin(None, **small),
        "multiprocess": engines.begin(engines.new_manager(), **small),
        "in-process": engines.begin(engines.new_manager(), is_multiprocess=False, **small),
        "zeroed": engines.begin(engines.new_manager(), module="zeroing", **small),
    }
    return {name: ready(system) for name, system in begun.items()}


@pytest.fixture(params=MODES)
def engine(request: pytest.FixtureRequest, fleet: dict[str, System]) -> System:
    return fleet[request.param]


@pytest.fixture
def native(fleet: dict[str, System]) -> System:
    return fleet["native"]


def test_cold_warm_and_restored_prompts_generate_what_native_does(
    engine: System, native: System, new_prompt: Prompts
) -> None:
    prompts = [new_prompt(tokens, index) for index, tokens in enumerate(LENGTHS)]
    computed = [ask(native, tokens)["tokens"] for tokens in prompts]
    found = [hit(native, tokens) for tokens in prompts]
    # An output that repeats one token would hide wrong KV.
    assert min(len(set(tokens)) for tokens in found) > GENERATED // 4
    whole = [restorable_tokens(tokens) for tokens in LENGTHS]
    states = [("cold", [0] * len(LENGTHS), computed), ("warm", whole, found), ("restored", whole, found)]
    for state, cached, expected in states:
        if state == "restored":
            forget(engine, *(tokens for tokens in prompts if restorable_tokens(len(tokens))))
        before = engine.manager.status()["counters"]["restored_pages"]
        answers = [ask(engine, tokens) for tokens in prompts]
        assert [answer["cached"] for answer in answers] == cached, state
        assert [answer["tokens"] for answer in answers] == expected, state
        restored = engine.manager.status()["counters"]["restored_pages"] - before
        assert restored == (sum(whole) // BLOCK_TOKENS if state == "restored" else 0), state
    wait_drained(engine.manager)


def test_control_a_spoiled_restore_generates_something_else(
    fleet: dict[str, System], native: System, new_prompt: Prompts
) -> None:
    zeroed = fleet["zeroed"]
    tokens = new_prompt(2048)
    expected = hit(native, tokens)
    assert hit(zeroed, tokens) == expected
    forget(zeroed)
    spoiled = ask(zeroed, tokens)
    assert spoiled["cached"] == restorable_tokens(2048)
    assert spoiled["tokens"] != expected


def test_control_nothing_comes_back_once_it_is_dropped(
    engine: System, native: System, new_prompt: Prompts
) -> None:
    tokens = new_prompt(2048)
    ask(engine, tokens)
    forget(engine, tokens)
    assert engine.manager.drop_memory() > 0
    again = ask(engine, tokens)
    assert (again["cached"], again["tokens"]) == (0, ask(native, tokens)["tokens"])


def test_a_prefix_in_the_engine_is_completed_from_the_cache(
    engine: System, native: System, new_prompt: Prompts
) -> None:
    tokens = new_prompt(4096)
    expected = hit(native, tokens)
    ask(engine, tokens)
    forget(engine, tokens)
    ask(engine, tokens[:1000])
    before = engine.manager.status()["counters"]["restored_pages"]
    answer = ask(engine, tokens)
    assert (answer["cached"], answer["tokens"]) == (restorable_tokens(4096), expected)
    restored = engine.manager.status()["counters"]["restored_pages"] - before
    assert restored == (restorable_tokens(4096) - restorable_tokens(1000)) // BLOCK_TOKENS


def test_a_prefix_in_the_cache_is_completed_by_computing(
    engine: System, native: System, new_prompt: Prompts
) -> None:
    tokens, suffix = new_prompt(2048), new_prompt(700, 1)
    ask(engine, tokens)
    forget(engine, tokens)
    answer = ask(engine, tokens + suffix)
    ask(native, tokens)
    expected = ask(native, tokens + suffix)["tokens"]
    # The last block of the shorter prompt was whole, but saved only if it was computed whole.
    assert restorable_tokens(2048) <= answer["cached"] <= 2048
    assert answer["tokens"] == expected


def test_several_restores_at_once_generate_what_each_alone_does(
    engine: System, native: System, new_prompt: Prompts
) -> None:
    prompts = [new_prompt(1500, index) for index in range(4)]
    expected = [hit(native, tokens) for tokens in prompts]
    for tokens in prompts:
        ask(engine, tokens)
    forget(engine, *prompts)
    answers = engine.engine.call("ask_all", prompts, GENERATED)["answers"]
    engine.wait_saved()
    assert [answer["cached"] for answer in answers] == [restorable_tokens(1500)] * 4
    assert [answer["tokens"] for answer in answers] == expected
    wait_drained(engine.manager)
