"""The drain check: after the last event everything that was reserved is back, within five seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo.settings import DRAIN_S

POLL_S = 0.05


@dataclass(frozen=True)
class Drain:
    """How one check ended."""

    when: str
    took_s: float
    # Gauges that were not zero in the end.
    left: dict[str, int]

    @property
    def drained(self) -> bool:
        """Whether every gauge is back."""
        return not self.left

    def __str__(self) -> str:
        if self.drained:
            return f"{self.when}: drained in {self.took_s:.2f} s"
        gauges = ", ".join(f"{name} = {value}" for name, value in self.left.items())
        return f"{self.when}: not drained after {self.took_s:.1f} s: {gauges}"


def gauges(report: dict[str, Any], *, writes: bool = False) -> dict[str, int]:
    """Every gauge of `/status` that counts unfinished work. A missing one is an error, never a zero. Pages
    that are written behind keep nobody waiting: they count only with `writes`."""
    query, save = report["query"], report["save"]
    found = {
        "query_reserved_bytes": query["reserved_bytes"],
        "query_speculative_reserved_bytes": query["speculative_reserved_bytes"],
        "leases": query["leases"],
        "save_reservations": save["reservations"],
        "save_inflight_bytes": save["inflight_bytes"],
        "load_inflight_bytes": report["load"]["inflight_bytes"],
        "pool_quarantined_bytes": report["pool"]["quarantined_bytes"],
        "sessions_unfinished": report["sessions"]["unfinished"],
        "tier_read_queue_pending": report["tier"]["read_queue_pending"],
    }
    if writes:
        found["tier_write_queue_pending"] = report["tier"]["write_queue_pending"]
    for phase, value in query["reserved_bytes_by_phase"].items():
        found[f"query_reserved_bytes_by_phase[{phase}]"] = value
    for phase, value in query["operations"].items():
        found[f"operations[{phase}]"] = value
    return found


def check(
    when: str,
    read: Callable[[], dict[str, Any]],
    patience_s: float = DRAIN_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    *,
    writes: bool = False,
) -> Drain:
    """Reads `/status` with `read` until all gauges are zero, or the time is over."""
    begun = clock()
    while True:
        left = {name: value for name, value in gauges(read(), writes=writes).items() if value}
        took_s = clock() - begun
        if not left or took_s > patience_s:
            return Drain(when, took_s, left)
        sleep(POLL_S)
