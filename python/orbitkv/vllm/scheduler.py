"""Scheduler side: what to restore into which blocks, and what to save from which.

Runs in the engine's scheduler thread. No method waits on the cache manager longer than `lookup_wait_us`,
except `reset`.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform

from orbitkv.engine.ahead import choose_mode
from orbitkv.engine.native import load_native
from orbitkv.engine.reset import reset
from orbitkv.engine.trace import open_trace
from orbitkv.vllm.extent import usable_blocks
from orbitkv.vllm.gate import Gate, engine_needs_gate
from orbitkv.vllm.log import logger, once, warn_once
from orbitkv.vllm.lookahead import Lookahead
from orbitkv.vllm.lookup import Lookups
from orbitkv.vllm.metadata import LoadOrder, StepMetadata, WorkerReport
from orbitkv.vllm.requests import Answer, Phase, RequestRecord
from orbitkv.vllm.run import Run
from orbitkv.vllm.saves import SaveBook
from orbitkv.vllm.sharing import Sharing
from orbitkv.vllm.stats import Increments
from orbitkv.vllm.tables import BlockTables, Row
from orbitkv.vllm.transfer import TransferEstimate
from orbitkv.vllm.worth import Worth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from orbitkv.engine.settings import Settings

# How long an engine without requests is kept stepping to finish saves. Past it they are given up.
IDLE_PUSH_S = 1.0


class SchedulerSide:
    """Owns the requests' records, their lookups, the admission gate and the save book."""

    def __init__(
        self, registration: Any, settings: Settings, *, block_tokens: int, page_bytes: int, world_size: int
    ) -> None:
        self._settings = settings
        self._block_tokens = block_tokens
        self._summary = (
            f"pages of {block_tokens} tokens, {world_size} x {page_bytes} bytes; "
            f"load_mode={settings.load_mode}, verify_restore={settings.verify_restore}, "
            f"manager at {settings.socket}"
        )
        self._client = load_native().SchedulerClient(registration)
        mode = choose_mode(settings, logger, world_size=world_size)
        self._trace = open_trace(settings, once, page_bytes=page_bytes * world_size, side="scheduler")
        self._worth = Worth(
            self._client, settings, block_tokens=block_tokens, page_bytes=page_bytes, world_size=world_size
        )
        self._lookahead = Lookahead(self._client, mode, block_tokens, self._worth, self._trace)
        self._lookups = Lookups(self._client, settings, self._lookahead, self._worth, self._trace)
        self._sharing = Sharing(self._worth, block_tokens=block_tokens)
        on_device = current_platform.device_type != "cpu"
        self._estimate = TransferEstimate(settings, page_bytes, on_device=on_device)
        self._pool: BlockPool | None = None
        needs_gate = settings.admission_gate and engine_needs_gate()
        self.gate = Gate(self._free_blocks, enabled=needs_gate)
        self.saves = SaveBook(self._client, world_size=world_size)
        self.records: dict[str, RequestRecord] = {}
        self._tables = BlockTables(self.records, block_tokens=block_tokens)
        # Of requests that have left, or lost their blocks: the last step begun by then, and these blocks.
        self._left: deque[tuple[int, list[int]]] = deque()
        self.loads: list[LoadOrder] = []
        self.step = 0
        self._ended_step = 0
        self._abort_saves = False
        self._reset: Any = None  # one that the manager has not confirmed
        self._idle_since: float | None = None
        self._said_active: bool | None = None
        self._increments = Increments()
        # Saves have ended, and what the workers counted since they saw it comes with one more step.
        self._counts_due = False

    # Lookups and restores ---------------------------------------------------------------------------------

    def bind_pool(self, pool: BlockPool) -> None:
        """The engine's block pool; only its free count and what it caches are read."""
        self._pool = pool
        self._lookahead.bind_pool(pool)

    def _free_blocks(self) -> int:
        return self._pool.get_num_free_blocks() if self._pool is not None else 0

    def accept(self, request: Request) -> None:
        """The engine has queued the request, and will ask about it when it can run it."""
        self.add_request(request)
        self._trace.event("queued", request.request_id, pages=request.num_tokens // self._block_tokens)
        self._lookahead.accepted(request)

    def add_request(self, request: Request) -> None:
        """Keeps the request: its `block_hashes` grow as tokens are appended."""
        self.records.setdefault(request.request_id, RequestRecord(request))

    def match(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that can be restored behind `num_computed_tokens`; None means "ask again later"."""
        self.add_request(request)
        record = self.records[request.request_id]
        if record.phase is not Phase.WAITING:
            # The engine asks only about requests without blocks, so this one has lost them.
            self._has_left(record)
            record.begin_admission()
            self.gate.release(request.request_id)
            self._sharing.forget(request.request_id)
        need_blocks = -(-request.num_tokens // self._block_tokens)
        start = num_computed_tokens // self._block_tokens
        record.local_blocks = start
        record.answer = None
        hits = self._hits(record, start)
        if hits is None:
            self.gate.put_off(request.request_id, need_blocks)
            return None, False
        is_async = hits > 0 and self._estimate.is_async(hits)
        if not self.gate.admits(request.request_id, need_blocks, is_async=is_async):
            return None, False
        record.answer = Answer(start, hits, is_async)
        return hits * self._block_tokens, is_async

    def _hits(self, record: RequestRecord, start: int) -> int | None:
        request = record.request
        usable = usable_blocks(request, self._block_tokens)
        is_refused = request.skip_reading_prefix_cache or record.restore_failed or not self._is_reset()
        if is_refused or start >= usable:
            record.close_lookup()
            self._lookahead.release(request.request_id)
            return 0
        if self._sharing.puts_off(record, start, usable):
            return None
        return self._lookups.hits(record, start, usable)

    def allocated(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """The engine gave the request its blocks; `num_external_tokens` of them are ours to fill."""
        self.add_request(request)
        record = self.records[request.request_id]
        self._lookahead.left(request.request_id)
        table = blocks.get_block_ids()[0]
        was_waiting = record.phase is Phase.WAITING
        self._tables.allocated(record, table)
        if was_waiting:
            self._sharing.admitted(record)
        else:
            self._sharing.forget(request.request_id)
        answer, record.answer = record.answer, None
        if was_waiting and num_external_tokens == 0:
            record.close_lookup()
        if num_external_tokens > 0:
            self._restore(record, answer, table, num_external_tokens // self._block_tokens)
        else:
            record.phase = Phase.RUNNING

    def _restore(self, record: RequestRecord, answer: Answer | None, table: list[int], count: int) -> None:
        request_id = record.request.request_id
        start = answer.start if answer is not None else record.local_blocks
        is_async = answer is not None and answer.is_async
        destination = table[start : start + count]
        ticket = None
        try:
            if answer is not None and record.lookup is not None and count <= answer.count:
                ticket = record.lookup.restore(start, count)
        except load_native().OrbitKVError as error:
            warn_once(
                "restore", "OrbitKV: a restore was lost before it began, its tokens are recomputed: %s", error
            )
        record.close_lookup()
        record.lookup = None
        record.restored = range(start, start + count)
        record.phase = Phase.LOADING if is_async else Phase.RUNNING
        record.is_unused = is_async
        # The engine cannot take the load back any more, so the worker reports one without a ticket as failed.
        self.loads.append(LoadOrder(request_id, ticket, destination, is_async))
        if is_async:
            need_blocks = -(-record.request.num_tokens // self._block_tokens)
            self.gate.hold(request_id, need_blocks - len(table))
            if ticket is not None:
                self._sharing.begun(record)
        else:
            self._estimate.add_sync(count)

    # Steps ------------------------------------------------------------------------------------------------

    def build_metadata(self, output: SchedulerOutput) -> StepMetadata:
        """Closes the engine's scheduling pass and says what the workers have to do in this step."""
        self.step += 1
        self._counts_due = False
        self._say_active()
        self.gate.new_scan()
        self.gate.release_all(output.num_scheduled_tokens)
        if self._trace.is_on:
            self._trace_first_uses(output)
        for request_id in output.preempted_req_ids or ():
            if (record := self.records.get(request_id)) is not None and record.phase is not Phase.WAITING:
                self._has_left(record)
        rows = self._tables.scheduled(output)
        fresh = self._tables.take_fresh()
        self.saves.collect_answers()
        orders, fences = self.saves.dispatch(self._ended_step, fresh)
        self._offer(rows)
        self._lookahead.advance()
        self._estimate.begin_step(decoding=set(output.num_scheduled_tokens))
        if output.num_scheduled_tokens:
            self._idle_since = None
        loads, self.loads = self.loads, []
        self._worth.say_change()
        has_sync_loads = any(not load.is_async for load in loads)
        self._worth.step_begun(self.step, output.num_scheduled_tokens, has_sync_loads=has_sync_loads)
        abort_saves, self._abort_saves = self._abort_saves, False
        return StepMetadata(self.step, loads, orders, fences, abort_saves)

    def _trace_first_uses(self, output: SchedulerOutput) -> None:
        """The step is the first one of requests that were restored between steps."""
        for request_id in output.num_scheduled_tokens:
            record = self.records.get(request_id)
            if record is not None and record.is_unused:
                record.is_unused = False
                if record.restored:
                    self._trace.event("first_use", request_id, pages=len(record.restored))

    def _offer(self, rows: list[Row]) -> None:
        """Offers blocks that are full at the end of this step, as far as they have a hash. While the manager
        is away nothing is decided, so that a request that outlives the absence is saved from its start.

        What the engine found in its own cache was mostly saved long ago. It is offered in case it was not,
        or is not there any more, and with what follows it as soon as the step of the first token has
        begun."""
        if not self._client.active:
            return
        self.saves.offer_postponed()
        for record, full in rows:
            request = record.request
            count = min(full, len(request.block_hashes), len(record.blocks))
            stop = min(count, record.considered + self.saves.room(request.request_id))
            if stop <= record.considered or request.resumable:
                continue
            is_found = record.considered < record.local_blocks
            offer = self.saves.postpone if is_found else self.saves.offer
            for begin, end in _without(record.considered, stop, record.restored):
                offer(self._run(record, begin, end))
            record.considered = stop

    def _run(self, record: RequestRecord, begin: int, end: int) -> Run:
        hashes = record.request.block_hashes
        return Run(
            request_id=record.request.request_id,
            first=begin,
            hashes=hashes[begin:end],
            parent=hashes[begin - 1] if begin else None,
            blocks=record.blocks[begin:end],
            step=self.step,
        )

    def take_output(self, output: KVConnectorOutput) -> None:
        """What the workers reported for a step."""
        report = output.kv_connector_worker_meta
        if not isinstance(report, WorkerReport):
            report = WorkerReport(step=self._ended_step)
        for request_id in output.finished_recving or ():
            self._sharing.is_over(request_id)
        if output.invalid_block_ids:
            self._restore_failed(set(output.invalid_block_ids), report.step)
        self._ended_step = max(self._ended_step, report.step)
        while self._left and self._left[0][0] <= self._ended_step:
            self._left.popleft()
        self._counts_due = bool(report.ended_saves)
        for save_id, ranks in report.ended_saves.items():
            self.saves.save_ended(save_id, ranks)
        self._estimate.observe(report.loaded_bytes, report.load_seconds)
        self._worth.step_ended(report.step, report.copied_bytes, report.copy_seconds)

    def _restore_failed(self, invalid: set[int], step: int) -> None:
        """Blocks of these ids were not restored. What `step`, and any step begun since, computed from them is
        wrong; the engine computes it again, and so it is offered again."""
        was_computed_on = False
        for record in self.records.values():
            position = next((at for at, block in enumerate(record.blocks) if block in invalid), None)
            if position is not None:
                record.fail_from(position)
                self._sharing.forget(record.request.request_id)
                was_computed_on = was_computed_on or record.phase is Phase.RUNNING
        if was_computed_on:
            for request_id, position in self.saves.drop_since(step).items():
                owner = self.records.get(request_id)
                if owner is not None:
                    owner.considered = min(owner.considered, position)

    def _has_left(self, record: RequestRecord) -> None:
        if self.step > self._ended_step and record.blocks:
            self._left.append((self.step, record.blocks))

    def left_tables(self) -> list[list[int]]:
        """Blocks of requests that have left, or have lost them, while a step was under way, which may have
        computed on them."""
        return [table for _, table in self._left]

    def take_counts(self) -> dict[str, int | float]:
        """What this side has counted since the last call, by the names of `stats.COUNTERS`, and what it
        measures otherwise than before, by those of `stats.GAUGES`."""
        of_client = self._client.stats()
        counts = self._increments.take(
            {
                **self._lookups.counters,
                **self._lookahead.counters,
                **self._worth.counters(of_client),
                **self._sharing.counters,
                "gate_denials": self.gate.denials,
                "save_refused_pages": self.saves.counters["refused"],
                "save_overtaken_pages": self.saves.counters["overtaken"],
                "reconnects": of_client["reconnects"],
            }
        )
        return {**counts, **self._worth.take_speeds()}

    def _say_active(self) -> None:
        """One line whenever the cache comes or goes, the first time in any case."""
        is_active = bool(self._client.active)
        if is_active != self._said_active:
            self._said_active = is_active
            if is_active:
                logger.info("OrbitKV active: %s", self._summary)
            else:
                logger.info("OrbitKV not active, serving without it: %s", self._client.status)

    # Ends -------------------------------------------------------------------------------------------------

    def finished(self, request_id: str) -> None:
        """The request is over, wherever it was. Its open saves go on; nothing delays it."""
        self.gate.release(request_id)
        self._lookahead.left(request_id)
        self._estimate.finished(request_id)
        self._sharing.forget(request_id)
        record = self.records.pop(request_id, None)
        if record is not None:
            record.close_lookup()
            self._has_left(record)

    def has_pending_work(self) -> bool:
        """Whether an engine without requests should step on for the saves. True for a bounded time only."""
        if not self.saves.has_work:
            self._idle_since = None
            return self._counts_due
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since < IDLE_PUSH_S:
            return True
        self.saves.drop_open()
        return False

    def reset(self) -> bool:
        """Forgets every page of the namespace, in the manager too. False if that could not be confirmed in
        time: the client repeats it until it is, and until then nothing is found."""
        for record in self.records.values():
            record.close_lookup()
        self._lookahead.clear()
        self._sharing.clear()
        self.saves.drop_open()
        self.saves.forget_dispatched()
        self._abort_saves = True
        self._reset = reset(self._client, logger)
        return self._reset is None

    def _is_reset(self) -> bool:
        """Whether what was there before the last reset is gone."""
        if self._reset is not None and self._reset.poll():
            self._reset = None
        return self._reset is None

    def close(self) -> None:
        """Ends the session."""
        self._client.close()
        self._trace.close()


def _without(begin: int, end: int, left_out: range) -> Iterator[tuple[int, int]]:
    """Positions `begin .. end` without those of a range, as ranges that are not empty."""
    before, behind = (left_out.start, left_out.stop) if left_out else (begin, begin)
    for first, last in ((begin, min(end, before)), (max(begin, behind), end)):
        if first < last:
            yield first, last
