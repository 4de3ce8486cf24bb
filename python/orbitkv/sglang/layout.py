"""Where SGLang keeps KV: the buffers of a pool as regions of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitkv.engine.regions import LayoutError, Region, region_of

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

# Of each layer first the keys, then the values: the order of regions, and so of copies.
REGIONS_PER_LAYER = 2


def last_region(layer: int) -> int:
    """The region after which a layer, counted from the first of this rank, is whole."""
    return layer * REGIONS_PER_LAYER + REGIONS_PER_LAYER - 1


def regions_of(pool: MHATokenToKVPool) -> list[Region]:
    """Regions of all layers. A page of a layer is `page_size` rows, of keys and of values; page 0 is the
    pool's own and in no table."""
    regions = []
    for index, (keys, values) in enumerate(zip(pool.k_buffer, pool.v_buffer, strict=True)):
        for name, buffer in (("k", keys), ("v", values)):
            regions.append(_region(f"{name}{index}", buffer, pool.page_size))
    if len({region.address for region in regions}) != len(regions):
        raise LayoutError("layers share one KV buffer")
    return regions


def _region(name: str, buffer: torch.Tensor, page_tokens: int) -> Region:
    rows = buffer.shape[0]
    if rows % page_tokens:
        raise LayoutError(f"buffer {name} has {rows} rows, not whole pages of {page_tokens}")
    row_bytes = buffer[0].numel() * buffer.element_size()
    return region_of(name, buffer, rows // page_tokens, row_bytes * page_tokens)


def blocks_of(slots: torch.Tensor, page_tokens: int) -> list[int]:
    """Page numbers of whole pages of token slots, in order."""
    return (slots[::page_tokens] // page_tokens).tolist()
