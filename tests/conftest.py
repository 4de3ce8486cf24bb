"""Read before any test module, and so before anything imports torch."""

from __future__ import annotations

import os

# With more threads the CPU backend's bfloat16 results depend on what else is in the batch: outputs then
# differ without any cache, and equal tokens would prove nothing. Torch reads this once, at import.
os.environ["OMP_NUM_THREADS"] = "1"

# They need a GPU, and have a configuration of their own: `make gpu-test`.
collect_ignore = ["gpu", "gpu_sglang"]
