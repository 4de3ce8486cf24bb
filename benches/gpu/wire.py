"""Plain copies between pinned host memory and the GPU: what the wire gives, the yardstick of restores."""

from __future__ import annotations

import statistics
from typing import Any

from benches.gpu.child import Child
from benches.gpu.run_context import Run

PART = "wire"
ESTIMATE_S = 20
COPY_BYTES = 1 << 30
REPEATS = 9


class Wire:
    """Copies in a process of its own, which ends with its CUDA context."""

    def describe(self) -> dict[str, Any]:
        """The device."""
        import torch

        return {"device": torch.cuda.get_device_name()}

    def copies(self) -> dict[str, list[float]]:
        """GB/s of each copy of `COPY_BYTES`, in turn both ways."""
        import torch

        host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
        figures: dict[str, list[float]] = {"h2d": [], "d2h": []}
        for _ in range(REPEATS + 1):
            for way, (to, source) in {"h2d": (device, host), "d2h": (host, device)}.items():
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                to.copy_(source, non_blocking=True)
                end.record()
                end.synchronize()
                figures[way].append(COPY_BYTES / begin.elapsed_time(end) / 1e6)
        return {way: values[1:] for way, values in figures.items()}

    def close(self) -> None:
        """Nothing to do: the process ends."""


def measure(run: Run) -> None:
    """A row for each direction."""
    child = Child("benches.gpu.wire:Wire", {}, run.site.log(PART), {})
    try:
        child.wait_built(120)
        for way, values in child.call("copies").items():
            figures = {"gb_s": statistics.median(values), "low": min(values), "high": max(values)}
            run.rows.add(PART, way=way, bytes=COPY_BYTES, n=len(values), **figures)
    finally:
        child.close()
