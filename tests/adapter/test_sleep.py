"""Sleep mode, on an allocator that unmaps KV memory as the engine's does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

TOKENS = list(range(100, 118))  # 4 full blocks of 4 tokens and 2 tokens more


class Allocator:
    """Notes what was still going on when it unmapped KV."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.kv: list[Any] = []
        self.calls: list[str] = []
        self.clients_closed_at_unmap: list[int] = []

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        self.calls.append("sleep")
        self._unmap()

    def discard(self, tags: tuple[str, ...] | str) -> None:
        self.calls.append("discard")
        if "kv_cache" in tags:
            self._unmap()

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.calls.append("wake_up")

    def _unmap(self) -> None:
        assert all(load.is_over for load in self._manager.loads), "a restore was under way"
        self.clients_closed_at_unmap.append(self._manager.closed.count("worker"))
        for tensor in self.kv:
            tensor.zero_()


@pytest.fixture
def allocator(manager: Any, monkeypatch: pytest.MonkeyPatch) -> Allocator:
    import vllm.device_allocator

    made = Allocator(manager)
    monkeypatch.setattr(vllm.device_allocator, "get_mem_allocator_instance", lambda: made)
    return made


@pytest.fixture
def make_sleeper(allocator: Allocator, mini: Any, make_engine: Callable[..., Any]) -> Callable[..., Any]:
    """Engines with sleep mode on."""

    def make(engine_id: str = "engine-1", **settings: Any) -> Any:
        config = mini.vllm_config()
        config.model_config.enable_sleep_mode = True
        config.model_config.sleep_mode_backend = "cumem"
        config.kv_transfer_config.engine_id = engine_id
        engine = make_engine(config=config, **settings)
        allocator.kv = list(engine.kv.values())
        return engine

    return make


def request(mini: Any, name: str) -> Any:
    return mini.FakeRequest(name, list(TOKENS))


def restore(engine: Any, mini: Any, name: str) -> tuple[list[int], list[bytes]]:
    """Restores the four pages between steps; their blocks, and what is in them then."""
    b = engine.add(request(mini, name))
    assert engine.match(b) == (16, True)
    table = engine.allocate(b, 16, tokens=16)
    engine.step()
    engine.finish(b, table)
    return table, [engine.content(block) for block in table]


def test_pages_are_restored_after_waking_up(
    make_sleeper: Callable[..., Any], mini: Any, manager: Any, allocator: Allocator
) -> None:
    engine = make_sleeper(load_mode="async")
    saved = engine.compute_and_save(request(mini, "a"))
    allocator.sleep(("weights",))
    # All copies had ended, and nobody attaches before memory is back.
    assert allocator.clients_closed_at_unmap == [1]
    assert engine.worker._worker._client is None
    allocator.wake_up(["weights"])
    assert engine.worker._worker._client is None
    allocator.wake_up(["kv_cache"])
    table, content = restore(engine, mini, "b")
    assert content == saved
    assert (engine.received, engine.invalid[-1]) == (["b"], set())
    # The control: while it sleeps nothing is restored, and the engine is told so.
    allocator.sleep(("weights",))
    table, content = restore(engine, mini, "c")
    assert content != saved
    assert engine.invalid[-1] == set(table)


def test_what_is_under_way_ends_before_memory_goes(
    make_sleeper: Callable[..., Any], mini: Any, manager: Any, allocator: Allocator
) -> None:
    engine = make_sleeper(load_mode="async")
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    assert engine.match(b) == (16, True)
    table = engine.allocate(b, 16, tokens=16)
    manager.hold_loads = True
    engine.step()
    assert engine.received == []
    allocator.sleep(("weights",))
    allocator.wake_up()
    manager.hold_loads = False
    engine.step()
    assert (engine.received, engine.invalid[-1]) == (["b"], set(table))


def test_memory_stays_mapped_while_copies_may_touch_it(
    make_sleeper: Callable[..., Any], mini: Any, manager: Any, allocator: Allocator, monkeypatch: Any
) -> None:
    from orbitkv.vllm import worker

    monkeypatch.setattr(worker, "_NEVER_FREED", [])
    engine = make_sleeper()
    manager.copies_end = False
    with pytest.raises(RuntimeError, match="must not be unmapped; restart the engine"):
        allocator.sleep(("weights",))
    assert allocator.calls == []
    assert engine.worker._worker._client is None
    manager.copies_end = True


def test_only_kv_memory_concerns_the_cache(
    make_sleeper: Callable[..., Any], manager: Any, allocator: Allocator
) -> None:
    engine = make_sleeper()
    client = engine.worker._worker._client
    allocator.discard("weights")
    allocator.wake_up(["weights"])
    assert engine.worker._worker._client is client
    allocator.discard(("kv_cache",))
    assert engine.worker._worker._client is None
    allocator.wake_up()
    assert engine.worker._worker._client not in (None, client)
    assert allocator.calls == ["discard", "wake_up", "discard", "wake_up"]


def test_an_allocator_that_outlives_an_engine_tells_the_next(
    make_sleeper: Callable[..., Any], manager: Any, allocator: Allocator
) -> None:
    first, second = make_sleeper(), make_sleeper("engine-2")
    kept = first.worker._worker._client
    allocator.sleep()
    assert first.worker._worker._client is kept
    assert second.worker._worker._client is None
    assert allocator.calls == ["sleep"]


def test_an_engine_without_sleep_mode_follows_nobody(engine: Any, allocator: Allocator) -> None:
    client = engine.worker._worker._client
    allocator.sleep()
    assert engine.worker._worker._client is client


def test_without_an_allocator_that_can_be_followed_there_is_no_cache(
    make_sleeper: Callable[..., Any], mini: Any, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm.device_allocator

    monkeypatch.setattr(vllm.device_allocator, "get_mem_allocator_instance", lambda: SimpleNamespace())
    engine = make_sleeper()
    engine.compute_and_save(request(mini, "a"))
    assert manager.pages == {}


def test_pages_of_an_engine_that_can_sleep_are_its_own(
    make_sleeper: Callable[..., Any], make_engine: Callable[..., Any], manager: Any, lines: list[str]
) -> None:
    """Nothing tells with which weights they were computed."""
    for engine_id in ("engine-1", "engine-2"):
        make_sleeper(engine_id)
    make_engine()
    namespaces = [values["namespace"] for values in manager.registrations]
    # Scheduler and worker of each engine agree.
    assert namespaces[0::2] == namespaces[1::2]
    assert len(set(namespaces)) == 3
    assert len([line for line in lines if "weights may be exchanged while the engine sleeps" in line]) == 2
