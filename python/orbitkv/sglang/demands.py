"""What waiting requests want restored: one query each, and the pages that are promised to it.

A demand goes through: wanted (the engine named the pages) -> asked (its query is under way) -> pinned (the
ranks check the pages) -> ready, or over. SGLang kills a scheduler whose load fails, so pages are promised
only when every rank has them pinned: mapped, checked, and in its own custody.

Every rank holds the same demands, for the engine makes the same calls on all of them. Only the leader asks
the manager; what it learns reaches the others as verdicts. Nothing here waits, and nothing knows a clock:
time comes with the calls that need it.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from orbitkv.engine.ahead import WINDOW, Mode
from orbitkv.sglang.traces import DemandTrace

# Queries of one engine under way or answered and not used; below the manager's 128 operations of a session. A
# request beyond them has its query begun when another's has ended.
MAX_OPEN = 96
# Of those, how many may be begun for requests that have only been queued. Behind them a request's query
# begins when the engine has room for it: pages that a deep queue would pin are not there for its head.
MAX_EARLY = 32


class Asker(Protocol):
    """The leader's side of the manager."""

    def ask(self, hashes: Sequence[str], deadline_ms: int) -> Any:
        """Begins a query for these pages, a prefix from the first one on."""

    def prepare(self, hashes: Sequence[str]) -> Any:
        """Has the pages read ahead and held for a claim; kept by `keep`."""

    def keep(self, preparation: Any) -> int:
        """Holds them for another second. The preparation's state."""

    def claim(self, preparation: Any, deadline_ms: int) -> Any:
        """The query that takes them over."""

    def cancel(self, preparation: Any) -> None:
        """Gives them back."""

    def warm_up(self, hashes: Sequence[str]) -> bool:
        """Has the pages read ahead, for nobody in particular. Whether that could be asked for."""

    def answer(self, query: Any) -> bytes | bool | None:
        """A ticket, None for a miss, False while there is no answer."""

    def timed_out(self, query: Any) -> bool:
        """Of a miss: whether time alone made it one."""

    def drop(self, query: Any) -> None:
        """Nobody wants the answer any more."""


class State(enum.Enum):
    """Where a demand is."""

    WANTED = enum.auto()
    ASKED = enum.auto()
    PINNED = enum.auto()  # by this rank; the others may not have settled
    READY = enum.auto()
    OVER = enum.auto()  # nothing is restored for it


@dataclass(frozen=True)
class Verdict:
    """What the leader learned of a demand: a ticket, or that there is nothing to restore."""

    serial: int
    ticket: bytes | None


@dataclass(eq=False)
class Demand:
    """Pages that one request wants. `hashes` are those of the tail that the device lacks."""

    rid: str
    serial: int
    hashes: tuple[str, ...]
    state: State = State.WANTED
    is_gated: bool = False
    # Monotonic seconds; there once the request waits for its query.
    deadline: float | None = None
    had_turn: bool = False
    preparation: Any = None
    ahead_since: float = 0.0
    ahead_state: int | None = None  # as last seen
    query: Any = None
    pinned: Any = None
    pages: int = 0
    places: dict[str, int] = field(default_factory=dict)

    def place(self, key: str) -> int | None:
        """Which of its pages has that hash."""
        if not self.places:
            self.places = {page: index for index, page in enumerate(self.hashes)}
        return self.places.get(key)


