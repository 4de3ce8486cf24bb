"""A part of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benches.gpu.run_context import Run


@dataclass(frozen=True)
class Part:
    """Something to measure; `seconds` is what it took where it was written, and a little more. What is also
    `within` another part is measured by itself only where that one was not asked for."""

    name: str
    measure: Callable[[Run], None]
    seconds: float
    within: str = ""

    def is_asked_for(self, only: list[str] | None) -> bool:
        """Whether it is one of those named, or of all if none is."""
        if not only:
            return not self.within
        return self.name in only and self.within not in only
