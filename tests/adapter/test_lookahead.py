"""Reading ahead for requests that wait: in their order, for few at a time, and never for longer than they
wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from orbitkv.engine.settings import Settings, SettingsError
from orbitkv.vllm import OrbitKVConnector

TOKENS = 18  # four full blocks, all of which may be restored
BLOCKS = 4
PREPARE, WARM_UP = "ORBITKV_PREPARE_REQUESTS", "ORBITKV_QUEUE_WARMUP"


@pytest.fixture
def engine(make_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(PREPARE, "1")
    return make_engine()


def request(mini: Any, name: str, first: int = 0) -> Any:
    return mini.FakeRequest(name, list(range(first, first + TOKENS)))


def queue(engine: Any, mini: Any, count: int) -> list[Any]:
    """Requests without a token in common."""
    return [engine.add(request(mini, f"r{index}", 100 * index)) for index in range(count)]


def stored(engine: Any, mini: Any, manager: Any, first: int = 0) -> None:
    """A prompt that the manager has, with nothing left of how it came there."""
    engine.compute_and_save(request(mini, "stored", first))
    manager.preparations.clear()
    manager.queries.clear()
    engine.counts.clear()


def live(manager: Any) -> list[list[bytes]]:
    """Hashes of the preparations that are neither claimed nor cancelled."""
    return [each.hashes for each in manager.preparations if not each.over]


def assert_nothing_left(engine: Any, manager: Any) -> None:
    assert live(manager) == []
    assert manager.leases == 0
    assert engine.connector._scheduler.records == {}
    assert not engine.connector._scheduler._lookahead._waiting


# Which requests -------------------------------------------------------------------------------------------


def test_the_first_four_by_arrival(engine: Any, mini: Any, manager: Any) -> None:
    requests = queue(engine, mini, 7)
    assert live(manager) == [each.block_hashes for each in requests[:4]]
    engine.step()
    assert live(manager) == [each.block_hashes for each in requests[:4]]


@pytest.mark.parametrize("leaves", ["abort", "start"])
def test_the_next_one_follows_one_that_leaves(engine: Any, mini: Any, manager: Any, leaves: str) -> None:
    requests = queue(engine, mini, 6)
    if leaves == "abort":
        engine.finish(requests[1])
    else:
        assert engine.match(requests[1]) == (0, False)
        engine.step()
        assert len(manager.preparations) == 4, "it has not started yet"
        engine.allocate(requests[1], 0)
    engine.step()
    expected = [requests[0], *requests[2:5]]
    assert live(manager) == [each.block_hashes for each in expected]
    for each in requests:
        engine.finish(each)
    assert_nothing_left(engine, manager)


def test_one_of_higher_priority_overtakes_them(engine: Any, mini: Any, manager: Any) -> None:
    """Its lookup is an ordinary one, and what was begun in order of arrival stays."""
    requests = queue(engine, mini, 6)
    engine.match(requests[5])
    engine.allocate(requests[5], 0)
    engine.step()
    assert live(manager) == [each.block_hashes for each in requests[:4]]
    assert [query.hashes for query in manager.queries] == [requests[5].block_hashes]
    # One that was looked up while it was too far back is not read ahead for when it comes forward.
    engine.match(requests[4])
    engine.finish(requests[0])
    engine.step()
    assert live(manager) == [each.block_hashes for each in requests[1:4]]


def test_blocks_in_the_engines_own_cache_are_left_out(engine: Any, mini: Any, manager: Any) -> None:
    a = request(mini, "a")
    # A block behind a gap is none that the engine would find.
    engine.pool.cached = {a.block_hashes[0], a.block_hashes[1], a.block_hashes[3]}
    engine.add(a)
    assert live(manager) == [a.block_hashes[2:]]
    b = request(mini, "b", 100)
    engine.pool.cached = set(b.block_hashes)
    engine.add(b)
    assert live(manager) == [a.block_hashes[2:]], "all of it is there"


def test_the_block_of_the_last_token_is_left_out(engine: Any, mini: Any, manager: Any) -> None:
    a = engine.add(mini.FakeRequest("a", list(range(16))))
    assert live(manager) == [a.block_hashes[:3]]
    engine.add(mini.FakeRequest("short", [1, 2, 3, 4]))
    assert len(manager.preparations) == 1


def test_requests_that_may_not_read_are_not_read_for(engine: Any, mini: Any, manager: Any) -> None:
    a = request(mini, "a")
    a.skip_reading_prefix_cache = True
    engine.add(a)
    engine.step()
    assert manager.preparations == []
    assert engine.match(a) == (0, False)


def test_while_the_manager_is_away_nothing_is_begun(engine: Any, mini: Any, manager: Any) -> None:
    manager.is_up = False
    queue(engine, mini, 2)
    engine.step()
    assert manager.preparations == []
    manager.is_up = True
    engine.step()
    assert len(live(manager)) == 2


def test_a_miss_is_not_tried_again(engine: Any, mini: Any, manager: Any) -> None:
    queue(engine, mini, 1)
    for _ in range(5):
        engine.step()
    assert len(manager.preparations) == 1


def test_each_step_keeps_each_of_them(engine: Any, mini: Any, manager: Any) -> None:
    stored(engine, mini, manager)
    queue(engine, mini, 3)
    before = [each.polls for each in manager.preparations]
    for _ in range(5):
        engine.step()
    assert [each.polls - had for each, had in zip(manager.preparations, before, strict=True)] == [5, 5, 5]


# The lookup -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ready", [True, False])
def test_the_lookup_claims_what_was_prepared(engine: Any, mini: Any, manager: Any, is_ready: bool) -> None:
    contents = engine.compute_and_save(request(mini, "stored"))
    manager.preparations.clear()
    manager.queries.clear()
    engine.counts.clear()
    manager.hold_preparations = not is_ready
    b = engine.add(request(mini, "b"))
    engine.step()
    assert (len(live(manager)), manager.leases) == (1, int(is_ready))
    assert engine.match(b) == (BLOCKS * 4, False)
    (prepared,) = manager.preparations
    assert manager.queries == [prepared.claimed], "no query beside it"
    assert 0 < prepared.claimed.deadline_ms <= 10_000
    assert engine.match(b) == (BLOCKS * 4, False), "asked again, it is the same claim"
    table = engine.allocate(b, BLOCKS * 4)
    engine.step(mini.output(new=[(b, table, BLOCKS * 4, TOKENS - BLOCKS * 4)]), has_sync=True)
    assert [engine.content(block) for block in table[:BLOCKS]] == contents
    engine.finish(b, table)
    engine.step()
    names = ("lookups", "lookup_misses", "preparations", "preparations_claimed", "load_pages")
    assert [engine.counts[name] for name in names] == [1, 0, 1, 1, BLOCKS]
    assert_nothing_left(engine, manager)


def test_one_that_has_expired_is_a_query_and_no_claim(engine: Any, mini: Any, manager: Any) -> None:
    stored(engine, mini, manager)
    b = engine.add(request(mini, "b"))
    engine.step()
    manager.preparations[0].lose("expired")
    assert manager.leases == 0
    assert engine.match(b) == (BLOCKS * 4, False)
    engine.finish(b)
    engine.step()
    assert [engine.counts[name] for name in ("lookups", "preparations", "preparations_claimed")] == [1, 1, 0]
    assert_nothing_left(engine, manager)


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 3)])
def test_changed_residency_is_asked_anew(
    engine: Any, mini: Any, manager: Any, before: int, after: int
) -> None:
    """The engine's own cache has grown or shrunk since: pages it no longer lacks, or lacks in front."""
    stored(engine, mini, manager)
    b = request(mini, "b")
    engine.pool.cached = set(b.block_hashes[:before])
    engine.add(b)
    engine.step()
    assert live(manager) == [b.block_hashes[before:]]
    assert engine.match(b, local_blocks=after) == ((BLOCKS - after) * 4, False)
    assert (live(manager), manager.preparations[0].claimed) == ([], None)
    assert [query.hashes for query in manager.queries] == [b.block_hashes[after:]]
    assert manager.leases == 1
    engine.finish(b)
    engine.step()
    assert [engine.counts[name] for name in ("lookups", "preparations_claimed")] == [1, 0]
    assert_nothing_left(engine, manager)


