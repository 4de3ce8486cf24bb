"""Aborts in every place where a request can wait, over and over, leave nothing behind (case A-09)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

TOKENS = 18  # four full blocks, all of which may be restored
BLOCKS = 4
ROUNDS = 500
Place = Callable[[Any, Any, Any, Any], list[int]]
PLACES: dict[str, Place] = {}


def place(make: Place) -> Place:
    """A place where a request can wait: brings a new one there and returns its blocks."""
    PLACES[make.__name__] = make
    return make


@place
def accepted(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    """Nothing but queued: its pages are being prepared."""
    manager.hold_preparations = True
    engine.add(request)
    assert len(live(manager)) == 1
    return []


@place
def prepared(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    engine.add(request)
    engine.step()
    assert manager.leases == 1
    return []


@place
def expired(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    engine.add(request)
    engine.step()
    manager.preparations[-1].lose("expired")
    return []


@place
def claimed_and_pending(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    manager.hold_preparations = manager.hold_queries = True
    engine.add(request)
    assert engine.match(request) == (None, False)
    assert manager.preparations[-1].claimed is manager.queries[-1]
    return []


@place
def asked_anew_and_pending(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    """What was prepared does not fit any more."""
    manager.hold_queries = True
    engine.add(request)
    assert engine.match(request, local_blocks=1) == (None, False)
    assert manager.preparations[-1].cancelled
    return []


@place
def answered_without_blocks(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    engine.add(request)
    assert engine.match(request) == (BLOCKS * 4, True)
    assert manager.leases == 1
    return []


@place
def between_allocation_and_step(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    answered_without_blocks(engine, mini, manager, request)
    return engine.allocate(request, BLOCKS * 4)


@place
def loading(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    table = between_allocation_and_step(engine, mini, manager, request)
    manager.hold_loads = True
    engine.step()
    assert not manager.loads[-1].is_over
    return table


@place
def loaded_and_waiting(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    table = between_allocation_and_step(engine, mini, manager, request)
    engine.step()
    assert engine.received[-1] == request.request_id
    return table


@place
def failed_load(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    table = between_allocation_and_step(engine, mini, manager, request)
    manager.fail_blocks = {table[1]}
    engine.step()
    assert engine.invalid[-1] == {table[1]}
    return table


@place
def running(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    table = loaded_and_waiting(engine, mini, manager, request)
    engine.allocate(request, 0, tokens=0)
    engine.step(mini.output(new=[(request, table, BLOCKS * 4, TOKENS - BLOCKS * 4)]))
    return table


@place
def preempted(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    table = running(engine, mini, manager, request)
    engine.pool.free += table
    engine.step(mini.output(preempted={request.request_id}))
    assert engine.match(request)[0] == BLOCKS * 4
    return []


@place
def behind_the_window(engine: Any, mini: Any, manager: Any, request: Any) -> list[int]:
    """Four others are read ahead for; they leave before this one does."""
    others = [mini.FakeRequest(f"{request.request_id}-{index}", list(request.tokens)) for index in range(4)]
    for other in others:
        engine.add(other)
    engine.add(request)
    assert len(live(manager)) == 4
    for other in others:
        engine.finish(other)
    return []


def live(manager: Any) -> list[Any]:
    """Preparations that are neither claimed nor cancelled."""
    return [each for each in manager.preparations if not each.over]


def assert_as_at_the_start(engine: Any, manager: Any, free_blocks: int) -> None:
    side = engine.connector._scheduler
    assert (live(manager), manager.leases) == ([], 0)
    assert all(query.released for query in manager.queries)
    assert (side.records, side.loads, side.gate.holds) == ({}, [], frozenset())
    assert not side._lookahead._waiting
    assert len(engine.pool.free) == free_blocks


@pytest.mark.parametrize("name", PLACES)
def test_case_a09_aborts_leave_nothing(
    make_engine: Callable[..., Any], mini: Any, manager: Any, name: str
) -> None:
    engine = make_engine(load_mode="async", prepare_requests=True)
    tokens = list(range(TOKENS))
    engine.compute_and_save(mini.FakeRequest("stored", tokens))
    free_blocks = len(engine.pool.free)
    assert_as_at_the_start(engine, manager, free_blocks)
    for number in range(ROUNDS):
        request = mini.FakeRequest(f"r{number}", tokens)
        table = PLACES[name](engine, mini, manager, request)
        engine.finish(request, table)
        manager.hold_preparations = manager.hold_queries = manager.hold_loads = False
        manager.fail_blocks = set()
        engine.step()
        # The engine frees them once it has heard that nothing writes into them.
        engine.pool.free += table
        assert_as_at_the_start(engine, manager, free_blocks)
        manager.preparations.clear()
        manager.queries.clear()
        manager.loads.clear()
    # Still admitted, claimed and served.
    last = engine.add(mini.FakeRequest("last", tokens))
    engine.step()
    assert [each.pages for each in live(manager)] == [BLOCKS]
    assert engine.match(last) == (BLOCKS * 4, True)
    assert manager.preparations[-1].claimed is manager.queries[-1]
    engine.finish(last)
    engine.step()
    assert_as_at_the_start(engine, manager, free_blocks)
