"""Requests that lack the same pages: one restores them between steps, and none is in another's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

# Six blocks of four tokens, and two tokens behind them.
SHARED = list(range(100, 126))
PAGES = 6
NOT_YET = (None, False)


class World:
    """An engine with asynchronous restores, and requests for it."""

    def __init__(self, make_engine: Callable[..., Any], mini: Any, **settings: Any) -> None:
        settings = {"load_mode": "async", "refuse_slow_restores": False, **settings}
        self.mini = mini
        self.engine = make_engine(**settings)
        self.side = self.engine.connector._scheduler
        self.now = 0.0
        self.side._sharing._clock = lambda: self.now

    def store(self, tokens: list[int]) -> None:
        self.engine.compute_and_save(self.mini.FakeRequest("stored", list(tokens)))

    def request(self, name: str, tokens: list[int] = SHARED, **values: Any) -> Any:
        return self.engine.add(self.mini.FakeRequest(name, list(tokens), **values))

    def begin(self, name: str, tokens: list[int] = SHARED) -> tuple[Any, list[int]]:
        """A request whose restore is ordered."""
        request = self.request(name, tokens)
        external, is_async = self.engine.match(request)
        assert is_async
        return request, self.engine.allocate(request, external, tokens=external)

    def promote(self, request: Any, table: list[int]) -> None:
        """The engine's scan comes to a request whose restore is over, caches its blocks and runs it."""
        table = [*table, *self.engine.pool.take(1)]
        self.engine.connector.update_state_after_alloc(request, self.mini.Blocks(table), 0)
        self.engine.step(self.mini.output(new=[(request, table, 24, request.num_tokens - 24)]))

    @property
    def shared(self) -> list[int]:
        return [self.engine.counts[name] for name in ("shared_restores", "shared_tokens")]


@pytest.fixture
def world(make_engine: Callable[..., Any], mini: Any) -> World:
    world = World(make_engine, mini)
    world.store(SHARED)
    return world


def test_second_request_waits_and_finds_the_pages_in_the_engine(world: World, manager: Any) -> None:
    engine = world.engine
    a, table = world.begin("a")
    queries, leases = len(manager.queries), manager.leases
    b = world.request("b", [*SHARED[:24], 7, 7, 7])
    manager.hold_loads = True
    for _ in range(3):
        assert engine.match(b) == NOT_YET
        engine.step()
    manager.hold_loads = False
    engine.step()
    assert (len(manager.queries), manager.leases) == (queries, leases), "it neither asks nor holds"
    world.promote(a, table)
    assert engine.match(b, local_blocks=PAGES) == (0, False)
    own = engine.allocate(b, 0, local=table)
    engine.step(world.mini.output(new=[(b, own, 24, 3)]))
    assert world.shared == [1, 4 * PAGES]
    assert len(manager.loads) == 1


@pytest.mark.parametrize("how", ["aborted", "failed", "reset"])
def test_restore_that_brings_nothing_is_not_waited_for(world: World, manager: Any, how: str) -> None:
    engine = world.engine
    a, table = world.begin("a")
    b, c = world.request("b"), world.request("c")
    manager.hold_loads = how != "failed"
    if how == "failed":
        manager.fail_blocks = {table[0]}
    assert engine.match(b) == NOT_YET
    engine.step()
    if how == "aborted":
        engine.finish(a, table)
    elif how == "reset":
        engine.connector.reset_cache()
        world.store(SHARED)
    assert engine.match(b) == (4 * PAGES, True), "it restores them itself"
    engine.allocate(b, 4 * PAGES, tokens=4 * PAGES)
    assert engine.match(c) == NOT_YET, "and now the third waits for it"
    assert engine.counts["shared_restores"] == 0


def test_wait_ends_at_the_deadline_and_does_not_begin_again(world: World, manager: Any) -> None:
    engine = world.engine
    world.begin("a")
    manager.hold_loads = True
    b = world.request("b")
    world.now = 50.0
    assert engine.match(b) == NOT_YET
    world.now = 59.9
    assert engine.match(b) == NOT_YET
    world.now = 60.0  # lookup_deadline_ms of these tests is 10 s
    assert engine.match(b) == (4 * PAGES, True)
    # Put off for another reason, it is still past its time.
    assert engine.match(b) == (4 * PAGES, True)


def test_without_time_nobody_waits(make_engine: Callable[..., Any], mini: Any, manager: Any) -> None:
    world = World(make_engine, mini, lookup_deadline_ms=0)
    world.store(SHARED)
    world.begin("a")
    assert world.engine.match(world.request("b")) == (4 * PAGES, True)


def test_new_admission_may_wait_anew(world: World, manager: Any) -> None:
    engine = world.engine
    manager.hold_loads = True
    world.begin("a")
    b = world.request("b")
    assert engine.match(b) == NOT_YET
    world.now = 11.0
    assert engine.match(b) == (4 * PAGES, True)
    table = engine.allocate(b, 4 * PAGES, tokens=4 * PAGES)
    manager.hold_loads = False
    engine.step()
    world.promote(b, table)
    engine.step(world.mini.output(preempted={"b"}))
    world.begin("c")
    assert engine.match(b) == NOT_YET, "it was preempted, and others restore the pages again"


