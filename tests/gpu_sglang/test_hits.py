"""Cold prompts, hits on the device and restores generate the same tokens, and the checks can fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benches.gpu.prompts import BLOCK_TOKENS, restorable_tokens
from benches.gpu.systems import System
from support import GENERATED, Engines, ask, forget, ready, wait_drained

Prompts = Callable[..., list[int]]
# Less than a page, a page and a bit, no whole number of pages, a whole number, several chunks of prefill.
LENGTHS, DRY_LENGTHS = (63, 70, 1000, 2048, 9000), (63, 70, 320, 400)


@pytest.fixture(scope="module")
def fleet(engines: Engines) -> dict[str, System]:
    """SGLang alone, with OrbitKV, and with restores that are spoiled; each with a cache of its own."""
    begun = {
        "native": engines.begin(None),
        "orbitkv": engines.begin(engines.new_manager()),
        "zeroed": engines.begin(engines.new_manager(), is_zeroed=True),
    }
    return {name: ready(system) for name, system in begun.items()}


@pytest.fixture
def engine(fleet: dict[str, System]) -> System:
    return fleet["orbitkv"]


@pytest.fixture
def native(fleet: dict[str, System]) -> System:
    return fleet["native"]


@pytest.fixture
def lengths(engines: Engines) -> tuple[int, ...]:
    return DRY_LENGTHS if engines.settings.is_dry_run else LENGTHS


def test_cold_hit_and_restored_prompts_generate_what_native_computes(
    engine: System, native: System, new_prompt: Prompts, lengths: tuple[int, ...]
) -> None:
    prompts = [new_prompt(tokens, index) for index, tokens in enumerate(lengths)]
    expected = [ask(native, tokens)["tokens"] for tokens in prompts]
    # An output that repeats one token would hide wrong KV.
    assert min(len(set(tokens)) for tokens in expected) > GENERATED // 4
    whole = [restorable_tokens(tokens) for tokens in lengths]
    # Tokens that were cached, and those of them that came from the manager.
    nothing = [0] * len(lengths)
    states = [("cold", nothing, nothing), ("hit", whole, nothing), ("restored", whole, whole)]
    for state, cached, from_manager in states:
        if state == "restored":
            forget(engine, *(tokens for tokens in prompts if restorable_tokens(len(tokens))))
        before = engine.manager.status()["counters"]["restored_pages"]
        answers = [ask(engine, tokens) for tokens in prompts]
        assert [answer["cached"] for answer in answers] == cached, state
        assert [answer["restored"] for answer in answers] == from_manager, state
        assert [answer["tokens"] for answer in answers] == expected, state
        restored = engine.manager.status()["counters"]["restored_pages"] - before
        assert restored == sum(from_manager) // BLOCK_TOKENS, state
    wait_drained(engine.manager)


def test_control_a_spoiled_restore_generates_something_else(
    fleet: dict[str, System], native: System, new_prompt: Prompts, lengths: tuple[int, ...]
) -> None:
    zeroed, tokens = fleet["zeroed"], new_prompt(lengths[2])
    expected = ask(native, tokens)["tokens"]
    assert ask(zeroed, tokens)["tokens"] == expected
    forget(zeroed)
    spoiled = ask(zeroed, tokens)
    assert spoiled["restored"] == restorable_tokens(len(tokens))
    assert spoiled["tokens"] != expected


def test_control_nothing_comes_back_once_it_is_dropped(
    engine: System, native: System, new_prompt: Prompts, lengths: tuple[int, ...]
) -> None:
    tokens = new_prompt(lengths[2])
    ask(engine, tokens)
    forget(engine, tokens)
    assert engine.manager.drop_memory() > 0
    again = ask(engine, tokens)
    assert (again["cached"], again["tokens"]) == (0, ask(native, tokens)["tokens"])


def test_a_prefix_on_the_device_is_completed_from_the_cache(
    engine: System, native: System, new_prompt: Prompts, lengths: tuple[int, ...]
) -> None:
    tokens = new_prompt(lengths[-1])
    shorter = tokens[: len(tokens) // 2]
    ask(engine, tokens)
    forget(engine, tokens)
    ask(engine, shorter)
    answer = ask(engine, tokens)
    assert answer["cached"] == restorable_tokens(len(tokens))
    # The last page of the shorter prompt is in the engine too if it was whole.
    on_device = answer["cached"] - answer["restored"]
    assert restorable_tokens(len(shorter)) <= on_device <= len(shorter)
    assert answer["tokens"] == ask(native, tokens)["tokens"]


def test_several_restores_at_once_generate_what_each_alone_does(
    engine: System, native: System, new_prompt: Prompts, lengths: tuple[int, ...]
) -> None:
    prompts = [new_prompt(lengths[2], index) for index in range(4)]
    expected = [ask(native, tokens)["tokens"] for tokens in prompts]
    for tokens in prompts:
        ask(engine, tokens)
    forget(engine, *prompts)
    answers = engine.engine.call("ask_all", prompts, GENERATED, within_s=300)["answers"]
    engine.wait_saved()
    assert [answer["restored"] for answer in answers] == [restorable_tokens(len(prompts[0]))] * 4
    assert [answer["tokens"] for answer in answers] == expected
    wait_drained(engine.manager)
