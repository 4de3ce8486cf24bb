"""The drain check: everything that must be back at its starting value once work has ended."""

from __future__ import annotations

from typing import Any

DRAINED_WITHIN_S = 5.0


def drain_gauges(status: dict[str, Any]) -> dict[str, int]:
    """Gauges of `/status` that are zero in a manager without work, by name."""
    query = status["query"]
    gauges = {
        "query_reserved_bytes": query["reserved_bytes"],
        "query_speculative_reserved_bytes": query["speculative_reserved_bytes"],
        "leases": query["leases"],
        "save_reservations": status["save"]["reservations"],
        "save_inflight_bytes": status["save"]["inflight_bytes"],
        "load_inflight_bytes": status["load"]["inflight_bytes"],
        "pool_quarantined_bytes": status["pool"]["quarantined_bytes"],
        "sessions_unfinished": status["sessions"]["unfinished"],
    }
    by_phase = query["reserved_bytes_by_phase"]
    gauges |= {f"query_reserved_bytes{{{phase}}}": value for phase, value in by_phase.items()}
    gauges |= {f"operations{{{phase}}}": value for phase, value in query["operations"].items()}
    return gauges


def not_drained(status: dict[str, Any]) -> dict[str, int]:
    """The drain gauges that are not zero."""
    return {name: value for name, value in drain_gauges(status).items() if value != 0}
