"""What a run is to show, and what it showed: one verdict a line. Times are judged here and in no test."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benches.gpu import figures
from benches.gpu.model import QWEN3_8B
from benches.gpu.prompts import restorable_tokens
from benches.gpu.rows import Rows
from benches.gpu.settings import GIB
from benches.gpu.systems import NATIVE, OFFLOAD, ORBITKV, PEGAFLOW

LEAST_SAMPLES, LEAST_PEER_SAMPLES, LEAST_PAIRS = 9, 5, 6
# The connector's default, in milliseconds: how long restores may delay a step that decodes.
SYNC_MAX_MS = 4.0
# Of 16 GiB: what is registered before the first step is timed does not count.
LEAST_REGISTERED_BYTES = 15 * GIB
MET, MISSED, NOT_RUN = "met", "MISSED", "not run"


@dataclass(frozen=True)
class Verdict:
    """`figure` and `limit` are in the words of the table."""

    target: str
    verdict: str
    figure: str = ""
    limit: str = ""


def verdicts(rows: Rows) -> list[Verdict]:
    """All targets, also those that were not run."""
    found: list[Verdict] = []
    for mode in ("compiled", "eager"):
        found += _ttft(rows, mode)
    found += [*_inter_token(rows), *_worst_step(rows), *misses(rows)]
    found += [*_registration(rows), *_start(rows), *restored_bytes(rows), *_variants(rows)]
    return found


def judged(target: str, figure: float, limit: float, unit: str, *, at_least: bool = False) -> Verdict:
    """A figure beside its limit."""
    met = figure >= limit if at_least else figure <= limit
    sign = "≥" if at_least else "≤"
    return Verdict(target, MET if met else MISSED, f"{figure:.2f} {unit}", f"{sign} {limit:.2f} {unit}")


def _ttft(rows: Rows, mode: str) -> Iterator[Verdict]:
    lengths = figures.ttft_lengths(rows, mode)
    if not lengths:
        yield Verdict(f"TTFT of a restore, {mode}", NOT_RUN)
    for tokens in lengths:
        name = f"TTFT of a restore, {mode}, {tokens} tokens"
        ours = figures.ttft(rows, mode, "restore", ORBITKV, tokens)
        hit = figures.ttft(rows, mode, "hbm-hit", NATIVE, tokens)
        wire = figures.wire_gb_s(rows, "h2d")
        if ours is None or hit is None or wire is None:
            yield Verdict(name, NOT_RUN)
            continue
        transfer_ms = restorable_tokens(tokens) * QWEN3_8B.kv_bytes_per_token() / wire / 1e6
        limit = max(1.15 * transfer_ms + 3, hit["median"] + 4)
        verdict = judged(
            f"{name}: transfer {transfer_ms:.1f}, hit {hit['median']:.1f}", ours["median"], limit, "ms"
        )
        yield verdict if ours["n"] >= LEAST_SAMPLES else Verdict(name, NOT_RUN, f"n = {ours['n']}")
        peers = [figures.ttft(rows, mode, "restore", peer, tokens) for peer in (OFFLOAD, PEGAFLOW)]
        enough = [peer["median"] for peer in peers if peer is not None and peer["n"] >= LEAST_PEER_SAMPLES]
        if len(enough) == len(peers):
            yield judged(f"{name}: against the best peer", ours["median"], 1.02 * min(enough), "ms")
        else:
            yield Verdict(f"{name}: against the best peer", NOT_RUN, f"{len(enough)} of {len(peers)} peers")


def _inter_token(rows: Rows) -> Iterator[Verdict]:
    alone = figures.intervals(rows, "decode", "copies", background=False)
    beside = figures.intervals(rows, "decode", "copies", background=True)
    ways = [figures.copied_gb_s(rows, way) for way in ("restored", "saved")]
    for percent, factor in ((50, 1.05), (99, 1.2)):
        name = f"inter-token latency beside copies, p{percent}"
        if not alone or not beside or not all(ways):
            yield Verdict(name, NOT_RUN, "nothing was copied one way" if beside else "")
            continue
        limit = factor * figures.percentile(alone, percent)
        yield judged(name, figures.percentile(beside, percent), limit, "ms")
    name = "the same p99 beside requests that restore, against as many that hit in HBM"
    beside = figures.intervals(rows, "decode", "requests", background=True)
    hits = figures.intervals(rows, "decode", "requests-hits", background=True)
    copied = sum(row["restored_pages"] for row in rows.of("decode", kind="requests", background=True))
    if hits and beside and copied:
        yield judged(name, figures.percentile(beside, 99), 1.2 * figures.percentile(hits, 99), "ms")
    else:
        yield Verdict(name, NOT_RUN, "nothing was restored" if beside else "")


def _worst_step(rows: Rows) -> Iterator[Verdict]:
    name = "worst step with restores inside it"
    alone = figures.intervals(rows, "decode", "steps", background=False)
    beside = figures.intervals(rows, "decode", "steps", background=True)
    copied = sum(row["restored_pages"] for row in rows.of("decode", kind="steps", background=True))
    if not alone or not beside or not copied:
        yield Verdict(name, NOT_RUN, "nothing was restored" if beside else "")
    else:
        yield judged(name, max(beside), statistics.median(alone) + SYNC_MAX_MS + 2, "ms")
    hits = figures.intervals(rows, "decode", "steps-hits", background=True)
    name = "the same, longer than with requests that hit in HBM"
    if hits and beside and copied:
        yield judged(name, max(beside) - max(hits), SYNC_MAX_MS + 2, "ms")
    else:
        yield Verdict(name, NOT_RUN, "")


def misses(rows: Rows) -> Iterator[Verdict]:
    """Throughput beside that of the engine alone."""
    name = "throughput of misses, of that without a connector"
    ratio = figures.spread(figures.miss_ratios(rows))
    if ratio is None or ratio["n"] < LEAST_PAIRS:
        yield Verdict(name, NOT_RUN, f"{ratio['n']} pairs" if ratio else "")
        return
    verdict = judged(name, ratio["median"], 0.99, "x", at_least=True)
    figure = f"{ratio['median']:.3f} x ({ratio['min']:.3f}..{ratio['max']:.3f}, {ratio['n']} pairs)"
    yield replace(verdict, figure=figure)


def _registration(rows: Rows) -> Iterator[Verdict]:
    name = "longest delay of a step while 16 GiB are registered"
    alone = figures.intervals(rows, "registration", "steps", background=False)
    found = rows.of("registration", kind="steps", background=True)
    beside = figures.intervals(rows, "registration", "steps", background=True)
    registered = sum(row["registered_bytes"] for row in found)
    if not alone or not beside or registered < LEAST_REGISTERED_BYTES:
        yield Verdict(name, NOT_RUN, f"{registered / GIB:.1f} GiB were registered" if found else "")
        return
    usual = statistics.median(alone)
    steps = f"{registered / GIB:.1f} GiB; alone {usual:.1f}, longest {max(alone):.1f}"
    yield judged(f"{name} ({steps})", max(beside) - usual, 20, "ms")


def _start(rows: Rows) -> Iterator[Verdict]:
    name = "start of the engine, longer than without"
    ours, native = (
        [row["start_s"] for row in rows.of("registration", kind="start", system=system)]
        for system in (ORBITKV, NATIVE)
    )
    if ours and native:
        yield judged(name, statistics.median(ours) - statistics.median(native), 2, "s")
    else:
        yield Verdict(name, NOT_RUN)


def restored_bytes(rows: Rows) -> Iterator[Verdict]:
    """The byte gate."""
    name = "bytes restored and compared on the device"
    found = rows.of("byte-gate", kind="gate")
    restored = sum(row["bytes"] for row in found)
    if not restored:
        yield Verdict(name, NOT_RUN, "nothing came back" if found else "")
        return
    differing = sum(row["differing_bytes"] for row in found)
    control = all(row["control_blocks"] == row["blocks"] == row["distinct"] for row in found)
    met = restored >= 100 * GIB and differing == 0 and control
    figure = f"{restored / GIB:.1f} GiB, {differing} differ, control {'differs' if control else 'DOES NOT'}"
    yield Verdict(name, MET if met else MISSED, figure, "≥ 100 GiB, 0 differ")


def _variants(rows: Rows) -> Iterator[Verdict]:
    found = rows.of("byte-gate-variants")
    if not found:
        yield Verdict("bytes of other types and layouts", NOT_RUN)
    names = {str(row["variant"]): row["variant"] for row in found}
    for variant in names.values():
        of_it = [row for row in found if row["variant"] == variant and row["kind"] == "gate"]
        name = "bytes, " + ", ".join(f"{key} {value}" for key, value in variant.items())
        restored = sum(row["bytes"] for row in of_it)
        if not restored:
            why = next((row["reason"] for row in found if row["variant"] == variant and "reason" in row), "")
            yield Verdict(name, NOT_RUN, why.strip().splitlines()[-1][:60] if why else "nothing came back")
            continue
        differing = sum(row["differing_bytes"] for row in of_it)
        control = all(row["control_blocks"] == row["blocks"] for row in of_it)
        figure = f"{restored / GIB:.2f} GiB, {differing} differ"
        yield Verdict(
            name, MET if differing == 0 and control else MISSED, figure, "0 differ, control differs"
        )
