"""Blocks of failed restores: nobody reads one that was not computed since."""

from __future__ import annotations

from typing import Any

import pytest

TOKENS = list(range(100, 126))  # six blocks of four tokens, and two tokens behind them


@pytest.fixture
def unsound() -> Any:
    """Blocks 11 and 12 of a request with blocks 10, 11, 12 hold nothing usable."""
    from orbitkv.vllm.unsound import UnsoundBlocks

    unsound = UnsoundBlocks(4)
    unsound.add([11, 12])
    unsound.table("a", [10, 11, 12])
    unsound.table("b", [10, 11, 12, 13])
    return unsound


def row(name: str, begin: int, end: int, table: tuple[int, ...] = (10, 11, 12, 13)) -> Any:
    from orbitkv.vllm.tables import Row

    return Row(name, list(table), begin, end)


def test_who_counts_them_as_computed_is_found(unsound: Any) -> None:
    assert unsound.is_watching
    assert unsound.read_in([row("b", 12, 14)]) == {"b": [11, 12]}
    assert unsound.read_in([row("b", 12, 14)]) == {"b": [11, 12]}, "until somebody computes them"


def test_computed_in_the_same_step_they_may_be_read(unsound: Any) -> None:
    assert unsound.read_in([row("b", 12, 14), row("a", 4, 12)]) == {}
    assert not unsound.is_watching


def test_in_chunks_they_are_sound_one_by_one(unsound: Any) -> None:
    assert unsound.read_in([row("a", 4, 6), row("b", 12, 13)]) == {"b": [11, 12]}
    assert unsound.read_in([row("a", 6, 8), row("b", 12, 13)]) == {"b": [12]}
    assert unsound.read_in([row("a", 8, 10), row("b", 12, 13)]) == {"b": [12]}
    assert unsound.read_in([row("a", 10, 11), row("b", 8, 9)]) == {}
    assert unsound.read_in([row("a", 11, 12), row("b", 12, 13)]) == {}
    assert not unsound.is_watching


def test_only_the_tokens_that_are_read_count(unsound: Any) -> None:
    unsound.read_in([row("a", 4, 10)])
    assert unsound.read_in([row("b", 10, 11)]) == {}


def test_computing_behind_a_gap_does_not_count(unsound: Any) -> None:
    assert unsound.read_in([row("a", 6, 12)]) == {"a": [11]}, "its first half was never computed"
    assert unsound.read_in([row("b", 12, 13)]) == {"b": [11, 12]}


def test_who_reads_wrong_bytes_helps_nobody(unsound: Any) -> None:
    """The first one computes block 12 from block 11, which is not there; the other has a copy of that."""
    unsound.table("c", [10, 21, 12])
    assert unsound.read_in([row("a", 8, 12), row("c", 12, 13, (10, 21, 12, 13))]) == {"a": [11], "c": [12]}


def test_reused_blocks_are_somebody_elses(unsound: Any) -> None:
    unsound.reused([11, 12])
    assert unsound.read_in([row("a", 12, 13), row("b", 12, 14)]) == {}
    assert not unsound.is_watching


def test_blocks_outlive_their_request_in_the_prefix_cache(unsound: Any) -> None:
    unsound.finished("a")
    unsound.finished("b")
    assert not unsound.is_watching
    unsound.table("c", [10])
    assert not unsound.is_watching
    unsound.table("c", [10, 11])
    assert unsound.read_in([row("c", 8, 9, (10, 11, 14))]) == {"c": [11]}


def test_reported_again_what_was_computed_stays(unsound: Any) -> None:
    unsound.read_in([row("a", 4, 10), row("b", 12, 13)])
    unsound.add([12, 13])
    assert unsound.read_in([row("a", 10, 12)]) == {}


def test_failed_again_nothing_of_it_is_left(unsound: Any) -> None:
    unsound.read_in([row("a", 4, 10)])
    unsound.add([10, 11, 12])
    assert unsound.read_in([row("a", 10, 12)]) == {"a": [10, 11, 12]}


