"""Reads for requests before the engine asks about them.

The first `WINDOW` accepted requests without blocks, in the order of their arrival, have their pages read into
the pool from the tier behind it. With `prepare_requests` each such read has an owner: the pages stay leased
until the request's lookup claims them, the request ends, or a second passes without a step of the engine.
With `queue_warmup` nobody owns them: they are read and can be evicted again at once.

Each request has one turn: neither a miss nor a preemption reads ahead for it again.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from orbitkv.engine.ahead import WINDOW, Mode
from orbitkv.engine.native import load_native
from orbitkv.engine.trace import trace_cancel
from orbitkv.vllm.extent import Extent, usable_blocks

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request

    from orbitkv.engine.trace import NoTrace
    from orbitkv.vllm.worth import Worth


class Preparation:
    """Pages that are read for one request, and held for it."""

    def __init__(self, native: Any, extent: Extent, trace: Callable[..., None]) -> None:
        self._native = native
        self._extent = extent
        self._trace = trace
        self._begun = time.monotonic()
        self._state = load_native().PENDING

    def keep(self) -> int:
        """Holds the pages for another second. Its state."""
        state = self._native.poll()
        if state != self._state and state == load_native().PREPARED:
            self._trace("host_ready", pages=self._native.pages)
            self._trace("prepared_read_ms", ms=round((time.monotonic() - self._begun) * 1000, 3))
        self._state = state
        return state

    @property
    def is_live(self) -> bool:
        """Whether there is still something to claim."""
        return self.keep() != load_native().MISS

    def holds(self, extent: Extent) -> bool:
        """Whether these are the pages of that extent, all of them and no others."""
        return self._extent == extent

    def claim(self, deadline_ms: int) -> Any:
        """The query that takes its pages over; an ordinary one where they are gone."""
        return self._native.claim(deadline_ms=deadline_ms)

    def cancel(self) -> None:
        """Gives its pages back."""
        self._native.cancel()
        trace_cancel(self._trace, self._state)


@dataclass
class _Waiting:
    request: Request
    preparation: Preparation | None = None
    # Read for, or looked up already: there is nothing left to read ahead.
    had_turn: bool = False


class Lookahead:
    """Requests without blocks by arrival, and what is being read for the first of them."""

    def __init__(self, client: Any, mode: Mode, block_tokens: int, worth: Worth, trace: NoTrace) -> None:
        self._client = client
        self._worth = worth
        self._trace = trace
        self._mode = mode
        self._block_tokens = block_tokens
        self._get_cached_block: Callable[[Any, list[int]], Any] | None = None
        # A linked list: requests leave at the front, where a plain dict would keep gaps to walk over.
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self.counters: Counter[str] = Counter()

    def bind_pool(self, pool: BlockPool) -> None:
        """The engine's block pool: what is in its prefix cache needs no read. Only looked at."""
        self._get_cached_block = getattr(pool, "get_cached_block", None)

    def accepted(self, request: Request) -> None:
        """The engine has queued the request."""
        if self._mode is Mode.OFF:
            return
        self._waiting.setdefault(request.request_id, _Waiting(request))
        if len(self._waiting) <= WINDOW:
            self.advance()

    def advance(self) -> None:
        """Keeps what has been begun and begins what has come into the window. Once a step."""
        for waiting in islice(self._waiting.values(), WINDOW):
            if waiting.preparation is not None:
                waiting.preparation.keep()
            elif not waiting.had_turn and self._client.active:
                waiting.had_turn = True
                self._begin(waiting)

    def _begin(self, waiting: _Waiting) -> None:
        request = waiting.request
        if request.skip_reading_prefix_cache:
            return
        usable = usable_blocks(request, self._block_tokens)
        start = self._resident(request, usable)
        if start >= usable:
            return
        if not self._worth.may_read_ahead():
            return
        extent = Extent.of(request, start, usable)
        hashes = extent.hashes(request)
        if self._mode is Mode.WARM_UP:
            is_sent = self._client.warm_up(hashes, group=0)
            self.counters["warm_ups"] += is_sent
            if is_sent:
                self._trace.event("read_start", request.request_id, mode="warm_up", pages=extent.stop - start)
            return
        native = self._client.prepare_prefix(hashes, group=0)
        trace = self._trace.of(request.request_id, native, "prepare")
        waiting.preparation = Preparation(native, extent, trace)
        self.counters["preparations"] += 1
        trace("read_start", pages=extent.stop - start)

    def _resident(self, request: Request, usable: int) -> int:
        """Leading blocks, `usable` at most, in the engine's own cache, found as it finds them. Looking
        keeps none of them, so the lookup may see another number, and then asks anew."""
        if self._get_cached_block is None:
            return 0
        for position, block_hash in enumerate(islice(request.block_hashes, usable)):
            if not self._get_cached_block(block_hash, [0]):
                return position
        return usable

    def take(self, request_id: str) -> Preparation | None:
        """Hands over what was prepared for a request that is now looked up. It keeps its place in the window
        until it starts."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return None
        waiting.had_turn = True
        preparation, waiting.preparation = waiting.preparation, None
        return preparation

    def release(self, request_id: str) -> None:
        """Nothing is to be read for the request any more, wherever it waits."""
        preparation = self.take(request_id)
        if preparation is not None:
            preparation.cancel()

    def left(self, request_id: str) -> None:
        """The request has its blocks, or is over: the next one comes into the window."""
        self.release(request_id)
        self._waiting.pop(request_id, None)

    def clear(self) -> None:
        """Gives up everything prepared; the requests go on waiting."""
        for request_id in islice(self._waiting, WINDOW):
            self.release(request_id)
