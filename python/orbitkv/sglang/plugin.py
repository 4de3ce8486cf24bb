"""Entry point of SGLang's plugin framework: makes the radix cache backend `orbitkv` known.

SGLang calls `register` in every process of every engine, whether it uses us or not. So it imports nothing but
the framework, and all that it changes stays idle until a tree cache of ours is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

BACKEND = "orbitkv"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler.__init__"
_CLEAR = "sglang.srt.managers.scheduler.Scheduler.clear_hicache_storage_wrapped"
_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager."
_WEIGHT_UPDATES = (
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
)


def register() -> None:
    """Registers the backend and the hooks. Raises nothing that the framework does not log."""
    from sglang.srt.mem_cache.registry import register_radix_cache_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    register_radix_cache_backend(BACKEND, _build)
    HookRegistry.register(_SCHEDULER, _after_scheduler_init, HookType.AFTER)
    HookRegistry.register(_CLEAR, _around_clear, HookType.AROUND)
    for method in _WEIGHT_UPDATES:
        HookRegistry.register(_UPDATER + method, _before_weight_update, HookType.BEFORE)


def _build(ctx: TreeCacheBuildContext) -> BasePrefixCache:
    from orbitkv.sglang.factory import build

    return build(ctx)


def _after_scheduler_init(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Lets the scheduler ask the tree cache before it admits a waiting request, and at each step; both only
    if the tree is ours. With a plain tree that stands in for ours, none of the calls that the flags ask for
    is made."""
    from sglang.srt.runtime_context import get_memory

    if get_memory().radix_cache_backend != BACKEND:
        return
    is_ours = _is_ours(scheduler.tree_cache)
    scheduler.enable_hicache_storage = is_ours
    scheduler.enable_unified_cache_external_linker = is_ours


def _is_ours(cache: Any) -> bool:
    return bool(getattr(cache, "serves_orbitkv", False))


def _around_clear(original: Any, scheduler: Any, request: Any) -> Any:
    """`POST /hicache/storage-backend/clear`, which SGLang refuses an engine without its own host cache."""
    if not _is_ours(scheduler.tree_cache):
        return original(scheduler, request)
    from sglang.srt.managers.io_struct import ClearHiCacheReqOutput

    return ClearHiCacheReqOutput(success=scheduler.tree_cache.clear_storage_backend())


def _before_weight_update(updater: Any, *args: Any, **kwargs: Any) -> None:
    """Pages are named by the weights that the engine started with."""
    from sglang.srt.runtime_context import get_memory

    if get_memory().radix_cache_backend == BACKEND:
        from orbitkv.sglang.factory import stop_serving

        stop_serving("the weights of the running engine were replaced")
