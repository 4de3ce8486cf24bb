"""`OrbitKVConnector`: vLLM's callbacks, handed to the side that this process plays.

An error of ours must never become the engine's. Every callback that runs code of a side is guarded: the
first error is logged once with its traceback, the side is replaced by what `fallback` keeps of it, and the
engine serves on without the cache. Only a configuration that cannot be meant, such as a misspelt setting,
stops the engine, at its start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from orbitkv.engine.settings import Settings
from orbitkv.vllm.fallback import BrokenScheduler, BrokenWorker
from orbitkv.vllm.hashes import why_private
from orbitkv.vllm.log import logger
from orbitkv.vllm.metadata import StepMetadata
from orbitkv.vllm.namespace import page_bytes, registration
from orbitkv.vllm.recovery import preempt_failed_restores
from orbitkv.vllm.scheduler import SchedulerSide
from orbitkv.vllm.sleep import can_sleep, follow_sleep
from orbitkv.vllm.stats import OrbitKVPromMetrics, OrbitKVStats
from orbitkv.vllm.support import why_unsupported
from orbitkv.vllm.worker import WorkerSide, may_still_copy

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

T = TypeVar("T")
FAULT = "OrbitKV %s side failed; serving on without the cache"


def calls_layers(forward_context: Any) -> bool:
    """Whether the forward pass will ask for each layer. Replaying a whole graph it does not; one of the
    engine's runners then shows that graph, the other a context without attention metadata."""
    mode = getattr(forward_context, "cudagraph_runtime_mode", None)
    has_attention = getattr(forward_context, "attn_metadata", None) is not None
    return has_attention and getattr(mode, "name", "NONE") != "FULL"


