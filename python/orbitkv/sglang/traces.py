"""What SGLang's two sides trace of a request (docs/trace.md): the leader what is asked for, every rank what
is restored. Without a trace none of it costs more than a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from orbitkv.engine.native import load_native
from orbitkv.engine.trace import NoTrace, trace_cancel

if TYPE_CHECKING:
    from orbitkv.sglang.counter import LoadBatch
    from orbitkv.sglang.demands import Demand


class DemandTrace:
    """Events of demands."""

    def __init__(self, trace: NoTrace | None = None) -> None:
        self._trace = trace or NoTrace()

    def queued(self, demand: Demand) -> None:
        """Its request waits; the device lacks these pages."""
        self._trace.event("queued", demand.rid, pages=len(demand.hashes))

    def asked(self, demand: Demand, operation: Any, mode: str) -> None:
        """A query or a preparation has begun, None if it could not be sent."""
        if operation is not None:
            self._event(demand, operation, mode)("read_start", pages=len(demand.hashes))

    def warmed_up(self, demand: Demand) -> None:
        """Its pages are read ahead for nobody in particular."""
        self._trace.event("read_start", demand.rid, mode="warm_up", pages=len(demand.hashes))

    def answered(self, demand: Demand) -> None:
        """Pages are leased to its query."""
        if self._trace.is_on:
            self._event(demand, demand.query, "demand")("host_ready", pages=demand.query.pages)

    def looked_ahead(self, demand: Demand, age_s: float) -> None:
        """Its preparation is in another state than before."""
        if self._trace.is_on and demand.ahead_state == load_native().PREPARED:
            event = self._event(demand, demand.preparation, "prepare")
            event("host_ready", pages=demand.preparation.pages)
            event("prepared_read_ms", ms=round(age_s * 1000, 3))

    def timed_out(self, demand: Demand, *, is_over: bool) -> None:
        """Its deadline has passed without a page. `is_over`: the manager says so, and reads nothing more."""
        if self._trace.is_on and demand.query is not None:
            event = self._event(demand, demand.query, "demand")
            event("read_deadline")
            if not is_over:
                trace_cancel(event, load_native().PENDING)

    def released(self, demand: Demand, *, is_promised: bool) -> None:
        """Nobody wants the pages any more, of a query that runs or of a promise."""
        if not self._trace.is_on:
            return
        native = load_native()
        if demand.preparation is not None:
            state = native.PENDING if demand.ahead_state is None else demand.ahead_state
            trace_cancel(self._event(demand, demand.preparation, "prepare"), state)
        if demand.query is not None:
            trace_cancel(self._event(demand, demand.query, "demand"), native.PENDING)
        elif is_promised:
            trace_cancel(partial(self._trace.event, request_id=demand.rid, mode="demand"), native.READY)

    def _event(self, demand: Demand, operation: Any, mode: str) -> Callable[..., None]:
        return self._trace.of(demand.rid, operation, mode)


class LoadTrace:
    """Events of the loads of one rank."""

    def __init__(self, trace: NoTrace | None = None) -> None:
        self._trace = trace or NoTrace()

    def submitted(self, batch: LoadBatch) -> None:
        """Its copies have begun."""
        if self._trace.is_on:
            self._each(batch, "restore_submit")

    def waited(self, batch: LoadBatch) -> None:
        """The forward pass, or its stream, goes on with a layer."""
        self.looked(batch)
        if self._trace.is_on and not batch.layers_waited:
            self._each(batch, "first_use")

    def looked(self, batch: LoadBatch) -> None:
        """Its copies may have ended."""
        if not self._trace.is_on or batch.is_traced or not all(load.poll() for load in batch.loads):
            return
        batch.is_traced = True
        for rid, pages, load in zip(batch.rids, batch.pages, batch.loads, strict=True):
            failed = len(load.failed_blocks())
            self._trace.event("restore_complete", rid, pages=pages - failed, failed_pages=failed)
            if not failed:
                self._trace.event("gpu_ready", rid, pages=pages)

    def _each(self, batch: LoadBatch, event: str) -> None:
        for rid, pages in zip(batch.rids, batch.pages, strict=True):
            self._trace.event(event, rid, pages=pages)
