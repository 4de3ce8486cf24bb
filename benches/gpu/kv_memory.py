"""KV memory of an engine in this process, compared byte by byte where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

POISON = 0x5A
NULL_BLOCK = 0  # the engine's placeholder, never filled


class KvMemory:
    """The tensors that the engine gave to its connector: one byte matrix `[blocks, block_bytes]` a layer,
    wherever the layout puts its rows."""

    def __init__(self, tensors: list[torch.Tensor], num_blocks: int) -> None:
        self._layers = [_byte_rows(tensor, num_blocks) for tensor in tensors]
        self.block_bytes = sum(layer.shape[1] for layer in self._layers)

    def snapshot(self, blocks: list[int]) -> list[torch.Tensor]:
        """Copies of these blocks, one `[blocks, block_bytes]` a layer, on the same device."""
        index = self._index(blocks)
        return [layer.index_select(0, index) for layer in self._layers]

    def differing(self, blocks: list[int], snapshot: list[torch.Tensor]) -> tuple[int, int]:
        """Bytes, and blocks with any, that are not as in the snapshot."""
        import torch

        index = self._index(blocks)
        bad_bytes, bad_rows = 0, torch.zeros(len(blocks), dtype=torch.bool, device=index.device)
        for layer, before in zip(self._layers, snapshot, strict=True):
            unequal = layer.index_select(0, index) != before
            bad_bytes += int(unequal.sum())
            bad_rows |= unequal.any(dim=1)
        return bad_bytes, int(bad_rows.sum())

    def poison(self) -> None:
        """Overwrites every block but the null block. The engine must be idle."""
        for layer in self._layers:
            layer[NULL_BLOCK + 1 :].fill_(POISON)
        _synchronize(self._layers[0])

    def distinct_blocks(self, snapshot: list[torch.Tensor]) -> int:
        """How many blocks of a snapshot no other one equals: pages that were swapped would not hide."""
        import torch

        rows = torch.cat([layer[:, :64] for layer in snapshot], dim=1).cpu()
        return len({row.numpy().tobytes() for row in rows})

    def _index(self, blocks: list[int]) -> torch.Tensor:
        import torch

        return torch.tensor(blocks, device=self._layers[0].device)


def _byte_rows(tensor: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Bytes of a layer by the scheduler's blocks; raises ValueError where a block is not one run."""
    import torch

    ratio, rest = divmod(tensor.shape[0], num_blocks)
    block = tensor[0]
    expected = 1
    for stride, size in sorted(zip(block.stride(), block.shape, strict=True)):
        if size > 1 and stride != expected:
            raise ValueError(f"a block of shape {tuple(tensor.shape)}, strides {tensor.stride()} is no run")
        expected *= size
    width, stride = expected * tensor.element_size(), tensor.stride(0) * tensor.element_size()
    if rest or (ratio > 1 and stride != width):
        raise ValueError(f"{tensor.shape[0]} kernel blocks do not make {num_blocks} blocks of one run each")
    storage = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    offset = tensor.storage_offset() * tensor.element_size()
    return storage.as_strided((num_blocks, width * ratio), (stride * ratio, 1), offset)


def _synchronize(tensor: Any) -> None:
    import torch

    if tensor.device.type == "cuda":
        torch.cuda.synchronize()
