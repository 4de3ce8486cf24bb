"""Lookups and restores: what is found, how often it is asked for, and into which blocks it goes."""

from __future__ import annotations

from typing import Any

import pytest

TOKENS = list(range(100, 118))  # 4 full blocks of 4 tokens and 2 tokens more


def request(mini: Any, name: str, tokens: list[int] = TOKENS, **values: Any) -> Any:
    return mini.FakeRequest(name, list(tokens), **values)


def records(engine: Any) -> dict[str, Any]:
    return engine.connector._scheduler.records


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ready_hit_brings_back_equal_bytes(make_engine: Any, mini: Any, manager: Any, mode: str) -> None:
    engine = make_engine(load_mode=mode)
    saved = engine.compute_and_save(request(mini, "a"))
    assert len(manager.pages) == 4
    engine.pool.free.reverse()  # other blocks than before: a load that does nothing must be seen

    b = engine.add(request(mini, "b"))
    assert engine.match(b) == (16, mode == "async")
    table = engine.allocate(b, 16, tokens=16 if mode == "async" else None)
    assert [engine.content(block) for block in table[:4]] != saved
    if mode == "async":
        engine.step()
        assert engine.received == ["b"]
    else:
        engine.step(mini.output(new=[(b, table, 16, 2)]), has_sync=True)
    assert [engine.content(block) for block in table[:4]] == saved
    assert manager.leases == 0
    assert engine.invalid[-1] == set()


def test_miss_is_zero_and_asks_once(engine: Any, mini: Any, manager: Any) -> None:
    a = engine.add(request(mini, "a"))
    assert [engine.match(a) for _ in range(5)] == [(0, False)] * 5
    assert len(manager.queries) == 1
    assert manager.queries[0].released


@pytest.mark.parametrize("length", [1, 3, 4])
def test_short_prompt_is_not_asked_for(engine: Any, mini: Any, manager: Any, length: int) -> None:
    a = engine.add(request(mini, "a", TOKENS[:length]))
    assert engine.match(a) == (0, False)
    assert manager.queries == []


def test_five_tokens_have_one_usable_block(engine: Any, mini: Any, manager: Any) -> None:
    a = engine.add(request(mini, "a", TOKENS[:5]))
    engine.match(a)
    assert len(manager.queries[0].hashes) == 1


@pytest.mark.parametrize("length", [16, 17])
def test_case_a64_full_prompt_hit_leaves_a_token(engine: Any, mini: Any, length: int) -> None:
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b", TOKENS[:length]))
    tokens, _ = engine.match(b)
    assert tokens == (12 if length == 16 else 16)
    assert tokens < length


def test_case_a05_local_hit_longer_than_external(engine: Any, mini: Any, manager: Any) -> None:
    engine.compute_and_save(request(mini, "a", TOKENS[:8]))
    b = engine.add(request(mini, "b"))
    assert engine.match(b, local_blocks=3) == (0, False)
    assert manager.leases == 0
    # Nothing usable is left behind a hit that covers all whole blocks.
    c = engine.add(request(mini, "c"))
    assert engine.match(c, local_blocks=4) == (0, False)


def test_case_a13_repeated_lookups_take_one_lease(engine: Any, mini: Any, manager: Any) -> None:
    engine.compute_and_save(request(mini, "a"))
    before = len(manager.queries)
    b = engine.add(request(mini, "b"))
    assert {engine.match(b) for _ in range(88)} == {(16, False)}
    assert len(manager.queries) == before + 1
    assert manager.leases == 1
    assert manager.queries[-1].waits == 1
    engine.finish(b)
    assert manager.leases == 0


def test_skip_reading_prefix_cache_is_honoured(engine: Any, mini: Any, manager: Any) -> None:
    engine.compute_and_save(request(mini, "a"))
    before = len(manager.queries)
    b = engine.add(request(mini, "b", skip_reading_prefix_cache=True))
    assert engine.match(b) == (0, False)
    assert len(manager.queries) == before


