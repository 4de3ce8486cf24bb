"""Saves: only computed blocks, each once, never one that somebody overwrites."""

from __future__ import annotations

from typing import Any

import pytest

from orbitkv.vllm import saves

TOKENS = list(range(100, 118))


def request(mini: Any, name: str, tokens: list[int] = TOKENS, **values: Any) -> Any:
    return mini.FakeRequest(name, list(tokens), **values)


def prefill(engine: Any, mini: Any, item: Any, count: int | None = None) -> list[int]:
    """Schedules a request's first `count` tokens; returns its table."""
    engine.add(item)
    assert engine.match(item) == (0, False)
    table = engine.allocate(item, 0)
    engine.step(mini.output(new=[(item, table, 0, count or item.num_tokens)]))
    return table


def book(engine: Any) -> Any:
    return engine.connector._scheduler.saves


def test_compute_completion_comes_before_the_save(engine: Any, mini: Any, manager: Any) -> None:
    a = request(mini, "a")
    engine.add(a)
    engine.match(a)
    table = engine.allocate(a, 0)
    written = {}

    def forward() -> None:
        assert manager.saves == []
        written.update({block: engine.fill(block, 5 + block) for block in table[:2]})

    engine.step(mini.output(new=[(a, table, 0, 10)]), forward)  # 10 of 18 tokens: two full blocks
    assert manager.saves == []
    assert len(manager.reservations[0].hashes) == 2
    engine.step(mini.output(cached=[(a, [], 10, 8)]))
    assert manager.pages == dict(zip(a.block_hashes, written.values(), strict=False))
    engine.step()
    assert [len(save.blocks) for save in manager.saves] == [2, 2]
    assert [r.first_depth for r in manager.reservations] == [0, 2]
    assert manager.reservations[1].parent == a.block_hashes[1]


def test_a_block_filled_by_decoding_is_saved(engine: Any, mini: Any, manager: Any) -> None:
    a = request(mini, "a", TOKENS[:7])
    prefill(engine, mini, a)
    a.append(1)
    engine.step(mini.output(cached=[(a, [], 7, 1)]))
    engine.step()
    assert list(manager.pages) == a.block_hashes[:2]


def test_slow_answer_delays_only_the_save(engine: Any, mini: Any, manager: Any) -> None:
    manager.hold_reservations = True
    prefill(engine, mini, request(mini, "a"))
    engine.step()
    assert manager.saves == []
    manager.hold_reservations = False
    engine.step()
    assert len(manager.pages) == 4


