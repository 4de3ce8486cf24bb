"""Rows turned into figures: medians with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benches.gpu.rows import Rows
from benches.gpu.systems import NATIVE, ORBITKV


def spread(values: Iterable[float]) -> dict[str, Any] | None:
    """Median, least and most of values, and how many; None of none."""
    values = list(values)
    if not values:
        return None
    middle = statistics.median(values)
    return {"median": round(middle, 3), "min": min(values), "max": max(values), "n": len(values)}


def percentile(values: Iterable[float], percent: float) -> float:
    """The least value that so many percent of the values do not exceed. `values` may not be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def ttft(rows: Rows, mode: str, kind: str, system: str, tokens: int) -> dict[str, Any] | None:
    """Milliseconds to the first token; only of requests that were answered from where they should."""
    found = rows.of("ttft", mode=mode, kind=kind, system=system, tokens=tokens)
    return spread(row["ms"] for row in found if row["whole"])


def ttft_lengths(rows: Rows, mode: str) -> list[int]:
    """Prompt lengths with any time of that mode, ascending."""
    return sorted({row["tokens"] for row in rows.of("ttft", mode=mode) if "ms" in row})


def ttft_systems(rows: Rows, mode: str, suffix: str = "", hit: str = "hbm-hit") -> list[dict[str, Any]]:
    """One entry a system and length. The systems `cold` and `hit` are the engine with no cache behind it."""
    entries = []
    restored = sorted({row["system"] for row in rows.of("ttft", mode=mode, kind="restore" + suffix)})
    places = [(system, "restore" + suffix, system) for system in restored]
    places += [(hit, "hbm-hit" + suffix, NATIVE), ("cold", "cold" + suffix, NATIVE)]
    for name, kind, system in places:
        for tokens in ttft_lengths(rows, mode):
            if (figure := ttft(rows, mode, kind, system, tokens)) is not None:
                times = {f"ttft_ms_{key}": figure[key] for key in ("median", "min", "max")}
                entries.append({"system": name, "tokens": tokens, **times, "n": figure["n"]})
    return entries


def wire_gb_s(rows: Rows, way: str) -> float | None:
    """Median GB/s of plain copies of this run."""
    found = rows.of("wire", way=way)
    return found[0]["gb_s"] if found else None


def intervals(rows: Rows, part: str, kind: str, background: bool) -> list[float]:
    """Milliseconds between the outputs of decoding requests, of all rounds."""
    found = rows.of(part, kind=kind, background=background)
    return [value for row in found for value in row["intervals_ms"]]


def copied_gb_s(rows: Rows, way: str) -> float:
    """Mean GB/s of the copies beside decoding requests that belong to none, "restored" or "saved"; 0 without
    any."""
    found = rows.of("decode", kind="copies", background=True)
    return sum(row[f"{way}_gb_s"] for row in found) / len(found) if found else 0.0


def miss_ratios(rows: Rows) -> list[float]:
    """Throughput of OrbitKV's engine over that of vLLM alone in the same round; only rounds in which neither
    had a token cached."""
    found = {}
    for row in rows.of("decode", kind="misses"):
        if not row["cached"]:
            found[row["system"], row["round"]] = row["tokens_per_s"]
    rounds = sorted(number for system, number in found if system == NATIVE)
    return [
        round(found[ORBITKV, number] / found[NATIVE, number], 4)
        for number in rounds
        if (ORBITKV, number) in found
    ]