def test_pending_is_not_yet_until_the_deadline(make_engine: Any, mini: Any, manager: Any) -> None:
    patient, hasty = make_engine(lookup_deadline_ms=60_000), make_engine(lookup_deadline_ms=0)
    manager.hold_queries = True
    a, b = patient.add(request(mini, "a")), hasty.add(request(mini, "b"))
    assert patient.match(a) == (None, False)
    assert hasty.match(b) == (0, False)
    assert [query.released for query in manager.queries] == [False, True]
    # The first wait is the only one; later visits poll.
    assert patient.match(a) == (None, False)
    assert manager.queries[0].waits == 1


def test_larger_local_hit_uses_the_rest_of_the_lease(engine: Any, mini: Any, manager: Any) -> None:
    saved = engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    assert engine.match(b) == (16, False)
    before = len(manager.queries)
    assert engine.match(b, local_blocks=1) == (12, False)
    assert len(manager.queries) == before
    table = engine.allocate(b, 12, local=engine.pool.take(1))
    engine.step(mini.output(new=[(b, table, 16, 2)]), has_sync=True)
    assert [engine.content(block) for block in table[1:4]] == saved[1:]


def test_smaller_local_hit_asks_anew(engine: Any, mini: Any, manager: Any) -> None:
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    assert engine.match(b, local_blocks=2) == (8, False)
    first = manager.queries[-1]
    assert engine.match(b, local_blocks=1) == (12, False)
    assert first.released
    assert manager.queries[-1] is not first
    assert manager.leases == 1


def test_local_hit_beyond_the_lease_releases_it(engine: Any, mini: Any, manager: Any) -> None:
    engine.compute_and_save(request(mini, "a", TOKENS[:8]))
    b = engine.add(request(mini, "b"))
    assert engine.match(b) == (8, False)
    assert engine.match(b, local_blocks=2) == (0, False)
    assert manager.leases == 0


def test_allocation_without_external_tokens_releases(engine: Any, mini: Any, manager: Any) -> None:
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    engine.match(b)
    assert manager.leases == 1
    engine.allocate(b, 0)
    assert manager.leases == 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_lease_lost_before_restore_is_a_failed_load(
    make_engine: Any, mini: Any, manager: Any, mode: str
) -> None:
    engine = make_engine(load_mode=mode)
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    assert engine.match(b) == (16, mode == "async")
    manager.queries[-1].lost = True
    table = engine.allocate(b, 16)
    scheduled = mini.output(new=[(b, table, 16, 2)]) if mode == "sync" else None
    engine.step(scheduled, has_sync=mode == "sync")
    assert engine.invalid[-1] == set(table[:4])
    assert engine.received == (["b"] if mode == "async" else [])
    # Once failed, the request is recomputed however often the engine asks.
    assert engine.match(b) == (0, False)


