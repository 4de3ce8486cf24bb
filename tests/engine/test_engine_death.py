"""An engine is killed in the middle of a save, of a restore, or with a lease: nothing half-written is ever
served, nothing stays held, and another engine of the same configuration goes on with what it had saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.child import Child
from support.engine import Engine, build_engine
from support.holds import COPY_RESTORE, COPY_SAVE, QUERY_REPLY
from support.manager import Manager
from support.prompts import restorable_tokens
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 300
HIT = restorable_tokens(TOKENS)
CONNECTOR = {"load_mode": "async", "verify_restore": "all", "lookup_deadline_ms": 60_000}


@pytest.fixture(scope="module")
def survivor(manager: Manager, new_engine: Callable[..., Engine]) -> Engine:
    """The other engine, in this process."""
    return new_engine(manager, connector=CONNECTOR)


@pytest.fixture
def victim(manager: Manager, survivor: Engine, test_dir: Path) -> Iterator[Child]:
    """An engine that has saved one prompt, and that the test kills."""
    child = Child(test_dir, build_engine, manager.directory, {"connector": CONNECTOR})
    # The survivor's session is the same namespace's.
    wait_until(lambda: manager.active_instances() == 2, "both engines are active")
    yield child
    child.close()


@pytest.fixture
def warm(victim: Child, new_prompt: Prompts) -> tuple[list[int], list[int]]:
    """A prompt that the victim has saved, and the tokens it generated."""
    tokens = new_prompt(TOKENS, 99)
    result = victim.call("run", tokens)
    assert result.cached == 0
    return tokens, result.tokens


def assert_warm_after_death(manager: Manager, survivor: Engine, warm: tuple[list[int], list[int]]) -> None:
    """Everything that the dead engine held comes free, and what it had saved serves the other one."""
    wait_until(lambda: manager.active_instances() == 1, "the manager knows that the engine is gone")
    manager.assert_drained()
    tokens, expected = warm
    result = survivor.run(tokens)
    assert (result.cached, result.tokens) == (HIT, expected)
    manager.assert_drained()


def test_engine_killed_in_the_middle_of_a_save(
    manager: Manager, survivor: Engine, victim: Child, warm: tuple[list[int], list[int]], new_prompt: Prompts
) -> None:
    tokens = new_prompt(TOKENS)
    pages = manager.status()["pool"]["pages"]
    before = manager.counters()["quarantined_slots"]
    victim.holds.hold(COPY_SAVE)
    victim.call("add", "saved", tokens)
    expected = victim.call("finish", ["saved"])["saved"].tokens
    victim.step_until(lambda: victim.holds.reached(COPY_SAVE) > 0, "the save is held")
    assert manager.status()["save"]["inflight_bytes"] > 0
    assert manager.status()["pool"]["pages"] == pages, "a page is visible before its commit"
    victim.kill()
    wait_until(lambda: manager.active_instances() == 1, "the manager knows that the engine is gone")
    manager.assert_drained()
    assert manager.counters()["quarantined_slots"] - before >= HIT // 32
    assert manager.status()["pool"]["pages"] == pages, "a page of the interrupted save is visible"
    result = survivor.run(tokens)
    assert (result.cached, result.tokens) == (0, expected)
    assert_warm_after_death(manager, survivor, warm)


def test_engine_killed_in_the_middle_of_a_restore(
    manager: Manager, survivor: Engine, victim: Child, warm: tuple[list[int], list[int]]
) -> None:
    tokens, _ = warm
    victim.call("press_out")
    victim.holds.hold(COPY_RESTORE)
    victim.call("add", "restored", tokens)
    victim.step_until(lambda: victim.holds.reached(COPY_RESTORE) > 0, "the restore is held")
    status = manager.status()
    assert status["load"]["inflight_bytes"] > 0
    assert status["query"]["reserved_bytes"] > 0
    victim.kill()
    assert_warm_after_death(manager, survivor, warm)


def test_engine_killed_with_a_lease(
    manager: Manager, survivor: Engine, victim: Child, warm: tuple[list[int], list[int]]
) -> None:
    """The answer, with the lease in it, is on its way when the engine dies."""
    tokens, _ = warm
    victim.call("press_out")
    with manager.holds.held(QUERY_REPLY):
        victim.call("add", "restored", tokens)
        victim.step_until(lambda: manager.holds.reached(QUERY_REPLY) > 0, "the answer is held")
        assert manager.status()["query"]["leases"] == 1
        victim.kill()
        wait_until(lambda: manager.active_instances() == 1, "the manager knows that the engine is gone")
        manager.assert_drained()
    assert_warm_after_death(manager, survivor, warm)
