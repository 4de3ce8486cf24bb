"""Builds the tree cache: ours where the engine's configuration can be served, else the one that SGLang would
build."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from orbitkv.engine.settings import Settings, SettingsError
from orbitkv.sglang.log import logger
from orbitkv.sglang.support import OffError, why_unsupported

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

    from orbitkv.sglang.linker import OrbitKVLinker

# A JSON object with settings; SGLang has no place for those of a cache backend.
CONFIG_VARIABLE = "ORBITKV_CONFIG"
# A request waits until its pages are checked, as SGLang must be promised none that then fails; vLLM's are
# checked while they are copied, and four times as many.
VERIFY_RESTORE = "sample:64"
# The linker of this process, of which there is one at most.
_serving: list[OrbitKVLinker] = []


def build(ctx: TreeCacheBuildContext) -> BasePrefixCache:
    """The tree cache for one scheduler. Raises only for settings that cannot be meant, at the engine's
    start."""
    settings = read_settings(os.environ)
    reason = why_unsupported(ctx)
    if reason is None:
        try:
            return _build(ctx, settings)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the cache, the engine starts
            logger.debug("OrbitKV could not start", exc_info=True)
            reason = str(error) if isinstance(error, OffError) else f"{type(error).__name__}: {error}"
    logger.warning("OrbitKV off, serving without it: %s", reason)
    return build_plain(ctx)


def read_settings(environ: Any) -> Settings:
    """Settings from the environment. Raises `SettingsError`."""
    text = environ.get(CONFIG_VARIABLE, "") or "{}"
    try:
        extra = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{CONFIG_VARIABLE} is {text!r}, which is no JSON: {error}") from error
    if not isinstance(extra, dict):
        raise SettingsError(f"{CONFIG_VARIABLE} is {text!r}; it must be a JSON object of settings.")
    return Settings.parse({"verify_restore": VERIFY_RESTORE, **extra}, environ, source=CONFIG_VARIABLE)


def _build(ctx: TreeCacheBuildContext, settings: Settings) -> BasePrefixCache:
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    from orbitkv.sglang.cache import OrbitKVRadixCache
    from orbitkv.sglang.start import start

    params = ctx.params
    params.tree_components = (ComponentType.FULL,)
    linker = start(ctx, settings)
    cache = OrbitKVRadixCache(params)
    cache.init_cache_linker(linker)
    params.token_to_kv_pool_allocator.get_kvcache().register_layer_transfer_counter(linker.layer_done_counter)
    ctx.tp_worker.register_hicache_layer_transfer_counter(linker.layer_done_counter)
    _serving[:] = [linker]
    return cache


def build_plain(ctx: TreeCacheBuildContext) -> BasePrefixCache:
    """What SGLang builds without a cache backend. The linker flag would make it look for one of its own."""
    from sglang.srt.mem_cache.registry import default_radix_cache_factory
    from sglang.srt.runtime_context import get_memory

    with get_memory().override(enable_unified_cache_external_linker=False):
        return default_radix_cache_factory(ctx)


def stop_serving(reason: str) -> None:
    """From now on nothing is restored or saved."""
    for linker in _serving:
        linker.stop(reason)
