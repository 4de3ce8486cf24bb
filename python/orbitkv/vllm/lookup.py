"""One request's question to the cache manager, asked once and polled from then on."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from orbitkv.engine.native import load_native
from orbitkv.engine.trace import trace_cancel
from orbitkv.vllm.extent import Extent

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.request import Request

    from orbitkv.engine.settings import Settings
    from orbitkv.engine.trace import NoTrace
    from orbitkv.vllm.lookahead import Lookahead
    from orbitkv.vllm.requests import RequestRecord
    from orbitkv.vllm.worth import Worth


# How much longer than the deadline an answer is waited for. At the deadline the manager answers with what is
# ready, and that has to come here first; the native client gives up as much later.
ANSWER_GRACE_S = 0.05


class Lookup:
    """A query for the blocks of a request from position `start` on, and the lease it may end with."""

    def __init__(self, query: Any, start: int, trace: Callable[..., None]) -> None:
        self.start = start
        self._query = query
        self._closed = False
        self._trace = trace
        self._state = load_native().PENDING
        self._is_handed_out = False
        # Its pages were found worth a restore, which is asked once.
        self.is_worth = False

    @property
    def closed(self) -> bool:
        """Interest has ended: the answer is zero from now on."""
        return self._closed

    def poll(self) -> int:
        """The query's state."""
        return self._seen(self._query.poll())

    def wait(self, timeout_us: int) -> int:
        """The query's state after waiting at most that long for a final one."""
        return self._seen(self._query.wait(timeout_us))

    def _seen(self, state: int) -> int:
        if state != self._state and state == load_native().READY:
            self._trace("host_ready", pages=self._query.pages)
        self._state = state
        return state

    def give_up(self) -> None:
        """The deadline has ended it without a page."""
        self._trace("read_deadline")

    @property
    def timed_out(self) -> bool:
        """Ended by its deadline: the client's clock, or ours before the client's thread came to it."""
        return self._query.miss_reason in ("deadline", "")

    @property
    def end(self) -> int:
        """Position after the last leased page."""
        return self.start + self._query.pages

    def restore(self, start: int, count: int) -> bytes:
        """Ticket for the pages of positions `start .. start + count`; ends interest. Raises when the lease is
        gone. The pages stay leased until the workers are done with the ticket."""
        self._is_handed_out = True
        try:
            return self._query.restore(start - self.start, count)
        finally:
            self.close()

    def close(self) -> None:
        """Ends interest; idempotent."""
        if not self._closed:
            self._closed = True
            self._query.release()
            if not self._is_handed_out:
                trace_cancel(self._trace, self._state)


class Lookups:
    """Asks for requests. Each admission of a request costs one query, however often the engine repeats
    itself; one more where the first was withdrawn to wait for another's restore."""

    def __init__(
        self, client: Any, settings: Settings, lookahead: Lookahead, worth: Worth, trace: NoTrace
    ) -> None:
        self._client = client
        self._settings = settings
        self._lookahead = lookahead
        self._worth = worth
        self._trace = trace
        # Zero says not to wait at all.
        self._grace_s = ANSWER_GRACE_S if settings.lookup_deadline_ms > 0 else 0.0
        self._native = load_native()
        self.counters: Counter[str] = Counter()

    def hits(self, record: RequestRecord, start: int, usable: int) -> int | None:
        """Leased blocks from position `start` on, of those before `usable`; None means "not yet"."""
        lookup = record.lookup
        if lookup is not None and start < lookup.start:
            # The engine's own cache shrank: the answer on hand leaves a gap.
            lookup.close()
            lookup = None
        if lookup is None:
            if not self._client.active:
                return 0
            lookup = record.lookup = self._ask(record, start, usable)
            state = lookup.wait(self._settings.lookup_wait_us)
        elif lookup.closed:
            return 0
        else:
            state = lookup.poll()
        if state == self._native.PENDING and time.monotonic() < record.lookup_deadline + self._grace_s:
            return None
        if state == self._native.READY:
            hits = self._worthwhile(lookup, min(lookup.end, usable) - start)
        else:
            hits = 0
            self.counters["lookup_misses"] += 1
            if lookup.timed_out:
                self.counters["lookup_timeouts"] += 1
                lookup.give_up()
        if hits <= 0:
            lookup.close()
        return max(hits, 0)

    def _worthwhile(self, lookup: Lookup, hits: int) -> int:
        if hits > 0 and not lookup.is_worth:
            lookup.is_worth = self._worth.may_copy(hits)
        return hits if lookup.is_worth else 0

    def _ask(self, record: RequestRecord, start: int, usable: int) -> Lookup:
        now = time.monotonic()
        if record.lookup_deadline is None:
            record.lookup_deadline = now + self._worth.deadline_ms(usable - start) / 1000
        remaining_ms = max(1, int((record.lookup_deadline - now) * 1000))
        self.counters["lookups"] += 1
        extent = Extent.of(record.request, start, usable)
        query, is_new = self._query(record.request, extent, remaining_ms)
        trace = self._trace.of(record.request.request_id, query, "demand")
        if is_new:
            trace("read_start", pages=extent.stop - extent.start)
        return Lookup(query, start, trace)

    def _query(self, request: Request, extent: Extent, deadline_ms: int) -> tuple[Any, bool]:
        """Claims what was prepared for the request, or asks anew; whether it did. A live claim reads on: what
        it waits for has been under way for some time."""
        preparation = self._lookahead.take(request.request_id)
        fits = preparation is not None and preparation.holds(extent)
        is_live = fits and preparation.is_live
        memory_only = not is_live and not self._worth.may_read()
        if fits and not memory_only:
            self.counters["preparations_claimed"] += is_live
            return preparation.claim(deadline_ms), not is_live
        query = self._client.query(
            extent.hashes(request), group=0, deadline_ms=deadline_ms, memory_only=memory_only
        )
        if preparation is not None:
            # Only now: the pages that both want are not let go in between.
            preparation.cancel()
        return query, True
