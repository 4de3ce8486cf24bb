"""What the connector counts for vLLM's own log line and `/metrics`.

Both sides hand over what was added since the last step; vLLM adds up ranks, sides and steps. Totals live in
the native client and in plain counters, so that a step costs a few atomic reads, and nothing where none has
changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)
from vllm.v1.metrics.utils import create_metric_per_engine

PREFIX = "orbitkv_"
# Counter to its documentation. Prometheus names are `vllm:orbitkv_NAME_total`. Every rank counts its part of
# a page as one; tokens are counted by the first rank alone.
COUNTERS = {
    "load_tokens": "Tokens whose KV was restored from the OrbitKV cache manager.",
    "load_pages": "Pages restored, summed over ranks.",
    "load_bytes": "Bytes of KV restored, summed over ranks.",
    "load_seconds": "Seconds from the order to the end of restores, summed over restores and ranks.",
    "load_failed_pages": "Pages of restores that did not land and were recomputed, summed over ranks.",
    "load_bad_pages": "The part of the failed pages whose checksum did not match.",
    "save_pages": "Pages copied to the OrbitKV cache manager and committed, summed over ranks.",
    "save_bytes": "Bytes of KV saved, summed over ranks.",
    "save_seconds": "Seconds from the order to the end of copies of saves, summed over pages and ranks.",
    "save_aborted_pages": "Pages of saves that were begun and given up, summed over ranks.",
    "save_refused_pages": "Pages for which the cache manager had no slot.",
    "save_overtaken_pages": "Pages whose block the engine reused before they could be saved.",
    "lookups": "Lookups of requests in the OrbitKV cache manager.",
    "lookup_misses": "Lookups that found nothing, for whatever reason.",
    "lookup_timeouts": "The part of the misses that ran into lookup_deadline_ms.",
    "preparations": "Waiting requests whose pages were asked for ahead, and held (ORBITKV_PREPARE_REQUESTS).",
    "preparations_claimed": "The part of the preparations that a lookup found alive and took over.",
    "warm_ups": "Waiting requests whose pages were asked for ahead, without a hold (ORBITKV_QUEUE_WARMUP).",
    "refused_slow": "Lookups of which pages were recomputed, as restoring them was estimated to be slower.",
    "refused_slow_pages": "Pages that could have been restored and were recomputed for that reason.",
    "slow_probes": "Lookups that were let through all the same, to see whether restores are still slow.",
    "shared_restores": "Requests that waited for another's restore and found its pages in the engine.",
    "shared_tokens": "Tokens of the pages they found there, which were not restored once more.",
    "gate_denials": "Times the admission gate put a request off in favour of a restore under way.",
    "reconnects": "Connections to the cache manager that replaced a lost one, of all processes.",
}

# What the scheduler side measures, to its documentation. `vllm:orbitkv_NAME`; absent while unknown.
GAUGES = {
    "prefill_tokens_per_second": "Prompt tokens computed a second, a moving average of the engine's steps.",
    "copy_bytes_per_second": "Bytes that a rank restores from memory a second, a moving average.",
    "tier_read_bytes_per_second": "Bytes read from the slower tier a second, for all lookups at once.",
}

# Counter to the total of the native worker client behind it, and what one of that counts for.
_OF_WORKER = {
    "load_pages": ("restored_pages", 1),
    "load_bytes": ("restored_bytes", 1),
    "load_seconds": ("restore_us", 1e-6),
    "load_failed_pages": ("failed_pages", 1),
    "load_bad_pages": ("bad_pages", 1),
    "save_pages": ("saved_pages", 1),
    "save_bytes": ("saved_bytes", 1),
    "save_seconds": ("save_us", 1e-6),
    "save_aborted_pages": ("aborted_pages", 1),
    "reconnects": ("reconnects", 1),
}


def worker_counts(grown: Mapping[str, int], page_tokens: int) -> dict[str, int | float]:
    """What one rank has counted, from what its client's totals have grown by; each page restored there stands
    for `page_tokens` tokens."""
    counts = {name: grown[source] * unit for name, (source, unit) in _OF_WORKER.items() if source in grown}
    if page_tokens and "restored_pages" in grown:
        counts["load_tokens"] = grown["restored_pages"] * page_tokens
    return counts


class OrbitKVStats(KVConnectorStats):
    """Increments by counter name, names without one are zero; and the newest measurements."""

    def reset(self) -> None:
        """Forgets everything."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> OrbitKVStats:
        """Adds the increments of another rank, side or step. Of what is measured, the later one stands."""
        for name, value in other.data.items():
            self.data[name] = value if name in GAUGES else self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """What the log line says: the sums, in the order of `COUNTERS`, and the newest speeds."""
        names = (*COUNTERS, *GAUGES)
        return {PREFIX + name: _short(self.data[name]) for name in names if self.data.get(name)}

    def is_empty(self) -> bool:
        """Nothing was counted."""
        return not any(self.data.values())


def _short(value: int | float) -> int | float:
    return round(value, 4) if isinstance(value, float) else value


class Increments:
    """Turns totals into what was added since the last call."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def take(self, totals: dict[str, int]) -> dict[str, int]:
        """Totals that have changed, by how much. The object is kept: hand over a new one at each call."""
        # Most steps move no page.
        if totals == self._seen:
            return {}
        before, self._seen = self._seen, totals
        changes = {name: value - before.get(name, 0) for name, value in totals.items()}
        return {name: change for name, change in changes.items() if change}


class OrbitKVPromMetrics(KVConnectorPromMetrics):
    """The same counters on `/metrics` of the engine, labelled as vLLM labels its own."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: create_metric_per_engine(
                self._counter_cls(
                    name=f"vllm:{PREFIX}{name}", documentation=documentation, labelnames=labelnames
                ),
                per_engine_labelvalues,
            )
            for name, documentation in COUNTERS.items()
        }
        self._gauges = {
            name: create_metric_per_engine(
                self._gauge_cls(
                    name=f"vllm:{PREFIX}{name}", documentation=documentation, labelnames=labelnames
                ),
                per_engine_labelvalues,
            )
            for name, documentation in GAUGES.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds the increments of one step."""
        for name, counters in self._counters.items():
            if value := transfer_stats_data.get(name):
                counters[engine_idx].inc(value)
        for name, gauges in self._gauges.items():
            if (value := transfer_stats_data.get(name)) is not None:
                gauges[engine_idx].set(value)
