"""One request's question to the cache manager, asked once and polled from then on."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from orbitkv.vllm.extent import Extent
from orbitkv.vllm.native import load_native

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from orbitkv.vllm.lookahead import Lookahead
    from orbitkv.vllm.requests import RequestRecord
    from orbitkv.vllm.settings import Settings


class Lookup:
    """A query for the blocks of a request from position `start` on, and the lease it may end with."""

    def __init__(self, query: Any, start: int) -> None:
        self.start = start
        self._query = query
        self._closed = False

    @property
    def closed(self) -> bool:
        """Interest has ended: the answer is zero from now on."""
        return self._closed

    def poll(self) -> int:
        """The query's state."""
        return self._query.poll()

    def wait(self, timeout_us: int) -> int:
        """The query's state after waiting at most that long for a final one."""
        return self._query.wait(timeout_us)

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
        try:
            return self._query.restore(start - self.start, count)
        finally:
            self.close()

    def close(self) -> None:
        """Ends interest; idempotent."""
        if not self._closed:
            self._closed = True
            self._query.release()


class Lookups:
    """Asks for requests. Each admission of a request costs one query, however often the engine repeats
    itself."""

    def __init__(self, client: Any, settings: Settings, lookahead: Lookahead) -> None:
        self._client = client
        self._settings = settings
        self._lookahead = lookahead
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
        if state == self._native.PENDING and time.monotonic() < record.lookup_deadline:
            return None
        if state == self._native.READY:
            hits = min(lookup.end, usable) - start
        else:
            hits = 0
            self.counters["lookup_misses"] += 1
            self.counters["lookup_timeouts"] += lookup.timed_out
        if hits <= 0:
            lookup.close()
        return max(hits, 0)

    def _ask(self, record: RequestRecord, start: int, usable: int) -> Lookup:
        now = time.monotonic()
        if record.lookup_deadline is None:
            record.lookup_deadline = now + self._settings.lookup_deadline_ms / 1000
        remaining_ms = max(1, int((record.lookup_deadline - now) * 1000))
        self.counters["lookups"] += 1
        return Lookup(self._query(record.request, start, usable, remaining_ms), start)

    def _query(self, request: Request, start: int, usable: int, deadline_ms: int) -> Any:
        """Claims what was prepared for the request, or asks anew."""
        extent = Extent.of(request, start, usable)
        preparation = self._lookahead.take(request.request_id)
        if preparation is not None and preparation.holds(extent):
            self.counters["preparations_claimed"] += preparation.is_live
            return preparation.claim(deadline_ms)
        query = self._client.query(extent.hashes(request), group=0, deadline_ms=deadline_ms)
        if preparation is not None:
            # Only now: the pages that both want are not let go in between.
            preparation.cancel()
        return query
