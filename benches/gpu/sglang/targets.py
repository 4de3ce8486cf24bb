"""What a run of SGLang is to show, and what it showed."""

from __future__ import annotations

from collections.abc import Iterator

from benches.gpu import figures
from benches.gpu.rows import Rows
from benches.gpu.sglang.parts import EAGER, GRAPHS
from benches.gpu.sglang.systems import HICACHE
from benches.gpu.summary import Shown
from benches.gpu.systems import ORBITKV
from benches.gpu.targets import (
    LEAST_PEER_SAMPLES,
    LEAST_SAMPLES,
    NOT_RUN,
    Verdict,
    judged,
    misses,
    restored_bytes,
)

OF_HICACHE = 1.02


def verdicts(rows: Rows) -> list[Verdict]:
    """All targets, also those that were not run."""
    return [*_ttft(rows, EAGER), *_ttft(rows, GRAPHS), *misses(rows), *restored_bytes(rows)]


def _ttft(rows: Rows, mode: str) -> Iterator[Verdict]:
    lengths = figures.ttft_lengths(rows, mode)
    if not lengths:
        yield Verdict(f"TTFT of a restore, {mode}", NOT_RUN)
    for tokens in lengths:
        name = f"TTFT of a restore, {mode}, {tokens} tokens, of HiCache's"
        ours, theirs = (figures.ttft(rows, mode, "restore", system, tokens) for system in (ORBITKV, HICACHE))
        counts = [found["n"] if found else 0 for found in (ours, theirs)]
        if ours and theirs and counts[0] >= LEAST_SAMPLES and counts[1] >= LEAST_PEER_SAMPLES:
            limit = OF_HICACHE * theirs["median"]
            yield judged(f"{name} {theirs['median']:.1f}", ours["median"], limit, "ms")
        else:
            yield Verdict(name, NOT_RUN, f"n = {counts[0]} and {counts[1]}")


SHOWN = Shown(modes=(EAGER, GRAPHS), hit="device-hit", verdicts=verdicts)
