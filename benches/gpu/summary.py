"""What a run leaves: `summary.json`, `figures.json`, `manifest.json`, and the table that is printed last."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.gpu import figures
from benches.gpu.rows import Rows
from benches.gpu.targets import Verdict, verdicts

SUFFIX = "+suffix"


@dataclass(frozen=True)
class Shown:
    """What is summed up of an engine: its modes, of which the first is that of `summary.json`, what a hit in
    its own memory is called there, and what is judged."""

    modes: tuple[str, ...]
    hit: str
    verdicts: Callable[[Rows], list[Verdict]]


VLLM_SHOWN = Shown(modes=("compiled", "eager"), hit="hbm-hit", verdicts=verdicts)


def publish(rows: Rows, manifest: dict[str, Any], out: Path, shown: Shown = VLLM_SHOWN) -> str:
    """Writes the files and returns the table. Works on the rows of a run that was cut short as well.

    `summary.json` is a list of `{"system", "tokens", "ttft_ms_median", "ttft_ms_min", "ttft_ms_max", "n"}`
    of engines in the first mode; `figures.json` has the other modes, and the verdicts."""
    judged = shown.verdicts(rows)
    tables = [(mode, suffix) for mode in shown.modes for suffix in ("", SUFFIX)]
    times = {_title(*table): figures.ttft_systems(rows, *table, shown.hit) for table in tables}
    first = times.pop(shown.modes[0])
    others = {
        **times,
        "verdicts": [vars(verdict) for verdict in judged],
        "missing": [row for row in rows.all if row.get("kind") in ("missing", "failed")],
    }
    for name, content in (("summary", first), ("figures", others), ("manifest", manifest)):
        (out / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    lines = []
    for table in tables:
        lines += _times(rows, *table, shown.hit)
    lines += _decoding(rows)
    width = max(len(verdict.target) for verdict in judged)
    lines += ["", f"{'target':<{width}}  {'seen':<44} {'limit':<26} verdict"]
    for verdict in judged:
        line = f"{verdict.target:<{width}}  {verdict.figure:<44} {verdict.limit:<26} {verdict.verdict}"
        lines.append(line)
    table = "\n".join(lines)
    (out / "table.txt").write_text(table + "\n")
    return table


def _title(mode: str, suffix: str) -> str:
    return f"{mode}{', 10 % new tokens' if suffix else ''}"


def _times(rows: Rows, mode: str, suffix: str, hit: str) -> list[str]:
    entries = figures.ttft_systems(rows, mode, suffix, hit)
    if not entries:
        return []
    lengths = figures.ttft_lengths(rows, mode)
    title = f"TTFT ms, {_title(mode, suffix)}: median (least..most, n)"
    lines = ["", title, f"{'':<14}" + "".join(f"{tokens:>28}" for tokens in lengths)]
    for system in dict.fromkeys(entry["system"] for entry in entries):
        cells = []
        for tokens in lengths:
            found = [entry for entry in entries if (entry["system"], entry["tokens"]) == (system, tokens)]
            cells.append(_cell(found[0]) if found else "-")
        lines.append(f"{system:<14}" + "".join(f"{cell:>28}" for cell in cells))
    return lines


def _cell(entry: dict[str, Any]) -> str:
    low, high = entry["ttft_ms_min"], entry["ttft_ms_max"]
    return f"{entry['ttft_ms_median']:.1f} ({low:.1f}..{high:.1f}, {entry['n']})"


def _decoding(rows: Rows) -> list[str]:
    lines = []
    for kind in ("copies", "requests", "requests-hits", "steps", "steps-hits"):
        for background in (False, True):
            values = figures.intervals(rows, "decode", kind, background)
            if not values:
                continue
            p50, p99 = (figures.percentile(values, percent) for percent in (50, 99))
            beside = f"beside {_copied(rows, kind)}" if background else "alone"
            lines.append(
                f"decoding ({kind}), {beside}: p50 {p50:.2f} p99 {p99:.2f} worst {max(values):.2f} ms"
            )
    for row in rows.of("shared-prefix")[:1]:
        copied = f"{row['restored_bytes'] / 1e6:.0f} MB"
        lines.append(
            f"{row['requests']} requests of one prefix of {row['tokens']} tokens at once: {copied} restored,"
        )
        lines[-1] += f" {row['copies']} times the prefix"
    return ["", *lines] if lines else []


def _copied(rows: Rows, kind: str) -> str:
    if kind == "copies":
        restored, saved = (figures.copied_gb_s(rows, way) for way in ("restored", "saved"))
        return f"{restored:.1f} GB/s restored and {saved:.1f} GB/s saved"
    found = rows.of("decode", kind=kind, background=True)
    return f"{sum(row['background_gb_s'] for row in found) / len(found):.1f} GB/s"
