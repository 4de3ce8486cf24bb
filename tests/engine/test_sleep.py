"""An engine whose KV memory is unmapped and mapped again, with the real client and manager.

vLLM's own sleep mode needs a GPU: its allocator is replaced by one that only says that memory goes and
comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.engine import Engine
from support.manager import Manager
from support.prompts import restorable_tokens
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS, NEW_TOKENS = 300, 16


class Allocator:
    """The calls of the engine's allocator."""

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Memory would be unmapped."""

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Memory of these would be unmapped."""

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Memory would be mapped."""


@pytest.fixture(scope="module")
def allocator() -> Iterator[Allocator]:
    import vllm.device_allocator

    from orbitkv.vllm import connector

    made = Allocator()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm.device_allocator, "get_mem_allocator_instance", lambda: made)
        patch.setattr(connector, "can_sleep", lambda _: True)
        yield made


@pytest.fixture(scope="module")
def engine(
    allocator: Allocator, new_manager: Callable[..., Manager], new_engine: Callable[..., Engine]
) -> Engine:
    return new_engine(new_manager(), connector={"verify_restore": "all"})


def fall_asleep(engine: Engine, allocator: Allocator) -> None:
    """As the engine does when it is idle; whatever was in its memory is gone."""
    engine.settle()
    engine.reset()
    allocator.sleep(("weights",))
    wait_until(lambda: engine.manager.active_instances() == 0, "the engine has detached")
    engine.kv.poison()


def test_the_engine_attaches_again_and_restores(
    engine: Engine, allocator: Allocator, new_prompt: Prompts
) -> None:
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens, NEW_TOKENS)
    for _ in range(2):
        fall_asleep(engine, allocator)
        allocator.wake_up(["weights"])
        assert engine.manager.active_instances() == 0
        allocator.wake_up(["kv_cache"])
        engine.wait_active()
        result = engine.run(tokens, NEW_TOKENS)
        assert (result.cached, result.tokens) == (restorable_tokens(TOKENS), cold.tokens)
    # And saves: of a prompt that nobody knew before.
    other = new_prompt(TOKENS, 1)
    cold = engine.run(other, NEW_TOKENS)
    engine.press_out()
    result = engine.run(other, NEW_TOKENS)
    assert (result.cached, result.tokens) == (restorable_tokens(TOKENS), cold.tokens)
    engine.manager.assert_drained()


def test_control_without_waking_up_it_computes(
    engine: Engine, allocator: Allocator, new_prompt: Prompts
) -> None:
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens, NEW_TOKENS)
    fall_asleep(engine, allocator)
    result = engine.run(tokens, NEW_TOKENS)
    assert (result.cached, result.tokens) == (0, cold.tokens)
    allocator.wake_up()
    engine.wait_active()


def test_falling_asleep_in_the_middle_of_saves_gives_everything_back(
    engine: Engine, allocator: Allocator, new_prompt: Prompts
) -> None:
    tokens = new_prompt(TOKENS)
    engine.add("a", tokens, NEW_TOKENS)
    engine.step_until(lambda: engine.generated("a") > 0, "its first token")
    # As for a pause that keeps its requests.
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    allocator.sleep(("weights",))
    allocator.wake_up()
    engine.finish(["a"])
    engine.settle()
    engine.wait_active()
    engine.manager.assert_drained()
