"""Block tables of the requests, and which blocks changed hands in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from orbitkv.vllm.requests import Phase, RequestRecord

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class Row(NamedTuple):
    """A request in a step, and how many of its blocks are full when the step has ended."""

    record: RequestRecord
    full: int


class BlockTables:
    """Keeps `RequestRecord.blocks` up to date, and collects the *fresh* blocks of a step: those that the
    engine took from its free list and will overwrite. A block found in the engine's own cache is not
    fresh."""

    def __init__(self, records: dict[str, RequestRecord], *, block_tokens: int) -> None:
        self._records = records
        self._block_tokens = block_tokens
        self._fresh: set[int] = set()
        self._allocated: set[str] = set()  # in this scheduling pass

    def allocated(self, record: RequestRecord, table: list[int]) -> None:
        """A waiting request got blocks; `table` is its whole table."""
        if record.phase is Phase.WAITING:
            record.blocks = []
            self._fresh.update(table[record.local_blocks :])
        else:
            self._fresh.update(table[len(record.blocks) :])
        record.blocks = list(table)
        self._allocated.add(record.request.request_id)

    def take_fresh(self) -> set[int]:
        """Fresh blocks since the last call."""
        fresh, self._fresh = self._fresh, set()
        return fresh

    def scheduled(self, output: SchedulerOutput) -> list[Row]:
        """Takes in a scheduling pass: those of its requests with full blocks that nobody has considered."""
        for request_id in (output.preempted_req_ids or set()) - self._allocated:
            if (record := self._records.get(request_id)) is not None:
                record.begin_admission()
        rows: list[Row] = []
        self._add_new(output, rows)
        self._add_cached(output, rows)
        self._allocated.clear()
        return rows

    def _add_new(self, output: SchedulerOutput, rows: list[Row]) -> None:
        """A request resumed after preemption comes here or below, depending on the engine's model runner."""
        for new in output.scheduled_new_reqs:
            record = self._records.get(new.req_id)
            if record is not None:
                self._replace(record, new.block_ids[0])
                record.phase = Phase.RUNNING
                end = new.num_computed_tokens + output.num_scheduled_tokens.get(new.req_id, 0)
                if (full := end // self._block_tokens) > record.considered:
                    rows.append(Row(record, full))

    def _add_cached(self, output: SchedulerOutput, rows: list[Row]) -> None:
        # Once a step for each request that decodes, of which there may be hundreds.
        cached, scheduled, records = output.scheduled_cached_reqs, output.num_scheduled_tokens, self._records
        resumed, block_tokens = cached.resumed_req_ids, self._block_tokens
        for request_id, block_ids, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            record = records.get(request_id)
            if record is None:
                continue
            if request_id in resumed:
                self._replace(record, block_ids[0] if block_ids else [])
            elif block_ids:
                self._fresh.update(block_ids[0])
                record.blocks.extend(block_ids[0])
            record.phase = Phase.RUNNING
            full = (computed + scheduled.get(request_id, 0)) // block_tokens
            if full > record.considered:
                rows.append(Row(record, full))

    def _replace(self, record: RequestRecord, table: list[int]) -> None:
        """`table` is the request's whole table."""
        if record.request.request_id not in self._allocated:
            # One that we have not seen being made: all of it may be overwritten.
            self._fresh.update(table)
        record.blocks = list(table)
