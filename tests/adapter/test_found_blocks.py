"""Saves of a request that found blocks in the engine's own cache: offered once its first step has begun, and
given up like any others."""

from __future__ import annotations

from typing import Any

import pytest

from orbitkv.vllm import saves

TOKENS = list(range(100, 118))
FOUND = 3


@pytest.fixture
def found(engine: Any, mini: Any, manager: Any) -> tuple[Any, list[int]]:
    """A request that runs on three blocks of another one's, which the manager does not have any more, and
    its table. Its fourth block is its own."""
    a = mini.FakeRequest("a", list(TOKENS))
    engine.compute_and_save(a)
    manager.pages.clear()
    manager.reservations.clear()
    b = engine.add(mini.FakeRequest("b", list(TOKENS)))
    engine.pool.free = engine.pool.free[5:] + engine.pool.free[:5]
    local = engine.pool.take(FOUND)
    assert engine.match(b, local_blocks=FOUND) == (0, False)
    table = engine.allocate(b, 0, local=local)
    engine.step(mini.output(new=[(b, table, FOUND * 4, 6)]))
    return b, table


def asked(manager: Any) -> list[list[bytes]]:
    return [reservation.hashes for reservation in manager.reservations]


def test_they_are_offered_once_the_step_of_the_first_token_has_begun(
    engine: Any, mini: Any, manager: Any, found: Any
) -> None:
    b, table = found
    assert asked(manager) == []
    engine.step(mini.output(cached=[(b, [], 18, 1)]))
    assert asked(manager) == [b.block_hashes[:4]]
    engine.step()
    assert manager.pages == {b.block_hashes[at]: engine.content(table[at]) for at in range(4)}


def test_an_idle_engine_steps_on_until_they_are_saved(engine: Any, manager: Any, found: Any) -> None:
    b, table = found
    engine.finish(b, table)
    assert engine.connector.has_pending_push_work()
    for _ in range(4):
        engine.step()
    assert set(manager.pages) == set(b.block_hashes)
    assert not engine.connector.has_pending_push_work()


def test_a_block_given_away_before_its_offer_is_left_out(
    engine: Any, mini: Any, manager: Any, found: Any
) -> None:
    b, table = found
    engine.finish(b, table)
    engine.pool.free = [table[1], *engine.pool.free]
    c = engine.add(mini.FakeRequest("c", [1, 2, 3]))
    engine.match(c)
    assert engine.allocate(c, 0) == [table[1]]
    engine.step(mini.output(new=[(c, [table[1]], 0, 3)]), lambda: engine.fill(table[1], 9))
    first, second = manager.reservations
    assert [first.hashes, second.hashes] == [b.block_hashes[:1], b.block_hashes[2:4]]
    assert (second.first_depth, second.parent) == (2, b.block_hashes[1])
    engine.step()
    assert b.block_hashes[1] not in manager.pages
    assert engine.counts["save_overtaken_pages"] == 1


def test_of_a_failed_step_they_are_dropped_and_offered_when_it_has_been_repeated(
    engine: Any, mini: Any, manager: Any
) -> None:
    engine.compute_and_save(mini.FakeRequest("a", list(TOKENS)))
    manager.pages.clear()
    b = engine.add(mini.FakeRequest("b", list(TOKENS)))
    engine.match(b, local_blocks=FOUND)
    table = engine.allocate(b, 0, local=engine.pool.take(FOUND))
    manager.reservations.clear()
    connector = engine.connector
    connector.build_connector_meta(mini.output(new=[(b, table, FOUND * 4, 6)]))
    failed = mini.report(step=connector._scheduler.step)
    failed.invalid_block_ids = {table[1]}
    connector.update_connector_output(failed)
    engine.step()
    assert asked(manager) == []
    assert not connector.has_pending_push_work()
    engine.step(mini.output(cached=[(b, [], 4, 14)]))
    engine.step()
    engine.step()
    assert set(manager.pages) == set(b.block_hashes)


def test_they_count_as_open(engine: Any, mini: Any, manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "MAX_OPEN_PAGES_PER_REQUEST", 2)
    b = engine.add(mini.FakeRequest("b", list(TOKENS)))
    engine.match(b, local_blocks=FOUND)
    table = engine.allocate(b, 0, local=engine.pool.take(FOUND))
    manager.hold_reservations = True
    engine.step(mini.output(new=[(b, table, FOUND * 4, 6)]))
    book = engine.connector._scheduler.saves
    assert (book.room("b"), book.room("c")) == (0, 2)
    engine.step(mini.output(cached=[(b, [], 18, 1)]))
    assert asked(manager) == [b.block_hashes[:2]]
    manager.hold_reservations = False
    for token in range(4):
        engine.step(mini.output(cached=[(b, [], 19 + token, 1)]))
    assert set(manager.pages) == set(b.block_hashes)


def test_reset_forgets_them(engine: Any, manager: Any, found: Any) -> None:
    b, table = found
    engine.finish(b, table)
    assert engine.connector.reset_cache() is True
    for _ in range(3):
        engine.step()
    assert asked(manager) == []
    assert manager.pages == {}
