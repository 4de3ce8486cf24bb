"""The tools are scripts, not a package: their directory is put on the path as `python3 tools/X.py` does."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
