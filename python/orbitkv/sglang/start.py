"""Proves the memory layout, and connects one rank to the manager."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from orbitkv.engine.device import KVDevice
from orbitkv.engine.native import load_native
from orbitkv.engine.selftest import probe_layout, scratch_like
from orbitkv.sglang.layout import REGIONS_PER_LAYER, regions_of
from orbitkv.sglang.linker import OrbitKVLinker
from orbitkv.sglang.log import logger
from orbitkv.sglang.namespace import registration
from orbitkv.sglang.ranks import Ranks
from orbitkv.sglang.support import OffError

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

    from orbitkv.engine.settings import Settings


def start(ctx: TreeCacheBuildContext, settings: Settings) -> OrbitKVLinker:
    """The linker of this rank. Raises for whatever keeps the cache off, on every rank alike."""
    ranks = Ranks(ctx.params.tp_cache_group, ctx.tp_rank, ctx.tp_size)
    instance = ranks.new_instance()
    made: OrbitKVLinker | None = None
    error: Exception | None = None
    try:
        made = _start_rank(ctx, settings, ranks, instance)
    except Exception as failure:  # noqa: BLE001 - the other ranks have to hear of it
        error = failure
    if ranks.least([int(made is not None)])[0]:
        return made
    if made is not None:
        made.close()
    raise error if error is not None else OffError("another rank could not start; see its log")


def _start_rank(ctx: TreeCacheBuildContext, settings: Settings, ranks: Ranks, instance: str) -> OrbitKVLinker:
    native = load_native()
    pool = ctx.params.token_to_kv_pool_allocator.get_kvcache()
    regions = regions_of(pool)
    device = KVDevice(regions[0].tensor.device)
    forward_stream = getattr(ctx.tp_worker.model_runner, "forward_stream", None)
    if device.has_streams and forward_stream is None:
        raise OffError("the engine has no forward stream, so copies cannot be ordered after its kernels")
    scratch = scratch_like(regions, native)
    if (difference := probe_layout(scratch, native)) is not None:
        raise OffError(f"layout self-test failed: {difference}")
    registered = registration(ctx, pool, regions, settings=settings, instance=instance, environ=os.environ)
    worker = native.WorkerClient(
        registered,
        rank=ranks.rank,
        layout=native.Layout([region.as_tuple() for region in regions]),
        scratch=scratch.layout,
        layout_probe_passed=True,
        copy_threads=settings.copy_threads,
        verify_restore=settings.verify_restore,
        device=device.name,
        copy_method=settings.copy_method,
    )
    page_bytes = sum(region.block_bytes for region in regions)
    scheduler = native.SchedulerClient(registered) if ranks.is_leader else None
    if ranks.is_leader:
        logger.info(
            "OrbitKV: pages of %d tokens, %d ranks x %d bytes; %s; manager at %s",
            pool.page_size,
            ranks.size,
            page_bytes,
            worker.method,
            settings.socket,
        )
    return OrbitKVLinker(
        scheduler,
        worker,
        ranks,
        settings,
        device=device,
        forward_stream=forward_stream,
        scratch=scratch,
        page_tokens=pool.page_size,
        page_bytes=page_bytes,
        num_layers=len(regions) // REGIONS_PER_LAYER,
        pool_pages=regions[0].num_blocks,
    )
