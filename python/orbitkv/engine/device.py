"""The device that KV is on, and the stream that computes there."""

from __future__ import annotations

import torch


class KVDevice:
    """Host memory, whose calls are in order by themselves, or a CUDA device, whose work is on streams."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.has_streams = device.type == "cuda"

    @property
    def name(self) -> str:
        """As the native client takes it: `cpu` or `cuda:N`."""
        return str(self._device)

    def stream(self) -> int:
        """`CUstream` on which the engine launches its kernels now; to be asked for at each use."""
        return torch.cuda.current_stream(self._device).cuda_stream

    def order(self) -> dict[str, int]:
        """Arguments of a save or a restore that let it come after what the engine has launched so far."""
        return {"stream": self.stream()} if self.has_streams else {}
