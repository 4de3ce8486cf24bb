"""Where SGLang keeps KV: the buffers of a pool as regions of pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from orbitkv.engine.regions import LayoutError, Region, region_of

if TYPE_CHECKING:
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


class Blocks:
    """Page numbers of whole pages of token slots, in order.

    On a device they are on their way to the host: the stream that has them may be behind a whole forward
    pass, for which the scheduler must not wait."""

    def __init__(self, slots: torch.Tensor, page_tokens: int) -> None:
        pages = slots[::page_tokens] // page_tokens
        self._pages = pages.to("cpu", non_blocking=True)
        self._arrival = None
        if pages.is_cuda:
            self._arrival = torch.cuda.Event()
            self._arrival.record()

    def are_known(self) -> bool:
        """Whether `numbers` returns at once."""
        return self._arrival is None or self._arrival.query()

    def numbers(self) -> list[int]:
        """The numbers. Waits for them."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._pages.tolist()
