"""What the adapter counts, in the engine's own `/metrics` (`--enable-metrics`).

SGLang's processes share their metrics through files of `prometheus_client`, in a directory that it names in
the environment before schedulers start. Totals live in the native client, so that a step costs a few atomic
reads, and nothing more where none has changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

PREFIX = "sglang:orbitkv_"
# Counter to the total of the native worker client behind it, what one of that counts for, and documentation.
# Every rank counts its part of a page as one.
COUNTERS: dict[str, tuple[str, float, str]] = {
    "load_pages": ("restored_pages", 1, "Pages restored."),
    "load_bytes": ("restored_bytes", 1, "Bytes of KV restored."),
    "load_seconds": ("restore_us", 1e-6, "Seconds from the order to the end of restores, summed over them."),
    "load_failed_pages": ("failed_pages", 1, "Pages of restores that did not land."),
    "load_bad_pages": ("bad_pages", 1, "Pages that were not promised, as their checksum did not match."),
    "load_verified_pages": ("verified_pages", 1, "Pages whose checksum was compared."),
    "save_pages": ("saved_pages", 1, "Pages copied to the OrbitKV cache manager and committed."),
    "save_bytes": ("saved_bytes", 1, "Bytes of KV saved."),
    "save_seconds": ("save_us", 1e-6, "Seconds from the order to the end of copies of saves, summed."),
    "save_aborted_pages": ("aborted_pages", 1, "Pages of saves that were begun and given up."),
    "reconnects": ("reconnects", 1, "Connections to the cache manager that replaced a lost one."),
}
# Set by SGLang when its metrics are on.
DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """The counters of one rank; none where the engine's metrics are off."""

    def __init__(self, rank: int, environ: Mapping[str, str] = os.environ) -> None:
        self._seen: dict[str, int] = {}
        self._counters: dict[str, Any] = {}
        if not environ.get(DIRECTORY_VARIABLE):
            return
        # It reads the variable when it is imported.
        from prometheus_client import Counter

        for name, (_, _, text) in COUNTERS.items():
            counter = Counter(f"{PREFIX}{name}", text, labelnames=["tp_rank"])
            self._counters[name] = counter.labels(tp_rank=str(rank))

    def take(self, totals: dict[str, int]) -> None:
        """Adds what the client's totals have grown by. Most steps move no page."""
        if not self._counters or totals == self._seen:
            return
        for name, counter in self._counters.items():
            source, unit, _ = COUNTERS[name]
            counter.inc((totals.get(source, 0) - self._seen.get(source, 0)) * unit)
        self._seen = totals