def test_restore_that_is_over_is_waited_for_one_scan(world: World, manager: Any) -> None:
    """The scan may not come to a request behind this one, of lower priority for instance."""
    engine = world.engine
    world.begin("a")
    b = world.request("b")
    for _ in range(3):
        manager.hold_loads = True
        assert engine.match(b) == NOT_YET
        engine.step()
    manager.hold_loads = False
    engine.step()
    assert engine.received == ["a"]
    assert engine.match(b) == NOT_YET, "this scan may still come to the other"
    engine.step()
    assert engine.match(b) == (4 * PAGES, True)


def test_lookup_asked_before_is_withdrawn_with_its_lease(world: World, manager: Any) -> None:
    engine = world.engine
    a, b = world.request("a"), world.request("b")
    manager.hold_queries = True
    assert [engine.match(a), engine.match(b)] == [NOT_YET, NOT_YET]
    manager.hold_queries = False
    assert engine.match(a) == (4 * PAGES, True)
    of_b = manager.queries[-1]
    assert of_b.poll() == 1
    assert manager.leases == 2
    table = engine.allocate(a, 4 * PAGES, tokens=4 * PAGES)
    leases = manager.leases
    assert engine.match(b) == NOT_YET
    assert of_b.released
    assert manager.leases == leases - 1
    engine.finish(a, table)
    assert engine.match(b) == (4 * PAGES, True), "it asks anew"


def test_lookup_of_a_longer_prompt_is_kept_for_the_rest(make_engine: Any, mini: Any, manager: Any) -> None:
    world = World(make_engine, mini)
    engine, longer = world.engine, [*SHARED[:24], *range(200, 214)]  # nine blocks
    world.store(longer)
    a, b = world.request("a", SHARED), world.request("b", longer)
    manager.hold_queries = True
    assert [engine.match(a), engine.match(b)] == [NOT_YET, NOT_YET]
    manager.hold_queries = False
    assert engine.match(a) == (4 * PAGES, True)
    table = engine.allocate(a, 4 * PAGES, tokens=4 * PAGES)
    assert engine.match(b) == NOT_YET
    engine.step()
    world.promote(a, table)
    assert engine.match(b, local_blocks=PAGES) == (12, True)
    assert len(manager.queries) == 3, "one of the store, one of each"
    own = engine.allocate(b, 12, local=table, tokens=36)
    engine.step()
    assert engine.received == ["a", "b"]
    assert manager.loads[-1].blocks == own[PAGES:]
    assert world.shared == [1, 4 * PAGES]


@pytest.mark.parametrize("local", [PAGES, 2])
def test_only_a_missing_page_is_waited_for(make_engine: Any, mini: Any, local: int) -> None:
    """What is in the engine already keeps nobody waiting; what others restore behind it does."""
    world = World(make_engine, mini)
    longer = [*SHARED[:24], *range(200, 214)]
    world.store(longer)
    world.begin("a", SHARED)
    answer = world.engine.match(world.request("b", longer), local_blocks=local)
    assert answer == (NOT_YET if local < PAGES else (12, True))


def test_other_pages_and_requests_without_reading_do_not_wait(world: World, manager: Any) -> None:
    world.begin("a")
    engine = world.engine
    assert engine.match(world.request("b", list(range(300, 326)))) == (0, False)
    assert engine.match(world.request("c", skip_reading_prefix_cache=True)) == (0, False)
    assert engine.match(world.request("d", SHARED[:3])) == (0, False)


def test_who_is_to_compute_its_prompt_does_not_wait(make_engine: Any, mini: Any) -> None:
    """It has had its answer, and only lacked blocks when it came."""
    world = World(make_engine, mini)
    b = world.request("b")
    assert world.engine.match(b) == (0, False)
    world.store(SHARED)
    world.begin("a")
    assert world.engine.match(b) == (0, False)


def test_restore_inside_a_step_is_not_waited_for(make_engine: Any, mini: Any) -> None:
    """Its blocks are in the engine's cache at once."""
    world = World(make_engine, mini, load_mode="sync")
    world.store(SHARED)
    a = world.request("a")
    assert world.engine.match(a) == (4 * PAGES, False)
    world.engine.allocate(a, 4 * PAGES)
    assert world.engine.match(world.request("b")) == (4 * PAGES, False)


def test_nothing_is_left_of_requests_that_are_gone(world: World, manager: Any) -> None:
    engine, sharing = world.engine, world.side._sharing
    manager.hold_loads = True
    a, table = world.begin("a")
    b = world.request("b")
    assert engine.match(b) == NOT_YET
    world.now = 11.0
    assert engine.match(b) == (4 * PAGES, True)
    own = engine.allocate(b, 4 * PAGES, tokens=4 * PAGES)
    engine.finish(a, table)
    assert engine.match(world.request("c")) == NOT_YET, "the same pages, restored for another"
    engine.finish(b, own)
    assert (sharing._restores, sharing._of_page) == ({}, {})


def test_who_waits_keeps_its_place_before_new_restores(make_engine: Any, mini: Any, manager: Any) -> None:
    """A restore behind a request that was put off leaves it the blocks that it needs."""
    world = World(make_engine, mini, num_blocks=18)
    other = list(range(300, 326))
    world.store(SHARED)
    world.store(other)
    world.begin("a")  # six blocks of seventeen, and one to come
    c = world.request("c", other)
    assert world.engine.match(c)[1], "alone it fits"
    assert world.engine.match(world.request("b")) == NOT_YET
    assert world.engine.match(c) == NOT_YET
