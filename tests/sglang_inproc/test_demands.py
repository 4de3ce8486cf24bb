"""The rules of demands, on their own: no tree, no manager, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from orbitkv.engine.ahead import Mode
from orbitkv.sglang import demands as module
from orbitkv.sglang.demands import Demands, State, Verdict

PAGES = [f"{page:064x}" for page in range(8)]


@dataclass(eq=False)
class Query:
    hashes: tuple[str, ...]
    deadline_ms: int
    answer: bytes | bool | None = False
    is_late: bool = False
    drops: int = 0


@dataclass(eq=False)
class Preparation:
    hashes: tuple[str, ...]
    keeps: int = 0
    cancels: int = 0


@dataclass
class FakeAsker:
    queries: list[Query] = field(default_factory=list)
    preparations: list[Preparation] = field(default_factory=list)
    claims: list[Preparation] = field(default_factory=list)
    warmed: list[tuple[str, ...]] = field(default_factory=list)

    def prepare(self, hashes: tuple[str, ...]) -> Preparation:
        self.preparations.append(Preparation(hashes))
        return self.preparations[-1]

    def keep(self, preparation: Preparation) -> None:
        preparation.keeps += 1

    def claim(self, preparation: Preparation, deadline_ms: int) -> Query:
        self.claims.append(preparation)
        return self.ask(preparation.hashes, deadline_ms)

    def cancel(self, preparation: Preparation) -> None:
        preparation.cancels += 1

    def warm_up(self, hashes: tuple[str, ...]) -> None:
        self.warmed.append(hashes)

    def ask(self, hashes: tuple[str, ...], deadline_ms: int) -> Query:
        self.queries.append(Query(hashes, deadline_ms))
        return self.queries[-1]

    def answer(self, query: Query) -> bytes | bool | None:
        return query.answer

    def timed_out(self, query: Query) -> bool:
        return query.is_late

    def drop(self, query: Query) -> None:
        query.drops += 1


@dataclass(eq=False)
class Pinned:
    ticket: bytes
    releases: int = 0

    def release(self) -> None:
        self.releases += 1


class World:
    """One leader and its pins."""

    def __init__(self, mode: Mode = Mode.OFF) -> None:
        self.asker = FakeAsker()
        self.pins: list[Pinned] = []
        self.demands = Demands(self.asker, self._pin, deadline_ms=500, grace_s=0.05, mode=mode)

    def _pin(self, ticket: bytes) -> Pinned:
        self.pins.append(Pinned(ticket))
        return self.pins[-1]

    def step(self, now: float) -> list[Verdict]:
        verdicts = self.demands.collect(now)
        self.demands.apply(verdicts)
        return verdicts

    def ready(self, rid: str, hashes: list[str], pages: int) -> Pinned:
        assert self.demands.promised(rid, hashes) == 0
        self.demands.gate(rid, 0.0)
        self.asker.queries[-1].answer = b"ticket"
        self.step(0.01)
        [demand] = self.demands.unsettled()
        self.demands.settle(demand, pages)
        return self.pins[-1]


@pytest.fixture
def world() -> World:
    return World()


def test_a_promise_is_the_part_of_the_pages_that_are_wanted_and_pinned(world: World) -> None:
    pinned = world.ready("a", PAGES, 5)
    demands = world.demands
    assert demands.promised("a", PAGES) == 5
    assert demands.promised("a", PAGES[:3]) == 3
    assert demands.promised("a", PAGES[2:]) == 3
    assert demands.promised("a", PAGES[5:]) == 0
    assert demands.take("a", [PAGES[1], PAGES[4]]) == (pinned, [1, 4])
    assert len(demands) == 0
    assert pinned.releases == 0


def test_what_was_not_promised_cannot_be_taken(world: World) -> None:
    world.ready("a", PAGES, 2)
    for rid, hashes in (("b", PAGES[:1]), ("a", PAGES[2:3]), ("a", ["f" * 64])):
        with pytest.raises(LookupError):
            world.demands.take(rid, hashes)
    assert world.demands.promised("a", PAGES) == 2


def test_nothing_is_asked_before_the_request_waits(world: World) -> None:
    world.demands.promised("a", PAGES)
    world.step(1.0)
    assert world.asker.queries == []
    assert world.demands.may_start("a", 0.0)
    world.demands.gate("a", 1.0)
    assert [query.deadline_ms for query in world.asker.queries] == [500]
    assert not world.demands.may_start("a", 0.0)


def test_the_same_pages_are_asked_for_once(world: World) -> None:
    for _ in range(3):
        world.demands.promised("a", PAGES)
        world.demands.gate("a", 0.0)
        world.step(0.1)
    assert len(world.asker.queries) == 1


def test_a_gap_before_the_pages_asks_anew_and_lets_go(world: World) -> None:
    pinned = world.ready("a", PAGES[3:], 5)
    assert world.demands.promised("a", PAGES) == 0
    assert pinned.releases == 1
    world.demands.gate("a", 1.0)
    assert world.asker.queries[-1].hashes == tuple(PAGES)


def test_a_deadline_ends_a_wait_without_another_lookup(world: World) -> None:
    world.demands.promised("a", PAGES)
    world.demands.gate("a", 10.0)
    assert world.step(10.54) == []
    assert not world.demands.may_start("a", 0.0)
    assert len(world.step(10.55)) == 1
    assert world.demands.may_start("a", 0.0)
    assert world.asker.queries[0].drops == 1
    assert world.demands.counters["lookup_timeouts"] == 1


def test_a_deadline_ends_a_check_and_lets_the_pages_go(world: World) -> None:
    world.demands.promised("a", PAGES)
    world.demands.gate("a", 0.0)
    world.asker.queries[0].answer = b"ticket"
    world.step(0.1)
    assert not world.demands.may_start("a", 0.0)
    world.step(0.6)
    assert world.demands.may_start("a", 0.0)
    assert world.demands.unsettled() == []
    assert world.pins[0].releases == 1


@pytest.mark.parametrize("answer", ["none", "asked", "pinned", "ready", "miss"])
def test_a_release_gives_everything_back_once(world: World, answer: str) -> None:
    world.demands.promised("a", PAGES)
    if answer != "none":
        world.demands.gate("a", 0.0)
    if answer in ("pinned", "ready"):
        world.asker.queries[0].answer = b"ticket"
        world.step(0.1)
    if answer == "ready":
        world.demands.settle(world.demands.unsettled()[0], 8)
    if answer == "miss":
        world.asker.queries[0].answer = None
        world.step(0.1)
    for _ in range(2):
        world.demands.release("a")
    assert len(world.demands) == world.demands.open == 0
    assert [query.drops for query in world.asker.queries] == ([] if answer == "none" else [1])
    assert [pinned.releases for pinned in world.pins] == ([1] if answer in ("pinned", "ready") else [])


def test_pages_of_which_none_can_be_restored_are_a_miss(world: World) -> None:
    pinned = world.ready("a", PAGES, 0)
    assert pinned.releases == 1
    assert world.demands.may_start("a", 0.0)
    assert world.demands.promised("a", PAGES) == 0


def test_deep_in_the_queue_a_query_begins_when_there_is_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the request has waited by then."""
    monkeypatch.setattr(module, "MAX_EARLY", 2)
    for rid in "abc":
        world.demands.promised(rid, PAGES)
        world.demands.gate(rid, 0.0)
    world.step(0.1)
    assert len(world.asker.queries) == 2
    world.step(50.0)
    assert not world.demands.may_start("c", 60.0)
    assert [query.deadline_ms for query in world.asker.queries] == [500, 500, 500]
    world.asker.queries[2].answer = b"ticket"
    world.step(60.1)
    [demand] = world.demands.unsettled()
    assert demand.rid == "c"


