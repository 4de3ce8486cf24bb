"""What is left of a side after an error of our own: the duties without which the engine would hang or read
wrong KV.

Nothing here calls the native module, except to end it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitkv.vllm.metadata import LoadOrder, StepMetadata, WorkerReport

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks

    from orbitkv.vllm.scheduler import SchedulerSide
    from orbitkv.vllm.worker import WorkerSide


class BrokenScheduler:
    """Finds nothing and saves nothing. Loads that were promised before the fault are reported as failed, and
    requests without blocks are put off while such loads hold blocks, as the gate would do."""

    def __init__(self, side: SchedulerSide, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._holds = set(side.gate.holds)
        self._promised = {
            request_id: record.answer
            for request_id, record in side.records.items()
            if record.answer is not None and record.answer.count > 0
        }
        self._loads = [LoadOrder(load.request_id, None, load.blocks, load.is_async) for load in side.loads]
        self._step = side.step
        self._abort_saves = True

    def match(self, request_id: str) -> tuple[int | None, bool]:
        """Nothing is found."""
        self._promised.pop(request_id, None)
        self._holds.discard(request_id)
        return (None, False) if self._holds else (0, False)

    def allocated(self, request_id: str, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """A promise that the engine has just acted on fails."""
        answer = self._promised.pop(request_id, None)
        if num_external_tokens <= 0 or any(load.request_id == request_id for load in self._loads):
            return
        is_async = answer is not None and answer.is_async
        start = answer.start if answer is not None else 0
        count = num_external_tokens // self._block_tokens
        destination = blocks.get_block_ids()[0][start : start + count]
        self._loads.append(LoadOrder(request_id, None, destination, is_async))
        if is_async:
            self._holds.add(request_id)

    def build_metadata(self, scheduled: set[str]) -> StepMetadata:
        """The first one also ends all saves: nobody knows any more which blocks they read."""
        self._step += 1
        self._holds -= scheduled
        loads, self._loads = self._loads, []
        abort_saves, self._abort_saves = self._abort_saves, False
        return StepMetadata(self._step, loads=loads, abort_saves=abort_saves)

    def finished(self, request_id: str) -> None:
        """The request is over."""
        self._promised.pop(request_id, None)
        self._holds.discard(request_id)


class BrokenWorker:
    """Reports every load as failed. Built only after the client has been closed, so that none still moves."""

    def __init__(self, side: WorkerSide) -> None:
        self._received, self._failed = side.outstanding()
        # Loads of this step and earlier ones are among those taken over; naming one twice kills the engine.
        self._seen_step = side.loads_step
        self._ended_saves = side.unreported_saves()
        self._step = side.step

    def take_over(self, metadata: StepMetadata) -> None:
        """Fails the loads of a step; idempotent."""
        if metadata.step <= self._seen_step:
            return
        self._seen_step = self._step = metadata.step
        for load in metadata.loads:
            self._failed.update(load.blocks)
            if load.is_async:
                self._received.add(load.request_id)
        for save in metadata.saves:
            self._ended_saves[save.save_id] = 1

    def take_received(self) -> set[str]:
        """Requests whose asynchronous load is over."""
        received, self._received = self._received, set()
        return received

    def take_failed_blocks(self) -> set[int]:
        """Blocks that the engine has to compute."""
        failed, self._failed = self._failed, set()
        return failed

    def report(self) -> WorkerReport:
        """Keeps the scheduler side's books going."""
        ended, self._ended_saves = self._ended_saves, {}
        return WorkerReport(self._step, ended)
