"""What a request ended with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One finished request. `cached` counts prompt tokens that were not computed, wherever they came from."""

    tokens: list[int]
    cached: int
    finish_reason: str | None = None
