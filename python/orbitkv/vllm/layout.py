"""Where vLLM keeps KV: which tensor is which layer, in the order in which the model runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.model_executor.models.utils import extract_layer_index

from orbitkv.engine.regions import LayoutError, Region, region_of

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig


def regions_of(kv_caches: dict[str, torch.Tensor], kv_cache: KVCacheConfig) -> list[Region]:
    """Regions of all layers of the group in the order in which the model runs them."""
    group = kv_cache.kv_cache_groups[0]
    names = _model_order(list(group.layer_names))
    if missing := [name for name in names if name not in kv_caches]:
        raise LayoutError(f"layer {missing[0]!r} has no KV tensor")
    if len(kv_caches) != len(names):
        extra = sorted(set(kv_caches) - set(names))
        raise LayoutError(f"KV tensors outside the cache group: {extra}")
    page_size_bytes = group.kv_cache_spec.page_size_bytes
    regions = [region_of(name, kv_caches[name], kv_cache.num_blocks, page_size_bytes) for name in names]
    if len({region.address for region in regions}) != len(regions):
        raise LayoutError("layers share one KV tensor")
    if len(devices := {str(region.tensor.device) for region in regions}) != 1:
        raise LayoutError(f"layers are on several devices: {', '.join(sorted(devices))}")
    return regions


def _model_order(names: list[str]) -> list[str]:
    """Layers by the index in their name; as the engine lists them where names carry no single index."""
    try:
        indices = [extract_layer_index(name) for name in names]
    except (AssertionError, ValueError):
        return names
    if len(set(indices)) != len(names):
        return names
    return [name for _, name in sorted(zip(indices, names, strict=True))]
