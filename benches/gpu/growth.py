"""A pool takes memory as pages come in, a segment at a time, and a page that finds no room meanwhile is not
saved. A GPU computes pages faster than that. What is measured is a server that has run for a while."""

from __future__ import annotations

import time

from benches.gpu.prompts import Seeds
from benches.gpu.systems import System

# Every short prompt that finds no room has the pool grow by a segment.
PROMPT_TOKENS = 512
FILLER_SEED = 700_000_000
WITHIN_S = 40.0


def grow(system: System, more_bytes: int) -> dict[str, float]:
    """Has OrbitKV's pool grow by so much, or to its limit; what it has then, and the seconds that took."""
    manager = system.manager
    assert manager is not None, "only OrbitKV has a pool to grow"
    if system.facts.get("device") == "cpu":
        # Of a dry run: a segment holds all of its small pages.
        return {"pool_bytes": manager.status()["pool"]["bytes"], "seconds": 0.0}
    seeds = Seeds(FILLER_SEED + (system.facts.get("pid", 0) % 1000) * 100_000)
    begun = time.monotonic()
    pool = manager.status()["pool"]
    wanted = min(pool["bytes"] + more_bytes, pool["limit_bytes"] * 0.95)
    while pool["bytes"] < wanted and time.monotonic() - begun < WITHIN_S:
        system.engine.call("ask", seeds.new(PROMPT_TOKENS))
        system.engine.call("settle")
        pool = manager.status()["pool"]
    system.wait_saved()
    return {"pool_bytes": pool["bytes"], "seconds": round(time.monotonic() - begun, 2)}


def grow_to(system: System, pool_bytes: int) -> dict[str, float]:
    """The same, until the pool has so much; nothing is asked if it has."""
    assert system.manager is not None, "only OrbitKV has a pool to grow"
    return grow(system, pool_bytes - system.manager.status()["pool"]["bytes"])
