"""KV memory as the native client takes it: tensors turned into regions.

Only strides and the engine's own page size are read. Shapes differ between attention backends, and a kernel
may split the scheduler's block: the block dimension is then `num_blocks * ratio` long.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