def test_failed_page_is_reported_with_its_load(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(load_mode="async")
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    engine.match(b)
    table = engine.allocate(b, 16, tokens=16)
    manager.fail_blocks = {table[2]}
    engine.step()
    assert (engine.received, engine.invalid[-1]) == (["b"], {table[2]})
    assert records(engine)["b"].restored == range(2)


def test_async_load_is_reported_once_when_it_is_over(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(load_mode="async")
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    engine.match(b)
    engine.allocate(b, 16, tokens=16)
    manager.hold_loads = True
    engine.step()
    engine.step()
    assert engine.received == []
    manager.hold_loads = False
    engine.step()
    engine.step()
    assert engine.received == ["b"]


def test_sync_load_that_does_not_land_is_stopped(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(load_mode="sync", layer_wait_ms=1)
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    engine.match(b)
    table = engine.allocate(b, 16)
    manager.hold_loads = True
    engine.step(mini.output(new=[(b, table, 16, 2)]), has_sync=True)
    assert manager.loads[-1].aborted
    assert manager.loads[-1].is_over
    assert engine.invalid[-1] == set(table[:4])


def test_sync_load_with_a_failed_page_still_lands_the_others(
    make_engine: Any, mini: Any, manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orbitkv.engine.native import load_native

    engine = make_engine(load_mode="sync")
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    engine.match(b)
    table = engine.allocate(b, 16)
    # The failure shows in `wait_layer` while the other pages are still on their way.
    manager.fail_blocks = {table[2]}
    manager.hold_loads = True

    def land(load: Any, timeout_ms: int) -> bool:
        load.finish()
        return True

    monkeypatch.setattr(load_native().Load, "wait", land)
    engine.step(mini.output(new=[(b, table, 16, 2)]), has_sync=True)
    assert not manager.loads[-1].aborted
    assert engine.invalid[-1] == {table[2]}


def test_sync_load_that_lands_after_its_layer_was_read_is_not_trusted(
    make_engine: Any, mini: Any, manager: Any
) -> None:
    engine = make_engine(load_mode="sync", layer_wait_ms=1)
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    engine.match(b)
    table = engine.allocate(b, 16)
    manager.hold_loads = True

    def forward() -> None:
        manager.hold_loads = False

    engine.step(mini.output(new=[(b, table, 16, 2)]), forward, has_sync=True)
    assert engine.invalid[-1] == set(table[:4])


def test_layers_the_engine_never_asked_for_are_not_trusted(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(load_mode="sync")
    engine.compute_and_save(request(mini, "a"))
    layers = engine.kv
    for turn, expected_to_fail in enumerate([True, False]):
        b = engine.add(request(mini, f"b{turn}"))
        engine.match(b)
        table = engine.allocate(b, 16)
        engine.kv = {}  # no wait_for_layer_load calls
        engine.step(mini.output(new=[(b, table, 16, 2)]), has_sync=True)
        engine.kv = layers
        # From then on the load is awaited before the forward pass.
        assert bool(engine.invalid[-1]) == expected_to_fail


def test_auto_mode_leaves_decoding_requests_alone(make_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_engine(sync_max_ms=0.0)
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    assert engine.match(b) == (16, False)  # nothing decodes
    engine.finish(b)
    d = engine.add(request(mini, "d", list(range(6))))
    engine.match(d)
    table = engine.allocate(d, 0)
    engine.step(mini.output(new=[(d, table, 0, 6)]))
    e = engine.add(request(mini, "e"))
    assert engine.match(e) == (16, True)
    engine.finish(d)
    assert engine.match(e) == (16, False)


def test_estimate_charges_all_restores_of_a_step_and_follows_measurements() -> None:
    from orbitkv.engine.settings import Settings
    from orbitkv.vllm.transfer import TransferEstimate

    estimate = TransferEstimate(Settings(socket="/x"), page_bytes=1_000_000)
    estimate.begin_step({"decoding"})
    assert [estimate.is_async(pages) for pages in (8, 9)] == [False, True]  # 8 MB at 2 GB/s are 4 ms
    estimate.add_sync(5)
    assert [estimate.is_async(pages) for pages in (3, 4)] == [False, True]
    estimate.begin_step({"decoding"})
    estimate.observe(12_000_000_000, 1.0)
    assert estimate.bytes_per_second == pytest.approx(4e9)
    assert [estimate.is_async(pages) for pages in (16, 17)] == [False, True]
    estimate.observe(0, 0.0)
    assert estimate.bytes_per_second == pytest.approx(4e9)


def test_only_a_restore_that_was_waited_for_is_timed(
    make_engine: Any, mini: Any, manager: Any, native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(load_mode="sync")
    engine.compute_and_save(request(mini, "a"))
    poll = native.Load.poll
    for is_slow in (False, True):
        b = engine.add(request(mini, f"b{is_slow}"))
        engine.match(b)
        table = engine.allocate(b, 16)
        not_yet = [False] if is_slow else []
        monkeypatch.setattr(native.Load, "poll", lambda load, n=not_yet: n.pop() if n else poll(load))
        report = engine.step(mini.output(new=[(b, table, 16, 2)]), has_sync=True).kv_connector_worker_meta
        assert engine.invalid[-1] == set()
        assert (report.loaded_bytes == 4 * 768) is is_slow