def test_everything_has_become_resident(engine: Any, mini: Any, manager: Any) -> None:
    stored(engine, mini, manager)
    b = engine.add(request(mini, "b"))
    assert engine.match(b, local_blocks=BLOCKS) == (0, False)
    assert (live(manager), manager.leases) == ([], 0)


@pytest.mark.parametrize("change", ["longer", "other"])
def test_changed_tokens_are_asked_anew(engine: Any, mini: Any, manager: Any, change: str) -> None:
    stored(engine, mini, manager)
    b = engine.add(request(mini, "b"))
    if change == "longer":
        b.tokens += [7, 7, 7]
    else:
        b.tokens = [*b.tokens[:14], 7, 7, 7, 7]
        b.block_hashes = b.block_hashes[:3]
    b.hash_blocks()
    found = 4 if change == "longer" else 3
    assert engine.match(b) == (found * 4, False)
    assert (live(manager), manager.preparations[0].claimed) == ([], None)
    assert [query.hashes for query in manager.queries] == [b.block_hashes]


def test_a_preempted_request_had_its_turn(engine: Any, mini: Any, manager: Any) -> None:
    a = engine.add(request(mini, "a"))
    engine.match(a)
    engine.step(mini.output(new=[(a, engine.allocate(a, 0), 0, TOKENS)]))
    engine.step(mini.output(preempted={"a"}))
    engine.step()
    assert len(manager.preparations) == 1
    assert engine.match(a) == (BLOCKS * 4, False)
    assert len(manager.queries) == 2
    engine.finish(a)
    assert_nothing_left(engine, manager)


# Ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_pending", [True, False])
@pytest.mark.parametrize("place", ["queued", "kept", "claimed", "loading", "running"])
def test_abort_leaves_nothing(
    make_engine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    mini: Any,
    manager: Any,
    place: str,
    is_pending: bool,
) -> None:
    monkeypatch.setenv(PREPARE, "1")
    engine = make_engine(load_mode="async")
    stored(engine, mini, manager)
    manager.hold_preparations = is_pending
    b = engine.add(request(mini, "b"))
    table = []
    if place != "queued":
        engine.step()
    if place in ("claimed", "loading", "running"):
        manager.hold_queries = is_pending and place == "claimed"
        engine.match(b)
    if place in ("loading", "running"):
        table = engine.allocate(b, BLOCKS * 4)
        engine.step()
    if place == "running":
        engine.allocate(b, 0)
        engine.step(mini.output(new=[(b, table, BLOCKS * 4, TOKENS - BLOCKS * 4)]))
    assert len(manager.preparations) == 1
    engine.finish(b, table)
    engine.step()
    assert_nothing_left(engine, manager)
    assert all(query.released for query in manager.queries)


def test_a_reset_gives_them_up(engine: Any, mini: Any, manager: Any) -> None:
    stored(engine, mini, manager)
    b = engine.add(request(mini, "b"))
    engine.step()
    assert manager.leases == 1
    assert engine.connector.reset_cache() is True
    assert (live(manager), manager.leases) == ([], 0)
    assert engine.match(b) == (0, False), "its pages are forgotten"


@pytest.mark.parametrize("call", ["prepare_prefix", "claim"])
def test_a_fault_does_not_reach_the_engine(engine: Any, mini: Any, manager: Any, call: str) -> None:
    manager.raise_in.add(call)
    a = engine.add(request(mini, "a"))
    assert engine.match(a) == (0, False)
    table = engine.allocate(a, 0)
    engine.step(mini.output(new=[(a, table, 0, TOKENS)]))
    assert engine.finish(a, table) == (False, None)


# Warm-up --------------------------------------------------------------------------------------------------


