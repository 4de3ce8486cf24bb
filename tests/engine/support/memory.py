"""KV memory of a worker, byte by byte."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

POISON = 0x5A
NULL_BLOCK = 0  # the engine's placeholder, never filled


class KvMemory:
    """The tensors that the engine gave to its connector: one byte matrix `[blocks, block_bytes]` a layer."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._layers = [_byte_rows(tensor) for tensor in tensors]

    @property
    def num_blocks(self) -> int:
        """Blocks, the null block included."""
        return self._layers[0].shape[0]

    def block(self, block: int) -> bytes:
        """Bytes of a block of all layers, in layer order: the payload of its page."""
        return b"".join(layer[block].numpy().tobytes() for layer in self._layers)

    def blocks(self, blocks: list[int] | range | None = None) -> dict[int, bytes]:
        """Bytes of some blocks, or of all, by block id."""
        return {block: self.block(block) for block in (range(self.num_blocks) if blocks is None else blocks)}

    def poison(self, keep: frozenset[int] | set[int] = frozenset()) -> None:
        """Fills every block but the null block and those of `keep` with `POISON`."""
        for layer in self._layers:
            for block in range(self.num_blocks):
                if block != NULL_BLOCK and block not in keep:
                    layer[block].fill_(POISON)


def _byte_rows(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    # One contiguous run a block: what the connector itself proves before it copies.
    block = tensor[0]
    expected = 1
    for stride, size in sorted(zip(block.stride(), block.shape, strict=True)):
        assert size == 1 or stride == expected, f"a block of {tuple(tensor.shape)} is not contiguous"
        expected *= size
    width = expected * tensor.element_size()
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    offset = tensor.storage_offset() * tensor.element_size()
    stride = tensor.stride(0) * tensor.element_size()
    return storage.as_strided((tensor.shape[0], width), (stride, 1), offset)