class Demands:
    """All demands of one rank, by request."""

    def __init__(
        self,
        asker: Asker | None,
        pin: Callable[[bytes], Any],
        *,
        deadline_ms: int,
        grace_s: float,
        mode: Mode = Mode.OFF,
        trace: DemandTrace | None = None,
    ) -> None:
        self._asker = asker
        self._pin = pin
        self._deadline_ms = deadline_ms
        self._grace_s = grace_s
        self._mode = mode
        self._trace = trace or DemandTrace()
        self._demands: dict[str, Demand] = {}
        self._next_serial = 1
        # Serials of those with a query or pinned pages.
        self._open: set[int] = set()
        self.counters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._demands)

    @property
    def open(self) -> int:
        """Demands with a query or pinned pages."""
        return len(self._open)

    def promised(self, rid: str, hashes: Sequence[str]) -> int:
        """How many of the leading pages can be restored now, without fail. Cheap, and the same however often
        it is asked. If no demand of the request covers these pages they are what it wants from now on, and
        the answer is 0."""
        demand = self._demands.get(rid)
        if demand is not None:
            first = demand.place(hashes[0])
            if first is not None and tuple(hashes) == demand.hashes[first : first + len(hashes)]:
                return max(0, min(demand.pages - first, len(hashes))) if demand.state is State.READY else 0
            self.release(rid)
        self._demands[rid] = Demand(rid, self._next_serial, tuple(hashes))
        self._next_serial += 1
        return 0

    def gate(self, rid: str, now: float) -> None:
        """The request waits for its demand, if it has one, from `now` (monotonic seconds) on."""
        demand = self._demands.get(rid)
        if demand is not None and not demand.is_gated:
            demand.is_gated = True
            self._trace.queued(demand)
            if self._mode is Mode.OFF and self.open < MAX_EARLY:
                self._begin(demand, now)

    def may_start(self, rid: str, now: float) -> bool:
        """The engine has room for the request: whether it need not wait any longer. If its query has not
        begun, it does now."""
        demand = self._demands.get(rid)
        if demand is None or not demand.is_gated or demand.state in (State.READY, State.OVER):
            return True
        if demand.deadline is None:
            self._begin(demand, now)
        return False

    def _begin(self, demand: Demand, now: float) -> None:
        demand.deadline = now + self._deadline_ms / 1000
        self._ask(demand, now)

    def _ask(self, demand: Demand, now: float) -> None:
        if self._asker is None or self.open >= MAX_OPEN:
            return
        left_ms = max(1, int((demand.deadline - now) * 1000))
        preparation, demand.preparation = demand.preparation, None
        if preparation is not None:
            demand.query = self._asker.claim(preparation, left_ms)
        else:
            demand.query = self._asker.ask(demand.hashes, left_ms)
            self._trace.asked(demand, demand.query, "demand")
        demand.had_turn = True
        demand.state = State.ASKED
        self._open.add(demand.serial)
        self.counters["lookups"] += 1

    def _look_ahead(self, now: float) -> None:
        """Reads for the first of the requests that wait for room. Each has one turn."""
        waiting = (demand for demand in self._demands.values() if demand.is_gated and demand.deadline is None)
        for demand in islice(waiting, WINDOW):
            if demand.preparation is not None:
                state = self._asker.keep(demand.preparation)
                if state != demand.ahead_state:
                    demand.ahead_state = state
                    self._trace.looked_ahead(demand, now - demand.ahead_since)
            elif not demand.had_turn:
                demand.had_turn = True
                if self._mode is Mode.PREPARE:
                    demand.preparation = self._asker.prepare(demand.hashes)
                    demand.ahead_since = now
                    self._trace.asked(demand, demand.preparation, "prepare")
                    self.counters["preparations"] += 1
                else:
                    if self._asker.warm_up(demand.hashes):
                        self._trace.warmed_up(demand)
                    self.counters["warm_ups"] += 1

    def collect(self, now: float) -> list[Verdict]:
        """Leader: what was learned since the last call, deadlines included."""
        if self._mode is not Mode.OFF:
            self._look_ahead(now)
        verdicts = []
        for demand in self._demands.values():
            if demand.deadline is None or demand.state in (State.READY, State.OVER):
                continue
            if demand.state is State.WANTED:
                self._ask(demand, now)
            ticket = self._asker.answer(demand.query) if demand.state is State.ASKED else False
            is_late = ticket is False and now >= demand.deadline + self._grace_s
            if is_late or (ticket is None and self._asker.timed_out(demand.query)):
                self.counters["lookup_timeouts"] += 1
                self._trace.timed_out(demand, is_over=not is_late)
                ticket = None
            elif ticket:
                self._trace.answered(demand)
            if ticket is not False:
                verdicts.append(Verdict(demand.serial, ticket))
        return verdicts

    def apply(self, verdicts: Iterable[Verdict]) -> None:
        """Every rank: takes in what the leader has learned."""
        by_serial = {demand.serial: demand for demand in self._demands.values()}
        for verdict in verdicts:
            demand = by_serial.get(verdict.serial)
            if demand is None:
                # Lost by an error of this rank alone, on which the manager counts all the same.
                if verdict.ticket is not None:
                    self._pin(verdict.ticket).release()
                continue
            self._drop_query(demand)
            if verdict.ticket is None:
                self._let_go(demand)
                self.counters["lookup_misses"] += 1
            else:
                demand.pinned = self._pin(verdict.ticket)
                demand.state = State.PINNED
                self._open.add(demand.serial)

    def unsettled(self) -> list[Demand]:
        """Every rank, in the same order: demands whose pages are being checked."""
        return [demand for demand in self._demands.values() if demand.state is State.PINNED]

    def settle(self, demand: Demand, pages: int) -> None:
        """Every rank: `pages` can be restored on all of them."""
        if pages > 0:
            demand.pages = pages
            demand.state = State.READY
            self.counters["lookup_hits"] += 1
        else:
            self._let_go(demand)
            self.counters["lookup_misses"] += 1

    def take(self, rid: str, hashes: Sequence[str]) -> tuple[Any, list[int]]:
        """Hands over the pinned pages of a promise, and which of them are wanted; the demand is over. Raises
        LookupError for what was not promised."""
        demand = self._demands.get(rid)
        if demand is None or demand.state is not State.READY:
            raise LookupError(f"no pages are promised to request {rid!r}")
        pages = [demand.place(key) for key in hashes]
        if any(page is None or page >= demand.pages for page in pages):
            raise LookupError(f"other pages are promised to request {rid!r}")
        del self._demands[rid]
        self._open.discard(demand.serial)
        return demand.pinned, pages

    def release(self, rid: str) -> None:
        """The request wants nothing any more: started, aborted, or the device has all its pages.
        Idempotent."""
        demand = self._demands.pop(rid, None)
        if demand is not None:
            self._trace.released(demand, is_promised=demand.state in (State.PINNED, State.READY))
            self._drop_query(demand)
            if demand.preparation is not None:
                self._asker.cancel(demand.preparation)
            self._let_go(demand)

    def release_all(self) -> None:
        """Nobody wants anything any more."""
        for rid in list(self._demands):
            self.release(rid)

    def _drop_query(self, demand: Demand) -> None:
        query, demand.query = demand.query, None
        if query is not None:
            self._asker.drop(query)

    def _let_go(self, demand: Demand) -> None:
        pinned, demand.pinned = demand.pinned, None
        demand.state = State.OVER
        demand.pages = 0
        self._open.discard(demand.serial)
        if pinned is not None:
            pinned.release()
