"""`ttft.png`: time to the first token by prefix length, cold and restored."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.client import Answer

# In the order of the curves.
COLORS = ("#7a7f87", "#0b7a75", "#b3541e", "#5a4fb0")
INK = "#2b2f33"
# Least distance of two labels, as a share of the height of the plot: a line of text fits.
LABEL_GAP = 0.06


@dataclass(frozen=True)
class Curve:
    """Answers of one round under the name that a reader is shown."""

    label: str
    answers: Sequence[Answer]


def by_length(answers: Sequence[Answer]) -> dict[int, list[float]]:
    """Times to the first token in milliseconds, by prefix length."""
    times: dict[int, list[float]] = defaultdict(list)
    for answer in answers:
        times[answer.request.prefix_tokens].append(answer.ttft_ms)
    return dict(sorted(times.items()))


def label_heights(values: Sequence[float], gap: float) -> list[float]:
    """Where to write each value's label: at the value, or higher where others would be written over."""
    heights = list(values)
    below = -gap
    for index in sorted(range(len(values)), key=lambda index: values[index]):
        heights[index] = below = max(values[index], below + gap)
    return heights


def draw(path: Path, engine: str, curves: Sequence[Curve]) -> None:
    """Writes the plot: medians as lines, the range of all samples as bands, each sample as a dot."""
    # Its font cache belongs to the results, and no display is asked for.
    os.environ.setdefault("MPLCONFIGDIR", str(path.parent / "matplotlib"))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.6), dpi=150)
    for curve, color in zip(curves, COLORS, strict=False):
        times = by_length(curve.answers)
        lengths = list(times)
        medians = [statistics.median(samples) for samples in times.values()]
        low, high = [min(samples) for samples in times.values()], [max(samples) for samples in times.values()]
        axes.fill_between(lengths, low, high, color=color, alpha=0.18, linewidth=0)
        axes.plot(lengths, medians, color=color, linewidth=2, marker="o", markersize=5)
        for length, samples in times.items():
            axes.scatter([length] * len(samples), samples, color=color, s=9, alpha=0.5, linewidth=0)
    axes.set_ylim(bottom=0)
    ends = [statistics.median(list(by_length(curve.answers).values())[-1]) for curve in curves]
    heights = label_heights(ends, LABEL_GAP * axes.get_ylim()[1])
    lengths = list(by_length(curves[0].answers))
    for curve, color, end, height in zip(curves, COLORS, ends, heights, strict=False):
        text = f"{end:.0f} ms {curve.label}"
        axes.text(lengths[-1] + 40, height, text, color=color, va="center", weight="bold")
    axes.set_xticks(lengths)
    axes.set_xlim(min(lengths) - 60, max(lengths) * 1.55)
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
