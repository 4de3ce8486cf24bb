"""An engine or the manager is killed while bytes are under way: who is left goes on, with equal tokens.

That bytes were under way is what the manager said just before the kill; a try in which it never did is made
again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benches.gpu.growth import grow
from benches.gpu.process import Manager, wait_until
from benches.gpu.prompts import restorable_tokens
from benches.gpu.settings import GIB
from benches.gpu.systems import System
from support import (
    GENERATED,
    RESTORE_TRIES,
    Engines,
    ask,
    in_the_middle,
    ready,
    store,
    wait_active,
    wait_drained,
)

Prompts = Callable[..., list[int]]
SEEN_WITHIN_S = 10.0
SHORT = 1000


@pytest.fixture(scope="module")
def manager(engines: Engines) -> Manager:
    return engines.new_manager()


@pytest.fixture(scope="module")
def survivor(engines: Engines, manager: Manager) -> System:
    return engines.begin(manager)


@pytest.fixture(scope="module")
def victims(engines: Engines, manager: Manager, survivor: System) -> list[System]:
    """Two, each to be killed once; all start beside the survivor."""
    begun = [engines.begin(manager) for _ in range(2)]
    for system in begun:
        system.wait_started()
    ready(survivor, 12 * GIB)
    wait_active(manager, 3)
    return begun


def test_an_engine_is_killed_while_it_restores(
    manager: Manager, survivor: System, victims: list[System], new_prompt: Prompts, long_tokens: int
) -> None:
    tokens = new_prompt(long_tokens)
    expected = ask(survivor, tokens)["tokens"]
    store(survivor, tokens)
    victim = victims.pop()
    assert _caught(manager, victim, tokens, "load"), "no restore was seen under way"
    victim.engine.kill()
    wait_drained(manager)
    _assert_serves(survivor, tokens, expected)


def test_an_engine_is_killed_while_it_saves(
    manager: Manager, survivor: System, victims: list[System], new_prompt: Prompts, long_tokens: int
) -> None:
    victim = victims.pop()
    caught: list[int] = []
    for index in range(RESTORE_TRIES):
        tokens = new_prompt(long_tokens, index)
        victim.engine.begin("ask", tokens, 1)
        if in_the_middle(manager, "save", SEEN_WITHIN_S):
            caught = tokens
            break
        victim.engine.end()
    assert caught, "no save was seen under way"
    victim.engine.kill()
    wait_drained(manager)
    # What was sealed before may be found, and the rest is computed: the tokens tell whether a page was half.
    found = ask(survivor, caught)
    survivor.engine.call("reset")
    assert manager.drop_memory() > 0
    control = ask(survivor, caught)
    assert control["cached"] == 0
    assert found["tokens"] == control["tokens"]


def test_the_manager_is_killed_while_an_engine_restores(
    manager: Manager, survivor: System, victims: list[System], new_prompt: Prompts, long_tokens: int
) -> None:
    tokens = new_prompt(long_tokens)
    expected = ask(survivor, tokens)["tokens"]
    store(survivor, tokens)
    assert _caught(manager, survivor, tokens, "load", GENERATED), "no restore was seen under way"
    manager.kill()
    answer = survivor.engine.end()
    assert answer["tokens"] == expected
    # Without a manager: computed.
    survivor.engine.call("reset")
    alone = survivor.engine.call("ask", tokens, GENERATED)
    assert (alone["cached"], alone["tokens"]) == (0, expected)
    # With another in its place: attached by itself, nothing of the old one, saved again, found again.
    manager.start()
    wait_until(lambda: manager.active_instances() >= 1, "the engine has attached again")
    grow(survivor, 6 * GIB)
    survivor.engine.call("reset")
    first = ask(survivor, tokens)
    assert (first["cached"], first["tokens"]) == (0, expected)
    store(survivor, tokens)
    _assert_serves(survivor, tokens, expected)


def _caught(manager: Manager, system: System, tokens: list[int], what: str, generated: int = 1) -> bool:
    """Asks for a stored prompt until its restore was seen under way; the request then still runs."""
    for _ in range(RESTORE_TRIES):
        system.engine.call("reset")
        system.engine.begin("ask", tokens, generated)
        if in_the_middle(manager, what, 1.0):
            return True
        system.engine.end()
    return False


def _assert_serves(system: System, tokens: list[int], expected: list[int]) -> None:
    """Restores the whole prompt, and serves others."""
    system.engine.call("reset")
    answer = ask(system, tokens)
    assert (answer["cached"], answer["tokens"]) == (restorable_tokens(len(tokens)), expected)
    wait_drained(system.manager)
    assert len(ask(system, tokens[:SHORT])["tokens"]) == GENERATED
