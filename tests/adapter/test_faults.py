"""Errors of our own never reach the engine; what it waits for is still reported."""

from __future__ import annotations

from typing import Any

import pytest

TOKENS = list(range(100, 118))


def request(mini: Any, name: str, tokens: list[int] = TOKENS) -> Any:
    return mini.FakeRequest(name, list(tokens))


def saved(engine: Any, mini: Any) -> None:
    engine.compute_and_save(request(mini, "seed"))


@pytest.mark.parametrize("call", ["query", "active"])
def test_lookup_error_is_a_miss(engine: Any, mini: Any, manager: Any, lines: list[str], call: str) -> None:
    manager.raise_in = {call}
    a = engine.add(request(mini, "a"))
    for _ in range(3):
        assert engine.match(a) == (0, False)
    table = engine.allocate(a, 0)
    engine.step(mini.output(new=[(a, table, 0, 18)]))
    engine.finish(a, table)
    assert len([line for line in lines if "scheduler side failed" in line]) == 1
    assert not engine.connector.has_pending_push_work()
    assert engine.connector.reset_cache() is False


def test_promised_restore_fails_cleanly_after_a_scheduler_fault(
    make_engine: Any, mini: Any, manager: Any
) -> None:
    engine = make_engine(load_mode="async")
    saved(engine, mini)
    b, c = engine.add(request(mini, "b")), engine.add(request(mini, "c", list(range(9))))
    assert engine.match(b) == (16, True)
    manager.raise_in = {"active"}
    assert engine.match(c) == (0, False)  # the fault
    table = engine.allocate(b, 16, tokens=16)
    # The failed restore holds blocks until it is scheduled: others are put off as the gate would.
    assert engine.match(c) == (None, False)
    engine.step()
    assert (engine.received, engine.invalid[-1]) == (["b"], set(table))
    assert engine.match(b) == (0, False)
    assert engine.match(c) == (0, False)


def test_queued_restore_fails_when_building_metadata_breaks(
    make_engine: Any, mini: Any, manager: Any
) -> None:
    engine = make_engine(load_mode="async")
    saved(engine, mini)
    b = engine.add(request(mini, "b"))
    engine.match(b)
    table = engine.allocate(b, 16, tokens=16)
    manager.raise_in = {"active"}
    engine.step()
    assert (engine.received, engine.invalid[-1]) == (["b"], set(table))


def test_scheduler_fault_ends_running_saves(engine: Any, mini: Any, manager: Any) -> None:
    manager.hold_saves = True
    saved(engine, mini)
    assert manager.saves[0].left
    manager.raise_in = {"active"}
    engine.step()
    assert manager.saves[0].left == {}
    assert manager.pages == {}


@pytest.mark.parametrize("call", ["restore", "load.poll"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_worker_fault_fails_its_loads(
    make_engine: Any, mini: Any, manager: Any, lines: list[str], mode: str, call: str
) -> None:
    engine = make_engine(load_mode=mode)
    saved(engine, mini)
    b = engine.add(request(mini, "b"))
    engine.match(b)
    table = engine.allocate(b, 16)
    manager.raise_in = {call}
    is_sync = mode == "sync"
    engine.step(mini.output(new=[(b, table, 16, 2)]) if is_sync else None, has_sync=is_sync)
    assert engine.invalid[-1] == set(table[:4])
    assert engine.received == ([] if is_sync else ["b"])
    assert "worker" in manager.closed
    assert len([line for line in lines if "worker side failed" in line]) == 1
    # Later loads fail too, each reported once; saves are taken as ended.
    engine.step()
    assert engine.received == ([] if is_sync else ["b"])


def test_worker_fault_after_the_report_names_no_load_twice(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(load_mode="async")
    saved(engine, mini)
    b = engine.add(request(mini, "b"))
    engine.match(b)
    engine.allocate(b, 16, tokens=16)
    engine.worker._worker.take_failed_blocks = None  # breaks between the two reports of a step
    engine.step()
    engine.step()
    assert engine.received == ["b"]


def test_worker_fault_with_a_load_from_an_earlier_step(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(load_mode="async")
    saved(engine, mini)
    b = engine.add(request(mini, "b"))
    engine.match(b)
    table = engine.allocate(b, 16, tokens=16)
    manager.hold_loads = True
    engine.step()
    manager.raise_in = {"load.poll"}
    engine.step()
    assert manager.loads[-1].is_over
    assert (engine.received, engine.invalid[-1]) == (["b"], set(table))


def test_worker_fault_ends_its_saves(engine: Any, mini: Any, manager: Any) -> None:
    manager.hold_saves = True
    saved(engine, mini)
    assert engine.connector._scheduler.saves.has_work
    engine.worker._worker.take_failed_blocks = None
    engine.step()
    assert "worker" in manager.closed
    assert not engine.connector._scheduler.saves.has_work


def test_save_error_of_the_client_is_not_a_fault(engine: Any, mini: Any, manager: Any, native: Any) -> None:
    def fail(ticket: bytes, blocks: list[int]) -> None:
        raise native.OrbitKVError("session lost")

    engine.worker._worker._client.save = fail
    saved(engine, mini)
    assert manager.saves == []
    assert not engine.connector.has_pending_push_work()


def test_client_that_cannot_start_leaves_the_engine_alone(
    make_engine: Any, mini: Any, manager: Any, lines: list[str]
) -> None:
    manager.raise_in = {"SchedulerClient"}
    engine = make_engine()
    a = engine.add(request(mini, "a"))
    assert engine.match(a) == (0, False)
    engine.step(mini.output(new=[(a, engine.allocate(a, 0), 0, 18)]))
    assert len([line for line in lines if line.startswith("OrbitKV off")]) == 1


def test_shutdown_is_idempotent(engine: Any, manager: Any) -> None:
    for _ in range(2):
        engine.connector.shutdown()
        engine.worker.shutdown()
    assert manager.closed == ["scheduler", "worker"]
