"""Worker side: hands loads and saves to the native client and reports how they end.

Runs in the model runner's thread. The client copies on threads of its own; here one waits only where the
engine is about to read or to overwrite a block. On a CUDA device it is the compute stream that waits: the
host sees that a layer's copies are queued, and goes on.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from orbitkv.engine.device import KVDevice
from orbitkv.engine.native import load_native
from orbitkv.engine.regions import LayoutError
from orbitkv.engine.selftest import Scratch, probe_layout, scratch_like
from orbitkv.engine.trace import open_trace
from orbitkv.vllm.counted import Counted
from orbitkv.vllm.layout import regions_of
from orbitkv.vllm.load import Load
from orbitkv.vllm.log import logger, once, warn_once
from orbitkv.vllm.metadata import LoadOrder, SaveOrder, StepMetadata, WorkerReport
from orbitkv.vllm.namespace import page_bytes

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from orbitkv.engine.settings import Settings

# An asynchronous load that takes longer is ended; its blocks are then recomputed.
ASYNC_LOAD_LIMIT_S = 10.0
ABORT_SLICE_MS = 100
# How often is looked whether something is to be said of the client.
LOOK_S = 0.2
# Comparing checksums ends by itself: it is work of the client's own thread, on memory of this host.
CHECK_LIMIT_MS = 10_000
# Memory that copies of a lost device may touch until the process ends.
_NEVER_FREED: list[Any] = []


def may_still_copy() -> bool:
    """Whether copies of a client that was closed may still touch KV memory of this process."""
    return bool(_NEVER_FREED)


@dataclass
class _Save:
    native: Any
    blocks: list[int] = field(default_factory=list)


class WorkerSide:
    """One rank's loads and saves."""

    def __init__(self, registration: Any, settings: Settings, kv_cache: KVCacheConfig, *, rank: int) -> None:
        self._registration = registration
        self._settings = settings
        self._kv_cache = kv_cache
        self._rank = rank
        self._trace = open_trace(settings, once, page_bytes=page_bytes(kv_cache), side="worker", rank=rank)
        self._client: Any = None
        self._scratch: Scratch | None = None  # keeps the memory of the client's own self-test alive
        self._device = KVDevice(torch.device("cpu"))
        self._tensors: dict[str, torch.Tensor] = {}
        self._page_bytes = 0
        self._layers: dict[str, int] = {}
        self._waits_before_forward = False
        self._thread = 0  # that feeds the device
        self.step = 0
        self.loads_step = 0  # last step whose loads have all been taken in
        self._sync: list[Load] = []
        # Of earlier steps, whose layers the compute stream comes after; they may still be on their way.
        self._ordered: list[Load] = []
        self._async: dict[str, Load] = {}
        self._saves: dict[int, _Save] = {}
        self._ended_saves: dict[int, int] = {}
        self._received: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._loaded_bytes = 0
        self._load_seconds = 0.0
        self._said_verdict = ""
        self._said_trouble = ""
        self._counted: Counted | None = None
        self._look_at = 0.0

    def register(self, kv_caches: dict[str, torch.Tensor]) -> str | None:
        """Proves the layout and attaches to the manager. Returns why the cache stays off, or None. What was
        registered before is let go first."""
        native = load_native()
        if (reason := self._detach()) is not None:
            return reason
        self._tensors = kv_caches
        try:
            regions = regions_of(kv_caches, self._kv_cache)
            self._device = KVDevice(regions[0].tensor.device)
            self._thread = threading.get_ident()
            scratch = scratch_like(regions, native)
            if (difference := probe_layout(scratch, native)) is not None:
                return f"layout self-test failed: {difference}"
            self._layers = {region.layer: index for index, region in enumerate(regions)}
            self._attach(native, scratch, native.Layout([region.as_tuple() for region in regions]))
        except LayoutError as error:
            return str(error)
        except native.OrbitKVError as error:
            return f"{self._device.name}: {error}"
        except torch.OutOfMemoryError:
            return f"{self._device.name} has no memory for the layout self-test; lower gpu_memory_utilization"
        return None

    def suspend(self) -> None:
        """Ends every copy and lets go of KV memory. Loads that had not landed have failed, and so do those
        that come until `resume`."""
        if self._detach() is None:
            self._scratch = None

    def resume(self) -> str | None:
        """Attaches to the memory that was registered, whose bytes may be others. As `register`."""
        return self.register(self._tensors)

    def _attach(self, native: Any, scratch: Scratch, layout: Any) -> None:
        self._page_bytes = layout.page_bytes
        self._client = native.WorkerClient(
            self._registration,
            rank=self._rank,
            layout=layout,
            scratch=scratch.layout,
            layout_probe_passed=True,
            copy_threads=self._settings.copy_threads,
            verify_restore=self._settings.verify_restore,
            device=self._device.name,
            copy_method=self._settings.copy_method,
        )
        self._scratch = scratch
        block_tokens = self._kv_cache.kv_cache_groups[0].kv_cache_spec.block_size
        self._counted = Counted(self._client, page_tokens=block_tokens if self._rank == 0 else 0)
        if self._device.has_streams:
            logger.info(
                "OrbitKV copies: %s; pool memory is registered with the device in the background",
                self._client.method,
            )

    def _detach(self) -> str | None:
        """Ends the client of an earlier registration, and with it every copy; None once that is so."""
        client, self._client = self._client, None
        self._counted = None
        if client is None:
            return None
        has_ended = client.close()
        self._received, self._failed_blocks = self.outstanding()
        self._ended_saves = self.unreported_saves()
        self._sync, self._ordered, self._async, self._saves = [], [], {}, {}
        if has_ended:
            return None
        _NEVER_FREED.append(self._scratch)
        return "copies of the KV memory registered before have not ended; restart the engine"

    # Saves ------------------------------------------------------------------------------------------------

    def begin_early(self, metadata: StepMetadata) -> None:
        """The scheduler has just decided on the step. On the thread that feeds the device, all that was
        launched comes before the loads by now, and they need not wait for the step's inputs to be made."""
        if self._device.has_streams and threading.get_ident() == self._thread and not self._sync:
            self.begin_step(metadata)
            self._begin_loads(metadata)

    def begin_step(self, metadata: StepMetadata) -> None:
        """Called before anything of this step writes to a block. Does nothing the second time."""
        if metadata.step == self.step:
            return
        self.step = metadata.step
        self._say_verdict()
        fences = list(metadata.fences)
        if metadata.abort_saves:
            fences = [block for save in self._saves.values() for block in save.blocks]
        self._fence(fences)
        for order in metadata.saves:
            if order.urgent:
                self._save(order)
        self._fence([block for order in metadata.saves if order.urgent for block in order.blocks])
        for order in metadata.saves:
            if not order.urgent:
                self._save(order)

    def _say_verdict(self) -> None:
        """One line when the client's own self-test, which it repeats at each attach, fails."""
        if (now := time.monotonic()) < self._look_at:
            return
        self._look_at = now + LOOK_S
        verdict = self._client.self_test if self._client is not None else ""
        if verdict != self._said_verdict:
            self._said_verdict = verdict
            if verdict.startswith("failed"):
                logger.warning("OrbitKV off, serving without it: self-test %s", verdict)
        trouble = self._client.trouble if self._client is not None else ""
        if trouble != self._said_trouble:
            self._said_trouble = trouble
            if trouble:
                logger.warning("OrbitKV: %s", trouble)

    def _fence(self, blocks: list[int]) -> None:
        if blocks and self._client is not None:
            self._client.fence(blocks, self._settings.save_fence_wait_ms)

    def _save(self, order: SaveOrder) -> None:
        try:
            save = self._begin_save(order)
        except load_native().OrbitKVError as error:
            warn_once("save", "OrbitKV: a save could not begin: %s", error)
            save = None
        if save is None:
            self._ended_saves[order.save_id] = 1
        else:
            self._saves[order.save_id] = _Save(save, list(order.blocks))

    def _begin_save(self, order: SaveOrder) -> Any:
        if self._client is None:
            return None
        return self._client.save(order.ticket, order.blocks, **self._device.order())

    # Loads ------------------------------------------------------------------------------------------------

    def start_loads(self, metadata: StepMetadata, *, layers_are_called: bool) -> None:
        """Hands this step's loads to the client. `layers_are_called` is False where the engine runs the whole
        forward pass without asking for layers; loads of this step are then awaited here."""
        self._begin_loads(metadata)
        if self._waits_before_forward or not layers_are_called:
            self._wait_layers(max(len(self._layers), 1) - 1)

    def _begin_loads(self, metadata: StepMetadata) -> None:
        if metadata.step == self.loads_step:
            return
        for order in metadata.loads:
            load = Load(order, self._restore(order), time.monotonic())
            if load.native is not None:
                self._trace.event("restore_submit", order.request_id, pages=len(order.blocks))
            if order.is_async:
                self._async[order.request_id] = load
            else:
                self._sync.append(load)
        self.loads_step = metadata.step

    def _restore(self, order: LoadOrder) -> Any:
        if order.ticket is None or self._client is None:
            return None
        try:
            return self._client.restore(order.ticket, order.blocks, **self._device.order())
        except load_native().OrbitKVError as error:
            warn_once("load", "OrbitKV: a restore could not begin, its tokens are recomputed: %s", error)
            return None

    def _is_over(self, load: Load) -> bool:
        """Whether no byte of it moves any more."""
        if load.ended is None and load.is_over() and self._trace.is_on:
            landed, failed = load.landed()
            self._trace.event("restore_complete", load.order.request_id, pages=landed, failed_pages=failed)
            if not load.order.is_async:
                self._trace_ready(load)
        return load.ended is not None

    def _trace_ready(self, load: Load) -> None:
        """The engine is told, or sees with the layer that it waits for, what has landed."""
        landed, _ = load.landed()
        if landed:
            self._trace.event("gpu_ready", load.order.request_id, pages=landed)

    def _trace_first_use(self, load: Load) -> None:
        """The forward pass goes on with its first layer of what is restored."""
        if load.ended is None or load.landed()[1] == 0:
            self._trace.event("first_use", load.order.request_id, pages=len(load.order.blocks))

    def wait_for_layer(self, layer: str) -> None:
        """Returns when what the engine does next sees this layer of all loads of the step, or when it will
        never land."""
        if self._sync:
            self._wait_layers(self._layers.get(layer, len(self._layers) - 1))

    def _wait_layers(self, index: int) -> None:
        deadline = time.monotonic() + self._settings.layer_wait_ms / 1000
        for load in self._sync:
            if load.layers_waited > index:
                continue
            if not self._is_over(load):
                load.was_awaited = True
                if self._device.has_streams:
                    self._order_layer(load, index, deadline)
                else:
                    self._await_layer(load, index, deadline)
            self._is_over(load)
            if load.layers_waited == 0 and self._trace.is_on:
                self._trace_first_use(load)
            load.layers_waited = len(self._layers) if load.ended is not None else index + 1

    def _await_layer(self, load: Load, index: int, deadline: float) -> None:
        # False: time is up, or a page failed. The others may land all the same.
        if not load.native.wait_layer(index, _until_ms(deadline)) and not load.native.wait(
            _until_ms(deadline)
        ):
            self._stop(load)

    def _order_layer(self, load: Load, index: int, deadline: float) -> None:
        native = load_native()
        answer = load.native.order_layer(index, self._device.stream(), _until_ms(deadline))
        if answer not in (native.LAYER_COMPLETE, native.LAYER_ORDERED):
            self._stop(load)

    def _stop(self, load: Load) -> None:
        """Ends a load whose blocks the engine is about to use otherwise. There is no giving up: a copy that
        lands later would overwrite what was computed instead. It terminates because a copy stops at its
        next fragment, and a fragment is a memory copy between resident pages of this process."""
        while not self._is_over(load) and not load.native.abort(ABORT_SLICE_MS):
            warn_once("abort", "OrbitKV: waiting for a restore to stop")

    def end_step(self) -> None:
        """Ends this step's loads; idempotent. After it no byte of them moves, or none once the compute stream
        comes to what the engine launches next."""
        for load in self._sync:
            if self._device.has_streams and not self._is_over(load):
                self._end_ordered(load)
            else:
                self._end_awaited(load)
            self._count(load)
        self._sync = []
        self._ordered = [load for load in self._ordered if not self._is_over(load)]

    def _end_awaited(self, load: Load) -> None:
        if not self._is_over(load):
            if not load.native.wait(self._settings.layer_wait_ms):
                self._stop(load)
            self._is_over(load)
        self._failed_blocks |= load.failed_blocks()
        if load.native is not None and load.layers_waited < len(self._layers):
            # The forward pass may have read layers that had not landed.
            self._waits_before_forward = True
            self._failed_blocks.update(load.order.blocks)

    def _end_ordered(self, load: Load) -> None:
        """A load that is still on its way. Which of its pages are not to be believed is known without its
        end: their checksums are those of the pool's pages."""
        if load.layers_waited < len(self._layers):
            self._stop(load)
            self._end_awaited(load)
        elif load.native.wait_checked(CHECK_LIMIT_MS):
            self._failed_blocks |= load.failed_blocks()
            self._ordered.append(load)
        else:
            warn_once("checks", "OrbitKV: checksums of a restore were not compared in time; it is recomputed")
            self._failed_blocks.update(load.order.blocks)
            self._ordered.append(load)

    def _count(self, load: Load) -> None:
        if load.was_awaited and load.ended is not None and not load.failed_blocks():
            self._loaded_bytes += len(load.order.blocks) * self._page_bytes
            self._load_seconds += max(load.ended - load.started, 1e-6)

    def take_received(self) -> set[str]:
        """Requests whose asynchronous load is over since the last call; each is named once, failed or not."""
        for request_id, load in list(self._async.items()):
            if not self._is_over(load) and time.monotonic() - load.started > ASYNC_LOAD_LIMIT_S:
                # Its blocks stay the request's until the copy has really stopped.
                load.native.abort(0)
            if self._is_over(load):
                self._failed_blocks |= load.failed_blocks()
                if self._trace.is_on:
                    self._trace_ready(load)
                self._received.add(request_id)
                del self._async[request_id]
        received, self._received = self._received, set()
        return received

    def take_failed_blocks(self) -> set[int]:
        """Blocks that the engine has to compute; to be asked after `take_received` of the same step."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    # Reports ----------------------------------------------------------------------------------------------

    def report(self) -> WorkerReport:
        """What the scheduler side learns of this step."""
        for save_id, save in list(self._saves.items()):
            if save.native.poll():
                del self._saves[save_id]
                self._ended_saves[save_id] = 1
        copied = (0, 0.0)
        if self._counted is not None:
            copied = self._counted.take_copied(self.step)
            if self._device.has_streams:
                # Nobody waits for a restore, and its end is seen late.
                self._loaded_bytes, self._load_seconds = copied
        report = WorkerReport(self.step, self._ended_saves, self._loaded_bytes, self._load_seconds, *copied)
        self._ended_saves = {}
        self._loaded_bytes, self._load_seconds = 0, 0.0
        return report

    def take_counts(self) -> dict[str, int | float]:
        """What this rank has counted since the last call, by the names of `stats.COUNTERS`."""
        return self._counted.take_counts(self.step) if self._counted is not None else {}

    def close(self) -> None:
        """Ends all copies. After it nothing touches KV memory."""
        if self._client is not None:
            client, self._client = self._client, None
            self._counted = None
            if not client.close():
                _NEVER_FREED.append(self._scratch)
            logger.debug("OrbitKV: worker client closed")
        self._trace.close()

    def outstanding(self) -> tuple[set[str], set[int]]:
        """Requests and blocks of loads that were not reported yet; for the side that takes over after a
        fault."""
        loads = [*self._async.values(), *self._sync]
        blocks = {block for load in loads for block in load.order.blocks}
        return set(self._async) | self._received, blocks | self._failed_blocks

    def unreported_saves(self) -> dict[int, int]:
        """Saves whose end was not reported yet, each with this one rank; for the side that takes over, once
        the client has been closed and so nothing reads their blocks."""
        return {**dict.fromkeys(self._saves, 1), **self._ended_saves}


def _until_ms(deadline: float) -> int:
    return max(0, int((deadline - time.monotonic()) * 1000))
