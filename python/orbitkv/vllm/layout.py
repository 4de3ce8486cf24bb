"""Where the engine keeps KV: tensors turned into regions for the native client.

Only strides and the engine's own page size are read. Shapes differ between attention backends, and a kernel
may split the scheduler's block: the block dimension is then `num_blocks * ratio` long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from vllm.model_executor.models.utils import extract_layer_index

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig


class LayoutError(Exception):
    """KV memory that cannot be copied block by block; the message names the layer and what is odd."""


@dataclass(frozen=True)
class Region:
    """One layer. Block `b` is `block_bytes` contiguous bytes at `address + b * block_stride_bytes`; in the
    tensor it is the slice `b * ratio : (b + 1) * ratio` of dimension 0."""

    layer: str
    tensor: torch.Tensor
    address: int
    block_stride_bytes: int
    block_bytes: int
    num_blocks: int
    ratio: int

    def as_tuple(self) -> tuple[int, int, int, int]:
        """The region as the native layout takes it."""
        return (self.address, self.block_stride_bytes, self.block_bytes, self.num_blocks)


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


def region_of(layer: str, tensor: torch.Tensor, num_blocks: int, page_size_bytes: int) -> Region:
    """The region of one layer whose scheduler block holds `page_size_bytes`."""
    if not isinstance(tensor, torch.Tensor):
        raise LayoutError(f"layer {layer!r}: its KV cache is a {type(tensor).__name__}, not one tensor")
    if tensor.device.type not in ("cpu", "cuda") or torch.version.hip is not None:
        raise LayoutError(
            f"layer {layer!r} is on {tensor.device}; only host memory and NVIDIA devices are supported"
        )
    found = f"layer {layer!r} of shape {tuple(tensor.shape)}, strides {tuple(tensor.stride())}"
    ratio, rest = divmod(tensor.shape[0] if tensor.dim() else 0, num_blocks)
    if ratio < 1 or rest:
        raise LayoutError(f"{found}: dimension 0 does not count {num_blocks} blocks")
    item_bytes = tensor.element_size()
    kernel_bytes = dense_bytes(tensor[0])
    kernel_stride_bytes = tensor.stride(0) * item_bytes
    if kernel_bytes is None or kernel_stride_bytes < kernel_bytes:
        raise LayoutError(f"{found}: a block is not contiguous")
    if ratio > 1 and kernel_stride_bytes != kernel_bytes:
        raise LayoutError(f"{found}: the {ratio} kernel blocks of a block are not adjacent")
    if kernel_bytes * ratio != page_size_bytes:
        raise LayoutError(
            f"{found}: a block has {kernel_bytes * ratio} bytes, the engine says {page_size_bytes}"
        )
    return Region(
        layer=layer,
        tensor=tensor,
        address=tensor.data_ptr(),
        block_stride_bytes=kernel_stride_bytes * ratio,
        block_bytes=page_size_bytes,
        num_blocks=num_blocks,
        ratio=ratio,
    )


def dense_bytes(block: torch.Tensor) -> int | None:
    """Bytes of a block whose elements fill one contiguous run in some order of dimensions, else None."""
    expected = 1
    for stride, size in sorted(zip(block.stride(), block.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return None
            expected *= size
    return expected * block.element_size()


def memory_axes(block: torch.Tensor) -> list[int]:
    """Dimensions from the slowest to the fastest in memory."""
    return sorted(range(block.dim()), key=lambda axis: (-block.stride(axis), -block.shape[axis]))


def memory_order(block: torch.Tensor) -> torch.Tensor:
    """The same elements as one contiguous byte vector in the order in which they lie in memory."""
    return block.permute(memory_axes(block)).contiguous().view(torch.uint8).flatten()


def _model_order(names: list[str]) -> list[str]:
    """Layers by the index in their name; as the engine lists them where names carry no single index."""
    try:
        indices = [extract_layer_index(name) for name in names]
    except (AssertionError, ValueError):
        return names
    if len(set(indices)) != len(names):
        return names
    return [name for _, name in sorted(zip(indices, names, strict=True))]