def test_warm_up_owns_nothing(
    make_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, mini: Any, manager: Any
) -> None:
    monkeypatch.setenv(WARM_UP, "1")
    engine = make_engine()
    stored(engine, mini, manager)
    manager.warm_ups.clear()
    requests = queue(engine, mini, 6)
    engine.step()
    assert manager.warm_ups == [each.block_hashes for each in requests[:4]]
    assert (manager.preparations, manager.leases) == ([], 0)
    assert engine.match(requests[0]) == (BLOCKS * 4, False)
    assert [query.hashes for query in manager.queries] == [requests[0].block_hashes]
    engine.finish(requests[0])
    engine.step()
    assert manager.warm_ups == [each.block_hashes for each in requests[:5]]
    names = ("lookups", "warm_ups", "preparations", "preparations_claimed")
    assert [engine.counts[name] for name in names] == [1, 5, 0, 0]
    for each in requests[1:]:
        engine.finish(each)
    assert_nothing_left(engine, manager)


# Switches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", [None, PREPARE, WARM_UP])
@pytest.mark.parametrize("value", ["", "0"])
def test_off_costs_nothing(
    make_engine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    mini: Any,
    manager: Any,
    lines: list[str],
    switch: str | None,
    value: str,
) -> None:
    if switch is not None:
        monkeypatch.setenv(switch, value)
    engine = make_engine()
    queue(engine, mini, 6)
    engine.step()
    assert_unused(engine, manager)
    assert not [line for line in lines if "ahead" in line or "ORBITKV_" in line]


def assert_unused(engine: Any, manager: Any) -> None:
    """Nothing was asked of manager or engine, and nothing is kept."""
    assert (manager.preparations, manager.warm_ups, engine.pool.probes) == ([], [], 0)
    assert not engine.connector._scheduler._lookahead._waiting


def test_both_switches_are_refused_and_the_cache_stays(
    make_engine: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    mini: Any,
    manager: Any,
    lines: list[str],
) -> None:
    monkeypatch.setenv(PREPARE, "1")
    monkeypatch.setenv(WARM_UP, "1")
    engine = make_engine()
    engine.compute_and_save(request(mini, "a"))
    assert engine.match(engine.add(request(mini, "b"))) == (BLOCKS * 4, False)
    assert_unused(engine, manager)
    (line,) = [line for line in lines if PREPARE in line]
    assert WARM_UP in line
    assert "neither is used" in line


@pytest.mark.parametrize("switch", [PREPARE, WARM_UP])
def test_several_ranks_are_served_without(
    native: Any,
    monkeypatch: pytest.MonkeyPatch,
    mini: Any,
    manager: Any,
    lines: list[str],
    switch: str,
) -> None:
    monkeypatch.setenv(switch, "1")
    ranks = {"parallel_config__tensor_parallel_size": 2, "parallel_config__world_size": 2}
    sides = [
        OrbitKVConnector(mini.vllm_config(**ranks), role, mini.kv_cache_config())
        for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER)
    ]
    engine = mini.Engine(*sides)
    a = engine.add(request(mini, "a"))
    assert_unused(engine, manager)
    engine.match(a)
    assert len(manager.queries) == 1, "the cache itself is on"
    (line,) = [line for line in lines if switch in line]
    assert "the engine has 2 ranks, and only 1 is supported" in line


def test_several_groups_are_served_without(
    native: Any, monkeypatch: pytest.MonkeyPatch, mini: Any, manager: Any, lines: list[str]
) -> None:
    """Such an engine has no cache at all, and one line says so."""
    monkeypatch.setenv(PREPARE, "1")
    cache = mini.kv_cache_config()
    cache.kv_cache_groups = cache.kv_cache_groups * 2
    connector = OrbitKVConnector(mini.vllm_config(), KVConnectorRole.SCHEDULER, cache)
    connector.on_new_request(request(mini, "a"))
    assert manager.preparations == []
    assert len(lines) == 1
    assert "2 KV cache groups" in lines[0]


def test_switches_are_settings_too() -> None:
    assert Settings.parse({"prepare_requests": True}, {}).prepare_requests
    assert not Settings.parse({"queue_warmup": False}, {WARM_UP: "1"}).queue_warmup
    with pytest.raises(SettingsError, match="ORBITKV_QUEUE_WARMUP is 'yes'; it must be 1"):
        Settings.parse({}, {WARM_UP: "yes"})
