"""Waiting for something that another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.005
# Long enough for a machine that is busy with something else; only a failing test waits that long.
PATIENCE_S = 60.0


def wait_until(
    look: Callable[[], T],
    what: str,
    *,
    within_s: float = PATIENCE_S,
    meanwhile: Callable[[], object] = lambda: time.sleep(POLL_S),
) -> T:
    """The first true value of `look`, which is called again after each `meanwhile`. Raises `AssertionError`
    naming `what` after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while not (value := look()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        meanwhile()
    return value
