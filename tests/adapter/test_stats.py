"""What the connector counts, and how it reaches the engine's log line and `/metrics`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from orbitkv.vllm import OrbitKVConnector
from orbitkv.vllm.stats import COUNTERS, GAUGES, Increments

TOKENS = 19  # four full blocks and some
PAGES = 4
PAGE_BYTES = 3 * 4 * 2 * 2 * 8 * 2  # layers, tokens, heads, K and V, head size, bytes a number


def restore(engine: Any, mini: Any, name: str = "b", tokens: int = TOKENS) -> None:
    """One request that finds its prefix, restored in the step that computes its rest."""
    request = engine.add(mini.FakeRequest(name, list(range(tokens))))
    external, is_async = engine.match(request)
    assert (external, is_async) == (PAGES * 4, False)
    table = engine.allocate(request, external)
    engine.step(mini.output(new=[(request, table, external, tokens - external)]), has_sync=True)
    engine.finish(request, table)


def counted(engine: Any, *names: str) -> list[int | float]:
    return [engine.counts[name] for name in names]


def test_a_save_and_a_restore_are_counted_once(engine: Any, mini: Any) -> None:
    engine.compute_and_save(mini.FakeRequest("a", list(range(TOKENS))))
    assert counted(engine, "save_pages", "save_bytes") == [PAGES, PAGES * PAGE_BYTES]
    assert counted(engine, "load_tokens", "load_pages", "load_bytes", "load_seconds") == [0, 0, 0, 0]
    assert counted(engine, "lookups", "lookup_misses", "lookup_timeouts") == [1, 1, 0]
    restore(engine, mini)
    engine.step()
    assert counted(engine, "load_tokens", "load_pages", "load_bytes") == [16, PAGES, PAGES * PAGE_BYTES]
    assert counted(engine, "lookups", "lookup_misses") == [2, 1]
    assert engine.counts["load_seconds"] == pytest.approx(1e-3)
    assert engine.counts["save_seconds"] == pytest.approx(PAGES * 1e-5)
    assert set(engine.counts) <= {*COUNTERS, *GAUGES}
    # Steps that count nothing hand nothing over.
    assert engine.step().kv_connector_stats is None
    assert engine.connector.get_kv_connector_stats() is None


def test_pages_that_did_not_land_are_failed_ones(engine: Any, mini: Any, manager: Any) -> None:
    engine.compute_and_save(mini.FakeRequest("a", list(range(TOKENS))))
    manager.fail_blocks = {engine.pool.free[1]}
    restore(engine, mini)
    assert counted(engine, "load_failed_pages", "load_pages", "load_tokens") == [1, PAGES - 1, 12]


def test_counts_of_a_save_that_ended_last_are_fetched(engine: Any, mini: Any) -> None:
    """An idle engine steps once more after the last save has ended: what its commit counted comes with it."""
    request = engine.add(mini.FakeRequest("a", list(range(TOKENS))))
    engine.match(request)
    table = engine.allocate(request, 0)
    engine.step(mini.output(new=[(request, table, 0, TOKENS)]))
    engine.finish(request, table)
    for _ in range(10):
        if not engine.connector.has_pending_push_work():
            break
        engine.step()
    assert not engine.connector.has_pending_push_work(), "the engine never rests"
    assert engine.counts["save_pages"] == PAGES


def test_a_lookup_without_an_answer_is_a_timeout(
    make_engine: Callable[..., Any], mini: Any, manager: Any
) -> None:
    engine = make_engine(lookup_deadline_ms=0)
    manager.hold_queries = True
    request = engine.add(mini.FakeRequest("a", list(range(TOKENS))))
    assert engine.match(request) == (0, False)
    assert engine.match(request) == (0, False)
    engine.step()
    assert counted(engine, "lookups", "lookup_misses", "lookup_timeouts") == [1, 1, 1]


def test_scheduler_side_counts(engine: Any, mini: Any, manager: Any) -> None:
    manager.refuse = True
    request = engine.add(mini.FakeRequest("a", list(range(TOKENS))))
    engine.match(request)
    table = engine.allocate(request, 0)
    engine.step(mini.output(new=[(request, table, 0, TOKENS)]))
    engine.step()
    manager.reconnects = 1
    engine.step()
    assert counted(engine, "save_refused_pages", "save_pages") == [PAGES, 0]
    assert engine.counts["reconnects"] == 2, "one of each side"


def test_gate_denials(make_engine: Callable[..., Any], mini: Any) -> None:
    engine = make_engine(num_blocks=10, load_mode="async")
    engine.compute_and_save(mini.FakeRequest("a", list(range(TOKENS))))
    loading = engine.add(mini.FakeRequest("b", list(range(TOKENS))))
    external, is_async = engine.match(loading)
    assert is_async
    engine.allocate(loading, external, tokens=external)
    assert engine.match(engine.add(mini.FakeRequest("c", list(range(100, 140))))) == (None, False)
    engine.step()
    assert engine.counts["gate_denials"] == 1


def test_increments_of_totals() -> None:
    increments = Increments()
    assert increments.take({"a": 2, "b": 0}) == {"a": 2}
    assert increments.take({"a": 2, "b": 0}) == {}
    assert increments.take({"a": 5, "b": 1}) == {"a": 3, "b": 1}
    assert increments.take({"a": 5, "b": 1, "c": 2}) == {"c": 2}


def test_a_disabled_or_broken_connector_counts_nothing(
    native: Any, mini: Any, manager: Any, make_engine: Callable[..., Any]
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
        off = OrbitKVConnector(mini.vllm_config(lora_config=object()), role, mini.kv_cache_config())
        assert off.get_kv_connector_stats() is None
    engine = make_engine()
    manager.raise_in.add("query")
    engine.match(engine.add(mini.FakeRequest("a", list(range(TOKENS)))))
    assert engine.connector.get_kv_connector_stats() is None


def test_stats_travel_aggregate_and_reduce() -> None:
    """Worker to scheduler by pickle, then as plain data to the front end, summed at each stop."""
    first = OrbitKVConnector.build_kv_connector_stats({"load_pages": 2, "load_seconds": 0.25})
    second = OrbitKVConnector.build_kv_connector_stats({"load_pages": 3, "lookups": 1})
    summed = pickle.loads(pickle.dumps(first)).aggregate(second)
    assert summed.data == {"load_pages": 5, "load_seconds": 0.25, "lookups": 1}
    assert list(summed.reduce().items()) == [
        ("orbitkv_load_pages", 5),
        ("orbitkv_load_seconds", 0.25),
        ("orbitkv_lookups", 1),
    ]
    assert not summed.is_empty()
    summed.reset()
    assert summed.is_empty()
    assert OrbitKVConnector.build_kv_connector_stats().is_empty()
    # Of speeds the newest stands.
    first = OrbitKVConnector.build_kv_connector_stats({"copy_bytes_per_second": 5.0, "lookups": 1})
    second = OrbitKVConnector.build_kv_connector_stats({"copy_bytes_per_second": 3.0, "lookups": 1})
    assert first.aggregate(second).reduce() == {"orbitkv_lookups": 2, "orbitkv_copy_bytes_per_second": 3.0}
    # The front end's other readers keep what they were given.
    data = {"load_pages": 1}
    OrbitKVConnector.build_kv_connector_stats(data).aggregate(second)
    assert data == {"load_pages": 1}


def test_ranks_are_summed_by_the_engine_and_tokens_counted_once(native: Any, mini: Any) -> None:
    """By vLLM's own aggregation of its workers' outputs, of which one has nothing to say."""
    from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

    ranks = {"parallel_config__tensor_parallel_size": 3, "parallel_config__world_size": 3}
    outputs = []
    for rank in range(3):
        config = mini.vllm_config(**ranks, parallel_config__rank=rank)
        worker = OrbitKVConnector(config, KVConnectorRole.WORKER, mini.kv_cache_config())
        worker.register_kv_caches(mini.kv_tensors())
        client = worker._worker._client
        totals = client.stats()
        if rank < 2:
            totals |= {"restored_pages": 5, "restored_bytes": 500}
        client.stats = totals.copy
        connector = KVConnectorOutput(kv_connector_stats=worker.get_kv_connector_stats())
        outputs.append(ModelRunnerOutput([], {}, kv_connector_output=connector))
    outputs.reverse()
    whole = KVOutputAggregator(expected_finished_count=3).aggregate(outputs)
    assert whole.kv_connector_output.kv_connector_stats.data == {
        "load_pages": 10,
        "load_bytes": 1000,
        "load_tokens": 20,
    }


def test_prometheus_counters_per_engine() -> None:
    registry = CollectorRegistry()
    types = {kind: bind(kind, registry) for kind in (Counter, Gauge, Histogram)}
    labels = {0: ["tiny", "0"], 1: ["tiny", "1"]}
    config = SimpleNamespace(kv_transfer_config=None)
    metrics = OrbitKVConnector.build_prom_metrics(config, types, ["model_name", "engine"], labels)

    def sample(name: str, engine: str) -> float | None:
        return registry.get_sample_value(
            f"vllm:orbitkv_{name}_total", {"model_name": "tiny", "engine": engine}
        )

    assert [sample(name, "1") for name in COUNTERS] == [0.0] * len(COUNTERS)
    metrics.observe({"load_pages": 2, "load_seconds": 0.5, "of_another_version": 1}, engine_idx=1)
    metrics.observe({"load_pages": 1}, engine_idx=1)
    assert (sample("load_pages", "1"), sample("load_seconds", "1")) == (3.0, 0.5)
    assert sample("load_pages", "0") == 0.0
    for speed in (5.0, 3.0):
        metrics.observe({"copy_bytes_per_second": speed}, engine_idx=1)
    labels = {"model_name": "tiny", "engine": "1"}
    assert registry.get_sample_value("vllm:orbitkv_copy_bytes_per_second", labels) == 3.0


def bind(kind: type, registry: CollectorRegistry) -> Callable[..., Any]:
    """A metric class that registers in a registry of the test."""
    return lambda **options: kind(**options, registry=registry)
