"""Where the time of a request goes: what the engine core does from its arrival to its first token, of hits in
HBM and of restores, beside hits of an engine without a connector. And where that of many new prompts goes,
all of which are saved."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from benches.gpu import marks
from benches.gpu.growth import grow
from benches.gpu.prompts import BLOCK_TOKENS, restorable_tokens
from benches.gpu.run_context import Run
from benches.gpu.settings import GIB
from benches.gpu.systems import NATIVE, ORBITKV, System

PART = "timeline"
ESTIMATE_S = 165
LENGTHS = (1024, 8192, 32768)
SAMPLES = 9
POOL_BYTES = 8 * GIB
MISS_PROMPTS, MISS_TOKENS, MISS_OUTPUT, MISS_ROUNDS = 64, 2048, 32, 2
# Longer steps compute prompts; in the others every request decodes.
LONG_STEP_MS = 50.0


def measure(run: Run) -> None:
    """Rows of marks: when each begins and ends, in ms after the request was made."""
    settings = run.settings(is_open=True)
    with run.started(PART, [name for name in (NATIVE, ORBITKV) if name in run.systems], settings) as systems:
        for system in systems:
            system.engine.call("ask", run.seeds.new(run.tokens(4096)), 4, within_s=300)
            if system.name == ORBITKV:
                grow(system, POOL_BYTES)
            system.engine.call("rpc", marks.install, system.name == ORBITKV, not run.is_dry_run)
        for length in LENGTHS:
            for system in systems:
                _measure_length(run, system, run.tokens(length))
        for number in range(MISS_ROUNDS):
            for system in systems:
                _measure_misses(run, system, number)


def _measure_length(run: Run, system: System, tokens: int) -> None:
    wake = run.seeds.new(BLOCK_TOKENS // 2)
    prompt = run.seeds.new(tokens)
    system.engine.call("ask", prompt, within_s=300)
    system.wait_saved(patiently=True)
    kinds = ("hbm-hit",) if system.name == NATIVE else ("restore", "hbm-hit")
    taken: dict[str, list[list[tuple[str, float, float]]]] = {kind: [] for kind in kinds}
    for _ in range(SAMPLES):
        for kind in kinds:
            if kind == "restore":
                system.engine.call("reset")
            system.engine.call("ask", wake)
            system.engine.call("rpc", marks.take)
            answer = system.engine.call("ask", prompt, within_s=300)
            system.wait_saved()
            found = system.engine.call("rpc", marks.take)
            if answer["cached"] >= restorable_tokens(tokens):
                taken[kind].append(_relative(found, answer))
    for kind, samples in taken.items():
        _add(run, system, tokens, kind, samples)


def _measure_misses(run: Run, system: System, number: int) -> None:
    """A row for each mark: how often it came while prompts were computed, its time in all and at most."""
    prompts = [run.seeds.new(run.tokens(MISS_TOKENS)) for _ in range(MISS_PROMPTS)]
    system.engine.call("rpc", marks.take)
    result = system.engine.call("ask_all", prompts, MISS_OUTPUT, within_s=300)
    spans: dict[str, list[float]] = {}
    ends: list[float] = []
    for name, begun, ended in system.engine.call("rpc", marks.take):
        spans.setdefault(name, []).append((ended - begun) * 1000)
        if name == "update":
            ends.append(ended)
    for before, after in pairwise(sorted(ends)):
        took_ms = (after - before) * 1000
        spans.setdefault("long steps" if took_ms > LONG_STEP_MS else "short steps", []).append(took_ms)
    system.wait_saved()
    run.say(f"{PART}: {system.name}, misses, {result['seconds']:.3f} s")
    for name, times in sorted(spans.items(), key=lambda item: -sum(item[1])):
        total, most = round(sum(times), 1), round(max(times), 2)
        values = {"mark": name, "total_ms": total, "longest_ms": most, "n": len(times)}
        values["median_ms"] = round(median(times), 3)
        seconds = round(result["seconds"], 3)
        run.rows.add(PART, system=system.name, kind="misses", round=number, seconds=seconds, **values)
        most_and_half = f"{most:9.2f} at most {values['median_ms']:9.3f} in the middle"
        run.say(f"  {total:9.1f} in all {most_and_half}  {name} (n={len(times)})")


def _relative(found: list[Any], answer: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Marks of one request, numbered where one comes several times, in ms after it was made."""
    counts: dict[str, int] = {}
    result = []
    for name, begun, ended in sorted(found, key=lambda mark: mark[1]):
        if not answer["begun"] <= begun <= answer["begun"] + answer["ms"] / 1000:
            continue
        counts[name] = counts.get(name, 0) + 1
        named = name if counts[name] == 1 else f"{name} ({counts[name]})"
        result.append((named, (begun - answer["begun"]) * 1000, (ended - answer["begun"]) * 1000))
    result.append(("answer", 0.0, answer["ms"]))
    return result


def _add(run: Run, system: System, tokens: int, kind: str, samples: list[Any]) -> None:
    """A row for each mark that at least half of the samples have: medians, and n."""
    names = dict.fromkeys(name for sample in samples for name, _, _ in sample)
    rows = []
    for name in names:
        spans = [(begun, ended) for sample in samples for mark, begun, ended in sample if mark == name]
        if len(spans) * 2 >= len(samples):
            rows.append((name, median(s[0] for s in spans), median(s[1] for s in spans), len(spans)))
    run.say(f"{PART}: {system.name}, {kind}, {tokens} tokens, {len(samples)} samples")
    for name, begun, ended, count in sorted(rows, key=lambda row: row[1]):
        values = {"mark": name, "begin_ms": round(begun, 3), "end_ms": round(ended, 3), "n": count}
        run.rows.add(PART, system=system.name, tokens=tokens, kind=kind, **values)
        run.say(f"  {begun:9.3f} {ended:9.3f} {ended - begun:9.3f}  {name} (n={count})")