def failed_for_two(
    make_engine: Any, mini: Any, manager: Any, forward: Any = None
) -> tuple[Any, Any, Any, list[int]]:
    """Two requests of one step share a restore whose second page fails."""
    engine = make_engine(load_mode="sync", refuse_slow_restores=False)
    engine.compute_and_save(mini.FakeRequest("stored", list(TOKENS)))
    a = engine.add(mini.FakeRequest("a", list(TOKENS)))
    b = engine.add(mini.FakeRequest("b", list(TOKENS)))
    assert engine.match(a) == (24, False)
    table = engine.allocate(a, 24)
    assert engine.match(b, local_blocks=6) == (0, False)
    own = engine.allocate(b, 0, local=table[:6])
    manager.fail_blocks = {table[1]}
    both = mini.output(new=[(a, table, 24, 2), (b, own, 24, 2)])
    engine.step(both, has_sync=True, forward=lambda: forward and forward(engine))
    assert engine.invalid[-1] == {table[1]}
    return engine, a, b, own


def test_engine_is_told_until_they_are_computed(make_engine: Any, mini: Any, manager: Any) -> None:
    engine, a, b, own = failed_for_two(make_engine, mini, manager)
    engine.finish(a)
    reserved = len(manager.reservations)
    engine.step(mini.output(cached=[(b, [], 24, 2)]))
    assert engine.invalid[-1] == set(own[1:6])
    # What it computed from them is saved from no step, and the engine has it compute them itself.
    engine.step(mini.output(cached=[(b, [], 4, 22)]))
    assert engine.invalid[-1] == set()
    engine.step(mini.output(cached=[(b, [], 26, 2)]))
    assert engine.invalid[-1] == set()
    assert len(manager.reservations) > reserved
    assert not engine.connector._scheduler._unsound.is_watching


def test_one_that_computes_them_in_time_is_enough(make_engine: Any, mini: Any, manager: Any) -> None:
    engine, a, b, _ = failed_for_two(make_engine, mini, manager)
    engine.step(mini.output(cached=[(a, [], 4, 22), (b, [], 24, 2)]))
    assert engine.invalid[-1] == set()


def test_later_request_that_finds_them_in_the_prefix_cache(make_engine: Any, mini: Any, manager: Any) -> None:
    engine, a, b, own = failed_for_two(make_engine, mini, manager)
    engine.finish(a)
    engine.finish(b)
    c = engine.add(mini.FakeRequest("c", list(TOKENS)))
    assert engine.match(c, local_blocks=6) == (0, False)
    table = engine.allocate(c, 0, local=own[:6])
    engine.step(mini.output(new=[(c, table, 24, 2)]))
    assert engine.invalid[-1] == set(own[1:6])


def test_they_are_known_although_everybody_was_gone(make_engine: Any, mini: Any, manager: Any) -> None:
    """Aborted while the step ran."""

    def abort(engine: Any) -> None:
        for record in list(engine.connector._scheduler.records.values()):
            engine.finish(record.request)

    engine, _, _, own = failed_for_two(make_engine, mini, manager, abort)
    c = engine.add(mini.FakeRequest("c", list(TOKENS)))
    table = engine.allocate(c, 0, local=own[:6]) if engine.match(c, local_blocks=6) == (0, False) else []
    engine.step(mini.output(new=[(c, table, 24, 2)]))
    assert engine.invalid[-1] == {own[1]}


def test_restored_into_again_they_are_sound(make_engine: Any, mini: Any, manager: Any) -> None:
    engine, a, b, own = failed_for_two(make_engine, mini, manager)
    engine.finish(a)
    engine.finish(b)
    manager.fail_blocks = set()
    engine.pool.free[:0] = own
    c = engine.add(mini.FakeRequest("c", list(TOKENS)))
    assert engine.match(c) == (24, False)
    table = engine.allocate(c, 24)
    assert table == own
    engine.step(mini.output(new=[(c, table, 24, 2)]), has_sync=True)
    d = engine.add(mini.FakeRequest("d", list(TOKENS)))
    assert engine.match(d, local_blocks=6) == (0, False)
    shared = engine.allocate(d, 0, local=table[:6])
    engine.step(mini.output(new=[(d, shared, 24, 2)]))
    assert engine.invalid[-2:] == [set(), set()]
