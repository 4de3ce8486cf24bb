"""Lines that say how far the demo is."""

from __future__ import annotations

import time

PROGRESS_EVERY_S = 10.0
BEGUN = time.monotonic()


def say(line: str) -> None:
    """One line of progress, with the time since the start."""
    print(f"[{time.monotonic() - BEGUN:6.1f} s] {line}", flush=True)


class Waiting:
    """Says now and then that a wait goes on."""

    def __init__(self, what: str) -> None:
        self._what, self._next_s = what, PROGRESS_EVERY_S

    def __call__(self, passed_s: float) -> None:
        if passed_s >= self._next_s:
            say(f"{self._what}: {passed_s:.0f} s so far")
            self._next_s += PROGRESS_EVERY_S
