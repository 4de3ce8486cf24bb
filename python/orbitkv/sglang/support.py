"""Which engine configurations are served with the cache. All others run as if it were not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

# A page has a hash, a checksum and an entry in every table; below this size they would cost more than they
# find.
MIN_PAGE_TOKENS = 16


class OffError(Exception):
    """Why the cache stays off; one clause."""


def why_unsupported(ctx: TreeCacheBuildContext) -> str | None:
    """One clause saying what this version cannot cache, or None. All ranks come to the same answer."""
    return (
        _mode_reason(ctx)
        or _parallel_reason(ctx)
        or _model_reason(ctx)
        or _graph_reason()
        or pool_reason(ctx.params.token_to_kv_pool_allocator.get_kvcache())
    )


def _mode_reason(ctx: TreeCacheBuildContext) -> str | None:
    args = ctx.server_args
    if ctx.disable_radix_cache or ctx.params.disable:
        return "the radix cache is off; unset --disable-radix-cache"
    if ctx.params.page_size < MIN_PAGE_TOKENS:
        return f"page size is {ctx.params.page_size}; set --page-size 64, and at least {MIN_PAGE_TOKENS}"
    if ctx.enable_hierarchical_cache or getattr(args, "hicache_storage_backend", None):
        return "--enable-hierarchical-cache is a second host cache; unset it"
    for flag in ("enable_lmcache", "enable_flexkv"):
        if getattr(args, flag, False):
            return f"--{flag.replace('_', '-')} is another external cache; unset one of them"
    if (mode := getattr(args, "disaggregation_mode", "null")) != "null":
        return f"disaggregation mode is {mode!r}; only an engine that prefills and decodes is supported"
    if getattr(args, "enable_pdmux", False):
        return (
            "--enable-pdmux runs prefill and decode on streams that copies cannot be ordered after; unset it"
        )
    if getattr(args, "enable_memory_saver", False):
        return (
            "--enable-memory-saver is on, and the engine takes KV memory away without telling those who copy "
            "from it; unset it"
        )
    return None


def _parallel_reason(ctx: TreeCacheBuildContext) -> str | None:
    args, params = ctx.server_args, ctx.params
    sizes = {
        "pipeline": params.pp_size,
        "attention context": params.attn_cp_size,
        "decode context": getattr(args, "dcp_size", 1) or 1,
    }
    for name, size in sizes.items():
        if size > 1:
            return f"{name} parallel size is {size}; only 1 is supported"
    if getattr(args, "enable_dp_attention", False):
        return "data parallel attention is on, whose ranks do not share a scheduler's decisions"
    if ctx.tp_size > 1 and (hosts := getattr(args, "nnodes", 1) or 1) > 1:
        return f"the tensor parallel ranks are on {hosts} hosts; a cache manager serves one"
    return None


def _model_reason(ctx: TreeCacheBuildContext) -> str | None:
    args, params = ctx.server_args, ctx.params
    if ctx.is_hybrid_swa or ctx.is_hybrid_ssm or ctx.is_dsa:
        return "the model's attention is windowed, recurrent or sparse; only full attention is supported"
    if params.is_eagle or params.mtp_draft_device_pools or getattr(args, "speculative_algorithm", None):
        return "speculative decoding is on"
    if getattr(args, "dllm_algorithm", None):
        return "diffusion decoding is on, with which SGLang runs no external cache"
    if not getattr(ctx.model_config, "is_generation", True):
        # The scheduler does not tell such a forward pass what is loaded for it, so no layer is waited for.
        return "the model embeds or classifies; only one that generates is supported"
    if getattr(ctx.model_config, "is_multimodal", False):
        # Such an input is in the hash by a short digest of its content, which is too little for a shared
        # cache.
        return "the model is multimodal, and the hash of a page does not tell all inputs apart"
    return None


def _graph_reason() -> str | None:
    """Inside a whole graph nobody waits for layers."""
    if (backend := prefill_graph_backend()) in ("full", "tc_piecewise"):
        return f"the prefill graph backend is {backend!r}; set --cuda-graph-backend-prefill breakable"
    return None


def prefill_graph_backend() -> str:
    """How the engine runs the forward pass of prompts; empty if it says nothing."""
    from sglang.srt.runtime_context import get_exec

    config = get_exec().graph.cuda_graph_config
    backend = getattr(getattr(config, "prefill", None), "backend", None)
    return str(getattr(backend, "value", backend) or "")


def pool_reason(pool: Any) -> str | None:
    """The same of KV memory alone."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    if type(pool) is not MHATokenToKVPool:
        return f"the KV pool is {type(pool).__name__}; only MHATokenToKVPool is supported"
    if getattr(pool, "is_quantized_kv_cache", False) or pool.store_dtype != pool.dtype:
        return f"the KV cache is quantised ({pool.dtype}); set --kv-cache-dtype auto"
    if getattr(pool, "use_hnd", False) or getattr(pool, "kv_cache_layout", "nhd") != "nhd":
        return "the KV memory is not laid out token by token (NHD)"
    if (
        getattr(pool, "enable_custom_mem_pool", False)
        or getattr(pool, "_post_capture_owner", None) is not None
    ):
        return "the KV memory is not an ordinary allocation, and cannot be shared with the copy engine"
    return None
