"""Abort in each place where a request can wait: no record, lease or hold is left, custody is kept."""

from __future__ import annotations

from typing import Any

import pytest

TOKENS = list(range(100, 118))


def request(mini: Any, name: str, tokens: list[int] = TOKENS) -> Any:
    return mini.FakeRequest(name, list(tokens))


def assert_nothing_left(engine: Any, manager: Any) -> None:
    side = engine.connector._scheduler
    assert side.records == {}
    assert side.gate.holds == frozenset()
    assert side.loads == []
    assert manager.leases == 0
    assert all(query.released for query in manager.queries)


def test_before_any_lookup(engine: Any, mini: Any, manager: Any) -> None:
    engine.finish(engine.add(request(mini, "a")))
    assert_nothing_left(engine, manager)


def test_while_the_lookup_is_pending(engine: Any, mini: Any, manager: Any) -> None:
    manager.hold_queries = True
    a = engine.add(request(mini, "a"))
    assert engine.match(a) == (None, False)
    engine.finish(a)
    assert_nothing_left(engine, manager)


def test_with_a_lease_before_allocation(engine: Any, mini: Any, manager: Any) -> None:
    engine.compute_and_save(request(mini, "a"))
    for _ in range(50):
        b = engine.add(request(mini, "b"))
        assert engine.match(b) == (16, False)
        assert manager.leases == 1
        engine.finish(b)
    assert_nothing_left(engine, manager)


def test_during_an_async_restore(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(load_mode="async")
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    engine.match(b)
    table = engine.allocate(b, 16, tokens=16)
    manager.hold_loads = True
    engine.step()
    assert engine.finish(b, table) == (False, None)
    engine.step()
    assert engine.received == []
    manager.hold_loads = False
    engine.step()
    # The engine frees the blocks on this report, and waits for it.
    assert engine.received == ["b"]
    assert_nothing_left(engine, manager)


def test_between_allocation_and_the_step(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(load_mode="async")
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    engine.match(b)
    table = engine.allocate(b, 16, tokens=16)
    engine.finish(b, table)
    engine.step()
    assert engine.received == ["b"]
    assert_nothing_left(engine, manager)


def test_while_running(engine: Any, mini: Any, manager: Any) -> None:
    a = engine.add(request(mini, "a"))
    engine.match(a)
    table = engine.allocate(a, 0)
    engine.step(mini.output(new=[(a, table, 0, 10)]))
    engine.finish(a, table)
    assert_nothing_left(engine, manager)


def test_after_preemption(engine: Any, mini: Any, manager: Any) -> None:
    a = engine.add(request(mini, "a"))
    engine.match(a)
    table = engine.allocate(a, 0)
    engine.step(mini.output(new=[(a, table, 0, 18)]))
    engine.step(mini.output(preempted={"a"}))
    engine.step()
    assert engine.match(a) == (16, False)
    engine.finish(a)
    assert_nothing_left(engine, manager)


@pytest.mark.parametrize("is_fenced", [False, True])
def test_cancellation_with_a_retained_save_hold(
    engine: Any, mini: Any, manager: Any, is_fenced: bool
) -> None:
    """The request goes at once; the copy keeps reading its blocks, and owns them until it ends or is
    fenced."""
    manager.hold_saves = True
    a = engine.add(request(mini, "a"))
    engine.match(a)
    table = engine.allocate(a, 0)
    engine.step(mini.output(new=[(a, table, 0, 18)]), lambda: [engine.fill(block, 4) for block in table])
    engine.step()
    assert engine.finish(a, table) == (False, None)
    assert_nothing_left(engine, manager)
    assert engine.connector._scheduler.saves.has_work
    if is_fenced:
        engine.pool.free = [*table[:4], *engine.pool.free]
        b = engine.add(request(mini, "b", list(range(16))))
        engine.match(b)
        engine.step(mini.output(new=[(b, engine.allocate(b, 0), 0, 16)]))
    manager.hold_saves = False
    engine.step()
    engine.step()
    assert (a.block_hashes[0] in manager.pages) is not is_fenced
    assert not engine.connector._scheduler.saves._dispatched
