"""The Prometheus text format, as far as the demo reads it."""

from __future__ import annotations


def metric(text: str, name: str, labels: str = "") -> int:
    """Sum of a metric over its lines; only lines that contain `labels`."""
    total = 0.0
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.split("{")[0] == name and labels in series:
            total += float(value)
    return int(total)
