"""`ttft.png`: time to the first token by prefix length, cold and restored."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from demo.client import Answer

COLD, RESTORED = "#7a7f87", "#0b7a75"
INK = "#2b2f33"


def by_length(answers: Sequence[Answer]) -> dict[int, list[float]]:
    """Times to the first token in milliseconds, by prefix length."""
    times: dict[int, list[float]] = defaultdict(list)
    for answer in answers:
        times[answer.request.prefix_tokens].append(answer.ttft_ms)
    return dict(sorted(times.items()))


def draw(path: Path, engine: str, cold: Sequence[Answer], restored: Sequence[Answer]) -> None:
    """Writes the plot: medians as lines, the range of all samples as bands, each sample as a dot."""
    # Its font cache belongs to the results, and no display is asked for.
    os.environ.setdefault("MPLCONFIGDIR", str(path.parent / "matplotlib"))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.6), dpi=150)
    for label, color, answers in (("computed", COLD, cold), ("restored by OrbitKV", RESTORED, restored)):
        times = by_length(answers)
        lengths = list(times)
        medians = [statistics.median(samples) for samples in times.values()]
        low, high = [min(samples) for samples in times.values()], [max(samples) for samples in times.values()]
        axes.fill_between(lengths, low, high, color=color, alpha=0.18, linewidth=0)
        axes.plot(lengths, medians, color=color, linewidth=2, marker="o", markersize=5)
        for length, samples in times.items():
            axes.scatter([length] * len(samples), samples, color=color, s=9, alpha=0.5, linewidth=0)
        axes.annotate(
            f"{label}\n{medians[-1]:.0f} ms",
            (lengths[-1], medians[-1]),
            xytext=(10, 0),
            textcoords="offset points",
            color=color,
            va="center",
            fontweight="bold",
        )
    lengths = list(by_length(cold))
    axes.set_xticks(lengths)
    axes.set_xlim(min(lengths) - 60, max(lengths) * 1.32)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("prefix length (tokens)", color=INK)
    axes.set_ylabel("time to first token (ms)", color=INK)
    axes.grid(axis="y", color="#dde1e5", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK)
    figure.text(
        0.01,
        0.965,
        "Time to first token, one request at a time",
        fontsize=13,
        color=INK,
        va="top",
        weight="bold",
    )
    figure.text(
        0.01,
        0.905,
        f"{engine} on CPU, tiny random model; line: median, band: all samples",
        fontsize=9,
        color="#5b6168",
        va="top",
    )
    figure.tight_layout(rect=(0, 0, 1, 0.88))
    figure.savefig(path)
    pyplot.close(figure)
