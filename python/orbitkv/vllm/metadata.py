"""What the two sides of the connector tell each other once a step, pickled by the engine.

Block ids are vLLM's, all of cache group 0. A ticket is opaque bytes of the native client.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass
class LoadOrder:
    """Restore a ticket's pages into `blocks`, in order. Without a ticket the load has failed already, and
    the worker only reports it: an engine that has allocated the blocks cannot be told in another way."""

    request_id: str
    ticket: bytes | None
    blocks: list[int]
    is_async: bool


@dataclass
class SaveOrder:
    """Save `blocks` into a ticket's pages. An urgent one is copied before this step overwrites them."""

    save_id: int
    ticket: bytes
    blocks: list[int]
    urgent: bool


@dataclass
class StepMetadata(KVConnectorMetadata):
    """Scheduler to worker. `step` counts calls of `build_connector_meta`."""

    step: int
    loads: list[LoadOrder] = field(default_factory=list)
    saves: list[SaveOrder] = field(default_factory=list)
    # Blocks that this step reuses while an earlier save may still read them.
    fences: list[int] = field(default_factory=list)
    # Ends every save that is still running: the scheduler side no longer knows which blocks they read.
    abort_saves: bool = False


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):
    """Worker to scheduler. That it arrived says that the forward pass of `step` has ended."""

    step: int
    # Save id to the number of ranks on which that save reads its source blocks no more.
    ended_saves: dict[int, int] = field(default_factory=dict)
    # Restores that a forward pass had to wait for: how it sees them.
    loaded_bytes: int = 0
    load_seconds: float = 0.0
    # Copies of all restores that have ended, each by itself, summed up.
    copied_bytes: int = 0
    copy_seconds: float = 0.0

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Merges two ranks: a step has ended when it has ended everywhere."""
        assert isinstance(other, WorkerReport)
        ended = dict(self.ended_saves)
        for save_id, ranks in other.ended_saves.items():
            ended[save_id] = ended.get(save_id, 0) + ranks
        return WorkerReport(
            step=min(self.step, other.step),
            ended_saves=ended,
            loaded_bytes=self.loaded_bytes + other.loaded_bytes,
            load_seconds=self.load_seconds + other.load_seconds,
            copied_bytes=self.copied_bytes + other.copied_bytes,
            copy_seconds=self.copy_seconds + other.copy_seconds,
        )
