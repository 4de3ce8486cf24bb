"""Access to the compiled client."""

from __future__ import annotations

import importlib
from typing import Any


def load_native() -> Any:
    """`orbitkv._native`, imported on first use: a connector that is switched off needs no compiled module."""
    return importlib.import_module("orbitkv._native")
