"""Layout probe: before any page is saved, the native client's address arithmetic is checked against torch.

It runs on scratch tensors with the strides of the real ones, on their device, and needs no manager. Torch
reads and writes blocks by indexing, the client by address; only if both agree in both directions, and nothing
beside the block changes, may pages be exchanged with other engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from orbitkv.engine.regions import Region, memory_axes, memory_order, region_of

SCRATCH_BLOCKS = 3
_SEED = 1
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Scratch:
    """Private memory of the engine's layout: regions, their native layout, and the tensors they live in."""

    regions: list[Region]
    layout: Any

    @property
    def device(self) -> torch.device:
        """Where the memory is."""
        return self.regions[0].tensor.device

    def settle(self) -> None:
        """Returns when torch has done what it was told: the client's copies are on streams of their own."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def gather(self, native: Any, block: int) -> bytes:
        """A block as the client reads it."""
        return native.gather_block(self.layout, block, device=str(self.device))

    def scatter(self, native: Any, block: int, payload: bytes) -> None:
        """Writes a block as the client does."""
        native.scatter_block(self.layout, block, payload, device=str(self.device))


def scratch_like(regions: list[Region], native: Any, blocks: int = SCRATCH_BLOCKS) -> Scratch:
    """`blocks` blocks a layer with the strides of `regions`, filled with zeros."""
    first = min(region.address for region in regions)
    stride = regions[0].block_stride_bytes
    # Layers that lie within one another's strides share their memory here too: each would need all of it.
    shared = None
    if len(regions) > 1 and all(
        region.block_stride_bytes == stride and region.address + region.block_bytes <= first + stride
        for region in regions
    ):
        shared = torch.zeros(blocks * stride, dtype=torch.uint8, device=regions[0].tensor.device)
    copies = []
    for region in regions:
        tensor = region.tensor
        shape = (blocks * region.ratio, *tensor.shape[1:])
        if shared is None:
            scratch = torch.empty_strided(shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            _storage_bytes(scratch).zero_()
        else:
            offset = (region.address - first) // tensor.element_size()
            scratch = shared.view(tensor.dtype).as_strided(shape, tensor.stride(), offset)
        copies.append(region_of(region.layer, scratch, blocks, region.block_bytes))
    return Scratch(copies, native.Layout([copy.as_tuple() for copy in copies]))


def probe_layout(scratch: Scratch, native: Any) -> str | None:
    """None if the client and torch agree on every block, else one clause saying where they differ."""
    generator = torch.Generator().manual_seed(_SEED)
    for _, storage in _memories(scratch).values():
        storage.copy_(_random_bytes(storage.numel(), generator))
    scratch.settle()
    return _probe_gather(scratch, native) or _probe_scatter(scratch, native, generator)


def _probe_gather(scratch: Scratch, native: Any) -> str | None:
    payloads = [scratch.gather(native, block) for block in range(SCRATCH_BLOCKS)]
    if len(set(payloads)) != SCRATCH_BLOCKS:
        return "two blocks gave the same bytes"
    for block, payload in enumerate(payloads):
        if payload != _payload(scratch, block):
            return f"block {block} was read from the wrong place"
    return None


def _probe_scatter(scratch: Scratch, native: Any, generator: torch.Generator) -> str | None:
    block = SCRATCH_BLOCKS // 2
    parts = [_random_bytes(region.block_bytes, generator) for region in scratch.regions]
    expected = {address: memory.clone() for address, (_, memory) in _memories(scratch).items()}
    for region, part in zip(scratch.regions, parts, strict=True):
        _put(expected[_storage_bytes(region.tensor).data_ptr()], region, block, part)
    scratch.settle()
    scratch.scatter(native, block, torch.cat(parts).numpy().tobytes())
    for address, (layer, memory) in _memories(scratch).items():
        if not torch.equal(memory, expected[address]):
            return f"writing block {block} of layer {layer!r} changed other bytes than that block's"
    return None


def _memories(scratch: Scratch) -> dict[int, tuple[str, torch.Tensor]]:
    """All memory of the scratch by address, and the name of the first layer in it."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for region in scratch.regions:
        memory = _storage_bytes(region.tensor)
        found.setdefault(memory.data_ptr(), (region.layer, memory))
    return found


def _put(memory: torch.Tensor, region: Region, block: int, content: torch.Tensor) -> None:
    """Writes `content` as `block` of a layer that lies in `memory`, by torch indexing."""
    tensor = region.tensor
    # As integers: a copy must not touch bits that happen to spell a NaN.
    integers = _INTEGERS[tensor.element_size()]
    view = memory.view(integers).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    target = view[block * region.ratio : (block + 1) * region.ratio]
    target = target.permute(memory_axes(target))
    target.copy_(content.to(tensor.device).view(integers).reshape(target.shape))


def _payload(scratch: Scratch, block: int) -> bytes:
    parts = [
        memory_order(region.tensor[block * region.ratio : (block + 1) * region.ratio]).cpu().numpy().tobytes()
        for region in scratch.regions
    ]
    return b"".join(parts)


def _random_bytes(count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)


def _storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of the memory behind a tensor, also those between its blocks."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
