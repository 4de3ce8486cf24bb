"""Block tables of the requests, and which blocks changed hands in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orbitkv.vllm.requests import Phase, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.v1.core.sched.output import SchedulerOutput


@dataclass(frozen=True)
class Row:
    """A request in a step: its block table, and tokens computed before and after the step."""

    request_id: str
    table: list[int]
    begin: int
    end: int


class BlockTables:
    """Keeps `RequestRecord.blocks` up to date, and collects the *fresh* blocks of a step: those that the
    engine took from its free list and will overwrite. A block found in the engine's own cache is not
    fresh."""

    def __init__(self, records: dict[str, RequestRecord]) -> None:
        self._records = records
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
        """Takes in a scheduling pass: its requests, with their tables as they are now."""
        for request_id in (output.preempted_req_ids or set()) - self._allocated:
            if (record := self._records.get(request_id)) is not None:
                record.begin_admission()
        rows = []
        for request_id, table, is_whole, num_computed in _tables(output):
            record = self._records.get(request_id)
            if record is None:
                continue
            self._update(record, table, is_whole)
            end = num_computed + output.num_scheduled_tokens.get(request_id, 0)
            rows.append(Row(request_id, record.blocks, num_computed, end))
        self._allocated.clear()
        return rows

    def _update(self, record: RequestRecord, table: list[int], is_whole: bool) -> None:
        request_id = record.request.request_id
        if is_whole:
            if request_id not in self._allocated:
                # A table we have not seen being made: all of it may be overwritten.
                self._fresh.update(table)
            record.blocks = list(table)
        else:
            self._fresh.update(table)
            record.blocks.extend(table)
        record.phase = Phase.RUNNING


def _tables(output: SchedulerOutput) -> Iterator[tuple[str, list[int], bool, int]]:
    """Request id, block ids, whether they are the whole table, and tokens computed before this step. A
    request resumed after preemption comes among the new or the cached ones, depending on the engine's model
    runner."""
    for new in output.scheduled_new_reqs:
        yield new.req_id, new.block_ids[0], True, new.num_computed_tokens
    cached = output.scheduled_cached_reqs
    for index, request_id in enumerate(cached.req_ids):
        block_ids = cached.new_block_ids[index]
        is_whole = request_id in cached.resumed_req_ids
        yield request_id, block_ids[0] if block_ids else [], is_whole, cached.num_computed_tokens[index]