class OrbitKVConnector(KVConnectorBase_V1, SupportsHMA):
    """Connector for one process of an engine. A side is None where the cache is off from the start, and a
    `Broken…` after a fault."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._settings = Settings.parse(vllm_config.kv_transfer_config.kv_connector_extra_config, os.environ)
        self._engine_id = vllm_config.kv_transfer_config.engine_id
        self._scheduler: SchedulerSide | BrokenScheduler | None = None
        self._worker: WorkerSide | BrokenWorker | None = None
        self._can_sleep = can_sleep(vllm_config)
        if (reason := why_unsupported(vllm_config, kv_cache_config)) is not None:
            self._say_off(reason)
            return
        try:
            self._start(vllm_config, role, kv_cache_config)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the cache, the engine starts
            self._say_off(f"{type(error).__name__}: {error}")

    def _start(self, config: VllmConfig, role: KVConnectorRole, kv_cache: KVCacheConfig) -> None:
        registered = registration(config, kv_cache, self._settings, os.environ)
        if role is KVConnectorRole.SCHEDULER:
            reason = why_private(config.cache_config.prefix_caching_hash_algo, os.environ)
            if self._can_sleep and reason is None:
                reason = "sleep mode is on, and weights may be exchanged while the engine sleeps"
            if reason is not None:
                logger.warning(
                    "OrbitKV: pages are shared with no other engine and lost at a restart: %s", reason
                )
            self._scheduler = SchedulerSide(
                registered,
                self._recoverable(config),
                block_tokens=self._block_tokens,
                page_bytes=page_bytes(kv_cache),
                world_size=config.parallel_config.world_size,
            )
        else:
            rank = config.parallel_config.rank
            self._worker = WorkerSide(registered, self._settings, kv_cache, rank=rank)

    def _recoverable(self, config: VllmConfig) -> Settings:
        """The settings, without restores inside steps if the engine could not recover from a failed one."""
        reason = preempt_failed_restores(OrbitKVConnector)
        if reason is None or not (config.use_v2_model_runner or config.scheduler_config.async_scheduling):
            return self._settings
        logger.warning("OrbitKV: pages are restored between steps only: %s", reason)
        return replace(self._settings, load_mode="async")

    @property
    def _block_tokens(self) -> int:
        return self._kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size

    def _say_off(self, reason: str) -> None:
        # Both sides come to the same answer; one line is enough.
        level = logger.warning if self._role is KVConnectorRole.SCHEDULER else logger.debug
        level("OrbitKV off, serving without it: %s", reason)

    # Guards -----------------------------------------------------------------------------------------------

    def _on_scheduler(
        self, call: Callable[[SchedulerSide], T], broken: Callable[[BrokenScheduler], T], off: T
    ) -> T:
        """Runs `call` on a sound side, `broken` on a broken one; `off` where there is none."""
        if isinstance(self._scheduler, SchedulerSide):
            try:
                return call(self._scheduler)
            except Exception:  # noqa: BLE001 - see the module
                logger.exception(FAULT, "scheduler")
                self._scheduler = BrokenScheduler(self._scheduler, self._block_tokens)
        return off if self._scheduler is None else broken(self._scheduler)

    def _on_worker(self, call: Callable[[WorkerSide], T], broken: Callable[[BrokenWorker], T], off: T) -> T:
        """The same for the worker side. The client ends first: nothing may move when loads are called
        failed."""
        if isinstance(self._worker, WorkerSide):
            try:
                return call(self._worker)
            except Exception:  # noqa: BLE001 - see the module
                logger.exception(FAULT, "worker")
                self._worker = self._break_worker(self._worker)
        if self._worker is None:
            return off
        if isinstance(self._connector_metadata, StepMetadata):
            self._worker.take_over(self._connector_metadata)
        return broken(self._worker)

    @staticmethod
    def _break_worker(side: WorkerSide) -> BrokenWorker:
        try:
            side.close()
        except Exception:  # noqa: BLE001 - see the module
            logger.exception("OrbitKV worker client did not end cleanly")
        return BrokenWorker(side)

    # Scheduler side ---------------------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """A lost save is a later miss; no request has to be computed again for it."""
        return False

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        self._on_scheduler(lambda side: side.bind_pool(gpu_block_pool), lambda _: None, None)

    def on_new_request(self, request: Request) -> None:
        self._on_scheduler(lambda side: side.accept(request), lambda _: None, None)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._on_scheduler(
            lambda side: side.match(request, num_computed_tokens),
            lambda broken: broken.match(request.request_id),
            (0, False),
        )

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        self._on_scheduler(
            lambda side: side.allocated(request, blocks, num_external_tokens),
            lambda broken: broken.allocated(request.request_id, blocks, num_external_tokens),
            None,
        )

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        metadata = self._on_scheduler(
            lambda side: side.build_metadata(scheduler_output),
            lambda broken: broken.build_metadata(set(scheduler_output.num_scheduled_tokens)),
            StepMetadata(step=0),
        )
        if any(not load.is_async for load in metadata.loads):
            self._begin_early(scheduler_output, metadata)
        return metadata

    def _begin_early(self, output: SchedulerOutput, metadata: StepMetadata) -> None:
        """The step will wait for its restores, so they begin now, if the worker is in this process: until it
        asks for them, the engine prepares the step's inputs for milliseconds."""
        if output.new_block_ids_to_zero or output.kv_cache_block_copies or not has_kv_transfer_group():
            # The runner is still to write to blocks, or is elsewhere.
            return
        worker = get_kv_transfer_group()
        if isinstance(worker, OrbitKVConnector) and worker._engine_id == self._engine_id:
            worker._on_worker(lambda side: side.begin_early(metadata), lambda _: None, None)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._on_scheduler(lambda side: side.take_output(connector_output), lambda _: None, None)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        request_id = request.request_id
        self._on_scheduler(
            lambda side: side.finished(request_id), lambda broken: broken.finished(request_id), None
        )
        return False, None

    def left_tables(self) -> list[list[int]]:
        """For the scheduler's recovery; see `recovery`."""
        return self._on_scheduler(lambda side: side.left_tables(), lambda _: [], [])

    def take_events(self) -> Iterable[KVCacheEvent]:
        return ()

    def has_pending_push_work(self) -> bool:
        return self._on_scheduler(lambda side: side.has_pending_work(), lambda _: False, False)

    def reset_cache(self) -> bool | None:
        """True when every tier has confirmed, also where nothing was ever cached."""
        return self._on_scheduler(lambda side: side.reset(), lambda _: False, True)

    # Worker side ------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        def register(side: WorkerSide) -> str | None:
            if self._can_sleep:
                follow_sleep(self)
            return side.register(kv_caches)

        self._say_worker_off(self._on_worker(register, lambda _: None, None))

    def suspend(self) -> None:
        """KV memory is about to be unmapped: on return nothing touches it. Raises if something may, and the
        engine stays awake."""
        self._on_worker(lambda side: side.suspend(), lambda _: None, None)
        if may_still_copy():
            raise RuntimeError(
                "OrbitKV: copies of KV memory have not ended, so it must not be unmapped; restart the engine"
            )

    def resume(self) -> None:
        """KV memory is mapped again."""
        self._say_worker_off(self._on_worker(lambda side: side.resume(), lambda _: None, None))

    def _say_worker_off(self, reason: str | None) -> None:
        if reason is not None:
            logger.warning("OrbitKV off, serving without it: %s", reason)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        if isinstance(kv_connector_metadata, StepMetadata):
            self._on_worker(lambda side: side.begin_step(kv_connector_metadata), lambda _: None, None)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        metadata = self._connector_metadata
        if isinstance(metadata, StepMetadata):
            # Most steps load nothing, and need not find out.
            layers_are_called = not metadata.loads or calls_layers(forward_context)
            self._on_worker(
                lambda side: side.start_loads(metadata, layers_are_called=layers_are_called),
                lambda _: None,
                None,
            )

    def wait_for_layer_load(self, layer_name: str) -> None:
        self._on_worker(lambda side: side.wait_for_layer(layer_name), lambda _: None, None)

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        """Nothing: whole pages are saved once the step that completes them has ended."""

    def wait_for_save(self) -> None:
        self._on_worker(lambda side: side.end_step(), lambda _: None, None)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        def received(side: WorkerSide) -> set[str]:
            side.end_step()
            return side.take_received()

        return None, self._on_worker(received, lambda broken: broken.take_received(), set()) or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._on_worker(
            lambda side: side.take_failed_blocks(), lambda broken: broken.take_failed_blocks(), set()
        )

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return self._on_worker(lambda side: side.report(), lambda broken: broken.report(), None)

    # Both -------------------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> OrbitKVStats | None:
        if self._role is KVConnectorRole.SCHEDULER:
            counts = self._on_scheduler(lambda side: side.take_counts(), lambda _: {}, {})
        else:
            counts = self._on_worker(lambda side: side.take_counts(), lambda _: {}, {})
        return OrbitKVStats(counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> OrbitKVStats:
        return OrbitKVStats(dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> OrbitKVPromMetrics:
        return OrbitKVPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Idempotent. The engine does not always call it; the manager notices a dead process by itself."""
        sides = (self._scheduler, self._worker)
        self._scheduler = self._worker = None
        for side in sides:
            if isinstance(side, (SchedulerSide, WorkerSide)):
                try:
                    side.close()
                except Exception:  # noqa: BLE001 - see the module
                    logger.exception("OrbitKV client did not end cleanly")
