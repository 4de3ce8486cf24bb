"""Tiny models beside the one that `make setup` made, by their weights' seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / ".venv" / "models"
DEFAULT = MODELS / "tiny-qwen3"
DEFAULT_SEED = 7


def tiny_model(seed: int = DEFAULT_SEED) -> Path:
    """Directory of the tiny model with these weights; made once."""
    path = DEFAULT if seed == DEFAULT_SEED else MODELS / f"tiny-qwen3-seed{seed}"
    if not path.exists():
        tool = ROOT / "tools" / "tiny_model.py"
        subprocess.run([sys.executable, str(tool), str(path), "--seed", str(seed)], check=True, timeout=120)
    return path
