"""The headroom rule, with exact numbers."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def gate() -> Any:
    from orbitkv.vllm.gate import Gate

    gate = Gate(lambda: gate.free, enabled=True)
    gate.free = 127
    return gate


def test_127_free_and_128_needed_waits_for_the_hold(gate: Any) -> None:
    gate.hold("a", 0)
    assert not gate.admits("b", 128, is_async=False)
    gate.new_scan()
    assert gate.admits("c", 127, is_async=False)


def test_without_a_hold_the_engine_decides(gate: Any) -> None:
    assert gate.admits("b", 128, is_async=False)
    assert gate.admits("b", 128, is_async=True)


def test_what_a_hold_still_needs_is_kept_free(gate: Any) -> None:
    gate.hold("a", 1)
    assert not gate.admits("b", 127, is_async=False)
    gate.new_scan()
    assert gate.admits("b", 126, is_async=False)


def test_nobody_overtakes_a_request_that_was_put_off(gate: Any) -> None:
    gate.hold("a", 0)
    assert not gate.admits("b", 128, is_async=False)
    assert not gate.admits("c", 1, is_async=False)
    assert not gate.admits("d", 1, is_async=True)


@pytest.mark.parametrize("how", ["scheduled", "cancelled"])
def test_end_of_the_hold_lets_everything_pass(gate: Any, how: str) -> None:
    gate.hold("a", 5)
    gate.release("a")
    assert gate.admits("b", 128, is_async=False)


def test_restore_leaves_room_for_the_head_of_the_queue(gate: Any) -> None:
    gate.put_off("b", 64)  # its lookup is pending
    assert not gate.admits("a", 64, is_async=True)
    assert gate.admits("c", 64, is_async=False)
    gate.new_scan()
    gate.put_off("b", 64)
    assert gate.admits("a", 63, is_async=True)


def test_several_restores_hold_together(gate: Any) -> None:
    gate.hold("a", 10)
    assert gate.admits("b", 117, is_async=True)
    gate.hold("b", 17)
    gate.free = 27
    assert not gate.admits("c", 1, is_async=False)
    gate.release("a")
    gate.new_scan()
    assert gate.admits("c", 10, is_async=False)


def test_switched_off_it_admits_what_would_stall(gate: Any) -> None:
    from orbitkv.vllm.gate import Gate

    off = Gate(lambda: 127, enabled=False)
    off.hold("a", 0)
    assert off.admits("b", 128, is_async=False)


def test_this_engine_version_needs_it() -> None:
    import vllm

    from orbitkv.vllm.gate import engine_needs_gate

    assert engine_needs_gate() == (tuple(map(int, vllm.__version__.split("+")[0].split(".")[:2])) < (0, 31))


def test_scheduler_side_holds_from_allocation_to_first_compute(
    make_engine: Any, mini: Any, manager: Any
) -> None:
    """B needs more than is free behind A's restore: "not yet" until A was scheduled, then the engine
    decides."""
    engine = make_engine(num_blocks=12, load_mode="async", lookup_deadline_ms=0)
    tokens = list(range(26))  # 6 full blocks
    engine.compute_and_save(mini.FakeRequest("seed", list(tokens)))
    a = engine.add(mini.FakeRequest("a", list(tokens)))
    b = engine.add(mini.FakeRequest("b", list(range(500, 524))))  # 6 blocks
    assert engine.match(a) == (24, True)
    table = engine.allocate(a, 24, tokens=24)
    assert engine.pool.get_num_free_blocks() == 5
    assert engine.match(b) == (None, False)
    engine.step()
    assert engine.received == ["a"]
    assert engine.match(b) == (None, False), "the end of the copy alone does not release the headroom"
    table += engine.pool.take(1)
    engine.connector.update_state_after_alloc(a, mini.Blocks(table), 0)
    engine.step(mini.output(new=[(a, table, 24, 2)]))
    assert engine.match(b) == (0, False)


def test_cancelled_restore_releases_the_headroom(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(num_blocks=12, load_mode="async")
    tokens = list(range(26))
    engine.compute_and_save(mini.FakeRequest("seed", list(tokens)))
    a = engine.add(mini.FakeRequest("a", list(tokens)))
    b = engine.add(mini.FakeRequest("b", list(range(500, 524))))
    engine.match(a)
    table = engine.allocate(a, 24, tokens=24)
    assert engine.match(b) == (None, False)
    engine.finish(a, table)
    assert engine.match(b) == (0, False)