def test_beyond_the_limit_requests_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 2)
    monkeypatch.setattr(module, "MAX_EARLY", 2)
    for rid in "abc":
        world.demands.promised(rid, PAGES)
        world.demands.gate(rid, 0.0)
    assert not world.demands.may_start("c", 0.0)
    assert len(world.asker.queries) == 2
    world.demands.release("a")
    world.step(0.2)
    assert [query.deadline_ms for query in world.asker.queries] == [500, 500, 300]
    world.demands.release("b")
    world.step(0.56)
    assert world.demands.may_start("c", 0.6), "its own deadline counts from when it might have started"


def test_the_others_follow_the_leader(world: World) -> None:
    """A rank that asks nothing comes to the same states by the verdicts."""
    follower = Demands(None, Pinned, deadline_ms=500, grace_s=0.05)
    for rid in "abc":
        for demands in (world.demands, follower):
            demands.promised(rid, PAGES)
            demands.gate(rid, 0.0)
    world.demands.release("b")
    follower.release("b")
    world.asker.queries[0].answer, world.asker.queries[2].answer = b"ticket", None
    follower.apply(world.step(0.1))
    for demands in (world.demands, follower):
        [demand] = demands.unsettled()
        assert (demand.rid, demand.pinned.ticket, demand.state) == ("a", b"ticket", State.PINNED)
        assert (demands.may_start("a", 0.0), demands.may_start("c", 0.0)) == (False, True)
        demands.settle(demand, 4)
        assert demands.promised("a", PAGES) == 4


def test_a_ticket_for_a_demand_that_is_gone_is_paid_back(world: World) -> None:
    world.demands.apply([Verdict(7, b"ticket"), Verdict(8, None)])
    assert [pinned.releases for pinned in world.pins] == [1]


def test_the_first_four_that_wait_for_room_are_read_ahead() -> None:
    """Each is held until it is claimed, with a deadline from then on, or gone."""
    world = World(Mode.PREPARE)
    for rid in "abcdef":
        world.demands.promised(rid, [*PAGES[:1], rid * 64])
        world.demands.gate(rid, 0.0)
    for now in (1.0, 2.0, 3.0):
        assert world.step(now) == []
    asker = world.asker
    assert [preparation.hashes[1][0] for preparation in asker.preparations] == list("abcd")
    assert [preparation.keeps for preparation in asker.preparations] == [2, 2, 2, 2]
    assert asker.queries == []
    assert not world.demands.may_start("b", 5.0)
    assert asker.claims == [asker.preparations[1]]
    assert asker.queries[0].deadline_ms == 500
    world.demands.release("a")
    assert [preparation.cancels for preparation in asker.preparations] == [1, 0, 0, 0]
    assert world.step(5.1) == []
    assert [preparation.hashes[1][0] for preparation in asker.preparations] == list("abcdef")
    assert not world.demands.may_start("b", 5.4)
    assert len(world.step(5.55)) == 1
    assert world.demands.may_start("b", 5.6)
    world.demands.release_all()
    assert [preparation.cancels for preparation in asker.preparations] == [1, 0, 1, 1, 1, 1]


def test_a_warm_up_holds_nothing() -> None:
    world = World(Mode.WARM_UP)
    for rid in "abcdef":
        world.demands.promised(rid, [*PAGES[:1], rid * 64])
        world.demands.gate(rid, 0.0)
        world.step(0.1)
    assert [hashes[1][0] for hashes in world.asker.warmed] == list("abcd")
    assert not world.demands.may_start("a", 1.0)
    assert len(world.asker.queries) == 1
    assert world.asker.claims == []