def test_restored_blocks_are_not_saved_again(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(load_mode="sync")
    engine.compute_and_save(request(mini, "a", TOKENS[:12]))
    b = engine.add(request(mini, "b"))
    assert engine.match(b) == (12, False)
    table = engine.allocate(b, 12)
    before = len(manager.reservations)
    engine.step(mini.output(new=[(b, table, 12, 6)]), has_sync=True)
    (reservation,) = manager.reservations[before:]
    assert reservation.hashes == b.block_hashes[3:4]
    assert reservation.parent == b.block_hashes[2]


def test_what_was_computed_on_a_failed_restore_is_not_saved(
    make_engine: Any, mini: Any, manager: Any
) -> None:
    engine = make_engine(load_mode="sync")
    engine.compute_and_save(request(mini, "a", TOKENS[:12]))
    b = engine.add(request(mini, "b"))
    engine.match(b)
    table = engine.allocate(b, 12)
    manager.fail_blocks = {table[1]}
    engine.step(mini.output(new=[(b, table, 12, 6)]), has_sync=True)
    assert engine.invalid[-1] == {table[1]}
    engine.step()
    assert b.block_hashes[3] not in manager.pages
    assert manager.filling == set()
    # Computed again from the first bad block on, it is saved.
    engine.step(mini.output(cached=[(b, [], 4, 14)]), lambda: [engine.fill(block, 3) for block in table[1:4]])
    engine.step()
    assert manager.pages[b.block_hashes[3]] == engine.content(table[3])


def test_other_requests_of_a_failed_step_are_saved_when_computed_again(
    make_engine: Any, mini: Any, manager: Any
) -> None:
    """Another request may have read the failed blocks as a local hit, so its pages of that step are not
    trusted. They are offered again later, when the engine has said what they are worth."""
    engine = make_engine(load_mode="sync")
    engine.compute_and_save(request(mini, "a", TOKENS[:12]))
    b, c = engine.add(request(mini, "b")), engine.add(request(mini, "c", list(range(10))))
    engine.match(b)
    engine.match(c)
    tables = engine.allocate(b, 12), engine.allocate(c, 0)
    manager.fail_blocks = {tables[0][0]}
    engine.step(mini.output(new=[(b, tables[0], 12, 6), (c, tables[1], 0, 10)]), has_sync=True)
    engine.step(mini.output(cached=[(c, [], 10, 1)]))
    assert not set(c.block_hashes) & set(manager.pages)
    engine.step()
    assert set(c.block_hashes) <= set(manager.pages)


def test_step_still_running_saves_nothing(engine: Any, mini: Any, manager: Any) -> None:
    """With asynchronous scheduling the next step is built before the last one has ended."""
    a = engine.add(request(mini, "a"))
    engine.match(a)
    table = engine.allocate(a, 0)
    connector = engine.connector
    connector.build_connector_meta(mini.output(new=[(a, table, 0, 18)]))
    assert connector.build_connector_meta(mini.output(cached=[(a, [], 18, 1)])).saves == []
    connector.update_connector_output(mini.report(step=1))
    (order,) = connector.build_connector_meta(mini.output()).saves
    assert order.blocks == table[:4]


def test_existing_busy_and_refused_pages(
    engine: Any, mini: Any, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "BUSY_RETRY_S", 0.0)
    a = request(mini, "a", skip_reading_prefix_cache=True)
    manager.pages[a.block_hashes[0]] = b""
    manager.filling.add(a.block_hashes[1])
    prefill(engine, mini, a)
    for _ in range(20):
        engine.step()
    assert [len(save.blocks) for save in manager.saves] == [2]
    # Busy: asked again a bounded number of times.
    again = [r for r in manager.reservations if r.hashes == [a.block_hashes[1]]]
    assert len(again) == saves.MAX_BUSY_RETRIES
    manager.refuse = True
    prefill(engine, mini, request(mini, "c", list(range(8))))
    engine.step()
    assert book(engine).counters["refused"] == 2 + 1  # two pages, and the busy one after its last try
    assert book(engine).open_pages == 0


def test_busy_page_is_asked_for_again_after_a_pause(
    engine: Any, mini: Any, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "BUSY_RETRY_S", 3600.0)
    a = request(mini, "a")
    manager.filling.add(a.block_hashes[1])
    prefill(engine, mini, a)
    for _ in range(20):
        engine.step()
    assert not [r for r in manager.reservations if r.hashes == [a.block_hashes[1]]]


def test_busy_page_of_a_finished_request_keeps_an_idle_engine_stepping_and_is_saved(
    engine: Any, mini: Any, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "BUSY_RETRY_S", 0.0)
    a = request(mini, "a")
    manager.filling.update(a.block_hashes)
    table = prefill(engine, mini, a)
    engine.step()
    engine.finish(a, table)
    assert book(engine).has_work
    manager.filling.clear()
    for _ in range(4):
        engine.step()
    assert set(manager.pages) == set(a.block_hashes)
    assert not book(engine).has_work


def test_same_prefix_of_two_requests_is_offered_once(engine: Any, mini: Any, manager: Any) -> None:
    a, b = engine.add(request(mini, "a")), engine.add(request(mini, "b"))
    tables = []
    for item in (a, b):
        engine.match(item)
        tables.append(engine.allocate(item, 0))
    engine.step(mini.output(new=[(a, tables[0], 0, 18), (b, tables[1], 0, 18)]))
    assert len(manager.reservations) == 1


def test_reallocated_block_with_a_copy_in_flight_is_fenced(engine: Any, mini: Any, manager: Any) -> None:
    manager.hold_saves = True
    a = request(mini, "a")
    table = prefill(engine, mini, a)
    engine.step()
    assert len(manager.saves) == 1
    engine.finish(a, table)
    engine.pool.free = [table[2], *engine.pool.free]
    prefill(engine, mini, request(mini, "b", [1, 2, 3]))
    assert engine.metadata.fences == [table[2]]
    assert manager.fences[-1] == ((table[2],), 50)
    assert a.block_hashes[2] not in manager.filling
    manager.hold_saves = False
    engine.step()
    assert set(manager.pages) == {a.block_hashes[at] for at in (0, 1, 3)}


def test_block_that_a_running_request_grows_into_is_fenced(engine: Any, mini: Any, manager: Any) -> None:
    """The engine tells of it in the step's output alone."""
    b = request(mini, "b", [1, 2, 3])
    prefill(engine, mini, b)
    manager.hold_saves = True
    a = request(mini, "a")
    table = prefill(engine, mini, a)
    engine.step()
    engine.finish(a, table)
    for token in (4, 5):
        b.append(token)
    engine.step(mini.output(cached=[(b, [table[2]], 3, 2)]))
    assert engine.metadata.fences == [table[2]]
    assert manager.fences[-1] == ((table[2],), 50)


def test_block_of_a_table_not_seen_being_made_is_fenced(engine: Any, mini: Any, manager: Any) -> None:
    manager.hold_saves = True
    a = request(mini, "a")
    table = prefill(engine, mini, a)
    engine.step()
    engine.finish(a, table)
    b = engine.add(request(mini, "b", [1, 2, 3]))
    engine.step(mini.output(new=[(b, [table[2]], 0, 3)]))
    assert engine.metadata.fences == [table[2]]


def test_reallocated_block_not_yet_dispatched_is_copied_first(engine: Any, mini: Any, manager: Any) -> None:
    a = request(mini, "a")
    table = prefill(engine, mini, a)
    content = engine.fill(table[2], 77)
    engine.finish(a, table)
    engine.pool.free = [table[2], *engine.pool.free]
    b = engine.add(request(mini, "b", [1, 2, 3]))
    engine.match(b)
    (block,) = engine.allocate(b, 0)
    assert block == table[2]
    engine.step(mini.output(new=[(b, [block], 0, 3)]), lambda: engine.fill(block, 78))
    assert [order.urgent for order in engine.metadata.saves] == [True, False]
    assert manager.pages[a.block_hashes[2]] == content


def test_urgent_copy_that_does_not_end_in_time_is_aborted(engine: Any, mini: Any, manager: Any) -> None:
    a = request(mini, "a")
    table = prefill(engine, mini, a)
    engine.finish(a, table)
    engine.pool.free = [table[2], *engine.pool.free]
    manager.hold_saves = True
    b = engine.add(request(mini, "b", [1, 2, 3]))
    engine.match(b)
    engine.allocate(b, 0)
    engine.step(mini.output(new=[(b, [table[2]], 0, 3)]))
    manager.hold_saves = False
    engine.step()
    assert a.block_hashes[2] not in manager.pages
    assert a.block_hashes[2] not in manager.filling
    assert a.block_hashes[3] in manager.pages


def test_reallocated_block_without_an_answer_is_given_up(engine: Any, mini: Any, manager: Any) -> None:
    manager.hold_reservations = True
    a = request(mini, "a")
    table = prefill(engine, mini, a)
    engine.finish(a, table)
    engine.pool.free = [table[2], *engine.pool.free]
    prefill(engine, mini, request(mini, "b", [1, 2, 3]))
    manager.hold_reservations = False
    engine.step()
    assert set(manager.pages) == {a.block_hashes[at] for at in (0, 1, 3)}
    assert manager.filling == set()


def test_destination_of_a_restore_is_fenced_too(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(load_mode="async")
    engine.compute_and_save(request(mini, "a"))
    manager.hold_saves = True
    c = request(mini, "c", list(range(8)))
    table = prefill(engine, mini, c)
    engine.step()
    engine.finish(c, table)
    engine.pool.free = [*table, *engine.pool.free]
    b = engine.add(request(mini, "b"))
    engine.match(b)
    engine.allocate(b, 16, tokens=16)
    engine.step()
    assert engine.metadata.fences == sorted(table)


def test_local_hit_on_a_block_being_saved_is_not_fenced(engine: Any, mini: Any, manager: Any) -> None:
    manager.hold_saves = True
    a = request(mini, "a")
    table = prefill(engine, mini, a)
    engine.step()
    b = engine.add(request(mini, "b"))
    engine.match(b, local_blocks=2)
    second = engine.allocate(b, 0, local=table[:2])
    engine.step(mini.output(new=[(b, second, 8, 10)]))
    assert engine.metadata.fences == []


def test_finishing_is_never_delayed_and_saves_go_on(engine: Any, mini: Any, manager: Any) -> None:
    manager.hold_saves = True
    a = request(mini, "a")
    table = prefill(engine, mini, a)
    engine.step()
    assert engine.finish(a, table) == (False, None)
    assert engine.connector.has_pending_push_work()
    manager.hold_saves = False
    engine.step()
    assert len(manager.pages) == 4
    assert engine.connector.has_pending_push_work(), "once more, for what the workers have counted since"
    engine.step()
    assert not engine.connector.has_pending_push_work()


def test_unreachable_manager_does_not_keep_the_engine_stepping(
    engine: Any, mini: Any, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orbitkv.vllm import scheduler

    manager.hold_reservations = True
    a = request(mini, "a")
    engine.finish(a, prefill(engine, mini, a))
    assert engine.connector.has_pending_push_work()
    monkeypatch.setattr(scheduler, "IDLE_PUSH_S", 0.0)
    assert not engine.connector.has_pending_push_work()
    assert book(engine).open_pages == 0
    assert not engine.connector.has_pending_push_work()


def test_nothing_is_decided_while_the_manager_is_away(engine: Any, mini: Any, manager: Any) -> None:
    manager.is_up = False
    a = request(mini, "a")
    prefill(engine, mini, a)
    assert manager.reservations == []
    manager.is_up = True
    engine.step(mini.output(cached=[(a, [], 18, 1)]))
    engine.step()
    assert len(manager.pages) == 4


def test_open_pages_are_bounded(
    engine: Any, mini: Any, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orbitkv.vllm import saves

    monkeypatch.setattr(saves, "MAX_OPEN_PAGES_PER_REQUEST", 3)
    a = request(mini, "a")
    prefill(engine, mini, a)
    assert book(engine).open_pages == 3
    engine.step(mini.output(cached=[(a, [], 18, 1)]))
    engine.step()
    assert len(manager.pages) == 4


@pytest.mark.parametrize("shape", ["cached", "new"])
def test_resumed_in_both_shapes(engine: Any, mini: Any, manager: Any, shape: str) -> None:
    manager.hold_saves = True
    a = request(mini, "a")
    table = prefill(engine, mini, a)
    engine.step()
    engine.step(mini.output(preempted={"a"}))  # with its own save in flight
    a.append(9)
    a.append(10)
    record = engine.connector._scheduler.records["a"]
    assert record.blocks == []
    assert engine.match(a) == (0, False)
    engine.pool.free = [*reversed(table), *engine.pool.free]
    again = engine.allocate(a, 0)
    row = (a, again, 0, 20)
    engine.step(mini.output(new=[row]) if shape == "new" else mini.output(resumed=[row]))
    assert record.blocks == again
    assert set(engine.metadata.fences) == set(table[:4])
    manager.hold_saves = False
    engine.step()
    engine.step()
    # The fenced copies are gone, the block that is new since the preemption was saved.
    assert manager.pages[a.block_hashes[4]] == engine.content(again[4])


def test_reset_forgets_everything_and_says_so(engine: Any, mini: Any, manager: Any) -> None:
    manager.hold_saves = True
    engine.compute_and_save(request(mini, "a"))
    assert engine.connector.reset_cache() is True
    engine.step()
    assert manager.filling == set()
    assert book(engine).has_work is False
    manager.reset_answers = False
    assert engine.connector.reset_cache() is False
    manager.is_up = False
    assert engine.connector.reset_cache() is False


@pytest.mark.parametrize("trouble", ["silent", "away"])
def test_nothing_is_found_until_a_reset_is_confirmed(
    engine: Any, mini: Any, manager: Any, trouble: str
) -> None:
    """The engine does not always look at the answer, and may have other weights by now."""
    engine.compute_and_save(request(mini, "a"))
    stale = dict(manager.pages)
    manager.reset_answers, manager.is_up = trouble != "silent", trouble != "away"
    assert engine.connector.reset_cache() is False
    manager.is_up = True
    if trouble == "silent":
        assert manager.pages == stale
        b = engine.add(request(mini, "b"))
        assert engine.match(b) == (0, False)
        engine.finish(b)
    manager.reset_answers = True
    c = engine.add(request(mini, "c"))
    assert engine.match(c) == (0, False)
    assert manager.pages == {}
    # The control: what is saved from then on is found.
    engine.finish(c)
    engine.compute_and_save(request(mini, "d"))
    assert engine.match(engine.add(request(mini, "e")))[0] > 0
