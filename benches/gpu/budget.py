"""The time that a run may take."""

from __future__ import annotations

import time


class Budget:
    """Counts down from `seconds`. Parts ask before they begin something, and end early rather than late."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds that are left, never negative."""
        return max(0.0, self._deadline - time.monotonic())

    def allows(self, seconds: float) -> bool:
        """Whether something that takes about so long can still begin."""
        return self.left_s >= seconds
