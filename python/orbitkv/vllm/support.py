"""Which engine configurations are served with the cache. All others run as if it were not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import FullAttentionSpec

from orbitkv.vllm.sleep import why_not_followed

if TYPE_CHECKING:
    from vllm.config import ParallelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


def why_unsupported(config: VllmConfig, kv_cache: KVCacheConfig) -> str | None:
    """One clause saying what this version cannot cache, or None. Both sides come to the same answer."""
    return (
        _transfer_reason(config)
        or _parallel_reason(config)
        or _memory_reason(config)
        or _model_reason(config)
        or _hash_reason(config)
        or _group_reason(kv_cache)
    )


def _transfer_reason(config: VllmConfig) -> str | None:
    transfer = config.kv_transfer_config
    if transfer.kv_role != "kv_both":
        return f"kv_role is {transfer.kv_role!r}; it must be 'kv_both'"
    if transfer.kv_load_failure_policy != "recompute":
        return (
            f"kv_load_failure_policy is {transfer.kv_load_failure_policy!r}, which makes a failed restore "
            "fail the request; set it to 'recompute'"
        )
    return None


def _parallel_reason(config: VllmConfig) -> str | None:
    parallel = config.parallel_config
    sizes = {
        "pipeline": parallel.pipeline_parallel_size,
        "decode context": parallel.decode_context_parallel_size,
        "prefill context": getattr(parallel, "prefill_context_parallel_size", 1),
    }
    for name, size in sizes.items():
        if size > 1:
            return f"{name} parallel size is {size}; only 1 is supported"
    if parallel.tensor_parallel_size > 1:
        return _ranks_reason(parallel)
    return None


def _ranks_reason(parallel: ParallelConfig) -> str | None:
    """Ranks share one answer and one manager: they need one scheduler, and one host."""
    if getattr(parallel, "distributed_executor_backend", None) == "external_launcher":
        return "distributed_executor_backend is 'external_launcher': each rank has a scheduler of its own"
    if (hosts := getattr(parallel, "nnodes_within_dp", 1)) > 1:
        return f"the tensor parallel ranks are on {hosts} hosts; a cache manager serves one"
    return None


def _memory_reason(config: VllmConfig) -> str | None:
    """What may touch KV memory without our knowing when."""
    if (reason := why_not_followed(config)) is not None:
        return reason
    if getattr(config.parallel_config, "use_ubatching", False):
        return "micro-batches are on, which run a layer on several streams; unset --enable-dbo, --ubatch-size"
    return None


def _model_reason(config: VllmConfig) -> str | None:
    if config.model_config.is_encoder_decoder:
        return "encoder-decoder models are not supported"
    if config.lora_config is not None:
        # With it pages of the base model cannot be trusted either: see docs/adr/0005.
        return "LoRA is on, and nothing tells with which weights a page was computed; unset --enable-lora"
    if config.speculative_config is not None:
        return "speculative decoding is on"
    if getattr(config.cache_config, "kv_sharing_fast_prefill", False):
        return "kv_sharing_fast_prefill is on"
    if getattr(config.cache_config, "calculate_kv_scales", False):
        return "calculate_kv_scales is on, so equal tokens give unequal KV bytes from run to run"
    return None


def _hash_reason(config: VllmConfig) -> str | None:
    cache = config.cache_config
    if not cache.enable_prefix_caching:
        return "prefix caching is off; set --enable-prefix-caching"
    if cache.prefix_caching_hash_algo not in ("sha256", "sha256_cbor"):
        return (
            f"prefix_caching_hash_algo is {cache.prefix_caching_hash_algo!r}, which is not known to resist "
            "collisions, so one prompt could be given another's KV; set sha256_cbor or sha256"
        )
    if getattr(cache, "prefix_match_unit", None) not in (None, cache.block_size):
        return f"prefix_match_unit {cache.prefix_match_unit} differs from block_size {cache.block_size}"
    return None


def _group_reason(kv_cache: KVCacheConfig) -> str | None:
    groups = kv_cache.kv_cache_groups
    if len(groups) != 1:
        return f"the model has {len(groups)} KV cache groups; only 1 is supported"
    group = groups[0]
    spec = group.kv_cache_spec
    if type(spec) is not FullAttentionSpec:
        return f"the model's KV cache is {type(spec).__name__}; only full attention is supported"
    if spec.sliding_window is not None or spec.attention_chunk_size is not None or spec.non_causal:
        return "the model's attention is windowed, chunked or not causal; only full attention is supported"
    if group.is_eagle_group or not group.enable_kv_transfer:
        return "the KV cache group belongs to a draft model or is excluded from transfer"
    return None
