"""Settings, unsupported configurations, and the namespace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, SlidingWindowSpec

from orbitkv.engine.settings import Settings, SettingsError
from orbitkv.vllm import OrbitKVConnector


def test_defaults_and_environment() -> None:
    settings = Settings.parse({}, {"ORBITKV_SOCKET": "/run/x.sock"})
    assert (settings.socket, settings.load_mode, settings.sync_max_ms) == ("/run/x.sock", "auto", 4.0)
    assert Settings.parse({"socket": "/a"}, {"ORBITKV_SOCKET": "/b"}).socket == "/a"


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"lookup_wait": 1}, "did you mean 'lookup_wait_us'"),
        ({"load_mod": "sync"}, "did you mean 'load_mode'"),
        ({"load_mode": "fast"}, "load_mode is 'fast'; it must be one of auto, sync, async"),
        ({"sync_max_ms": -1}, "sync_max_ms is -1"),
        ({"lookup_wait_us": 1.5}, "whole number"),
        ({"lookup_deadline_ms": True}, "lookup_deadline_ms is True"),
        ({"copy_threads": 0}, "between 1 and 64"),
        (
            {"copy_method": "fast"},
            "must be one of auto, plain, rows, batch, kernel",
        ),
        ({"verify_restore": "sample:0"}, "verify_restore is 'sample:0'"),
        ({"admission_gate": "no"}, "must be true or false"),
        ({"socket": ""}, "non-empty"),
    ],
)
def test_settings_errors_name_value_and_fix(native: Any, mini: Any, extra: dict[str, Any], said: str) -> None:
    config = mini.vllm_config(kv_transfer_config__kv_connector_extra_config=extra)
    with pytest.raises(SettingsError, match=re.escape(said)):
        OrbitKVConnector(config, KVConnectorRole.SCHEDULER, mini.kv_cache_config())


def _sliding(cache: Any) -> None:
    old = cache.kv_cache_groups[0]
    spec = SlidingWindowSpec(
        block_size=4, num_kv_heads=2, head_size=8, dtype=torch.bfloat16, sliding_window=16
    )
    cache.kv_cache_groups = [KVCacheGroupSpec(old.layer_names, spec)]


def _two_groups(cache: Any) -> None:
    cache.kv_cache_groups = cache.kv_cache_groups * 2


UNSUPPORTED = [
    (
        {
            "parallel_config__tensor_parallel_size": 2,
            "parallel_config__distributed_executor_backend": "external_launcher",
        },
        None,
        "a scheduler of its own",
    ),
    (
        {"parallel_config__tensor_parallel_size": 2, "parallel_config__nnodes_within_dp": 2},
        None,
        "ranks are on 2 hosts",
    ),
    (
        {"model_config__enable_sleep_mode": True, "model_config__sleep_mode_backend": "criu"},
        None,
        "sleep_mode_backend is 'criu'",
    ),
    ({"parallel_config__use_ubatching": True}, None, "micro-batches are on"),
    ({"parallel_config__pipeline_parallel_size": 2}, None, "pipeline parallel size is 2"),
    ({"parallel_config__decode_context_parallel_size": 2}, None, "decode context parallel size is 2"),
    ({"model_config__is_encoder_decoder": True}, None, "encoder-decoder"),
    ({"lora_config": SimpleNamespace()}, None, "unset --enable-lora"),
    ({"speculative_config": SimpleNamespace()}, None, "speculative decoding"),
    ({"cache_config__kv_sharing_fast_prefill": True}, None, "kv_sharing_fast_prefill"),
    ({"cache_config__prefix_caching_hash_algo": "xxhash"}, None, "is 'xxhash', which is not known to"),
    ({"cache_config__prefix_caching_hash_algo": "xxhash_cbor"}, None, "set sha256_cbor or sha256"),
    ({"cache_config__enable_prefix_caching": False}, None, "set --enable-prefix-caching"),
    ({"cache_config__prefix_match_unit": 2}, None, "prefix_match_unit"),
    ({"kv_transfer_config__kv_load_failure_policy": "fail"}, None, "set it to 'recompute'"),
    ({"kv_transfer_config__kv_role": "kv_consumer"}, None, "kv_role is 'kv_consumer'; it must be 'kv_both'"),
    ({"kv_transfer_config__kv_role": "kv_producer"}, None, "kv_role is 'kv_producer'; it must be 'kv_both'"),
    ({"kv_transfer_config__kv_role": None}, None, "kv_role is None; it must be 'kv_both'"),
    ({}, _two_groups, "2 KV cache groups"),
    ({}, _sliding, "SlidingWindowSpec"),
]


@pytest.mark.parametrize(("changes", "change_cache", "said"), UNSUPPORTED)
def test_unsupported_is_served_without_the_cache(
    native: Any,
    mini: Any,
    manager: Any,
    lines: list[str],
    changes: dict[str, Any],
    change_cache: Any,
    said: str,
) -> None:
    config, cache = mini.vllm_config(**changes), mini.kv_cache_config()
    if change_cache is not None:
        change_cache(cache)
    sides = [
        OrbitKVConnector(config, role, cache) for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER)
    ]
    engine = mini.Engine(*sides)
    request = engine.add(mini.FakeRequest("a", list(range(18))))
    assert engine.match(request) == (0, False)
    table = engine.allocate(request, 0)
    engine.step(mini.output(new=[(request, table, 0, 18)]))
    assert engine.finish(request, table) == (False, None)
    assert engine.connector.reset_cache() is True
    assert manager.registrations == []
    (line,) = [line for line in lines if line.startswith("OrbitKV")]
    assert said in line


def test_supported_configuration_is_active(engine: Any, lines: list[str]) -> None:
    engine.step()
    engine.step()
    assert [line.split(":")[0] for line in lines] == ["OrbitKV active"]
    assert engine.connector.requires_kv_delivery is False


def namespace(mini: Any, environ: dict[str, str] | None = None, **changes: Any) -> str:
    from orbitkv.vllm.namespace import namespace_digest, namespace_fields

    return namespace_digest(
        namespace_fields(mini.vllm_config(**changes), mini.kv_cache_config(), environ or {})
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"model_config__dtype": torch.float16},
        {"parallel_config__tensor_parallel_size": 2},
        {"cache_config__cache_dtype": "fp8"},
        {"cache_config__prefix_caching_hash_algo": "sha256"},
        {"model_config__quantization": "awq"},
        {"model_config__seed": 1},
        {"model_config__hf_config": SimpleNamespace(to_dict=lambda: {"hidden_size": 32})},
        {"environ": {"ORBITKV_CACHE_SCOPE": "team-a"}},
        {"environ": {"PYTHONHASHSEED": "7"}},
    ],
)
def test_namespace_differs(native: Any, mini: Any, changes: dict[str, Any]) -> None:
    assert namespace(mini, **changes) != namespace(mini)


def test_namespace_differs_by_block_size(native: Any, mini: Any) -> None:
    from orbitkv.vllm.namespace import namespace_fields

    other = mini.kv_cache_config()
    object.__setattr__(other.kv_cache_groups[0].kv_cache_spec, "block_size", 8)
    fields = [namespace_fields(mini.vllm_config(), cache, {}) for cache in (mini.kv_cache_config(), other)]
    assert fields[0] != fields[1]


def test_namespace_is_equal_on_ranks_and_replicas(native: Any, mini: Any) -> None:
    changes = {
        "parallel_config__rank": 3,
        "kv_transfer_config__engine_id": "another",
        "model_config__hf_config": SimpleNamespace(
            to_dict=lambda: {"hidden_size": 16, "_name_or_path": "/x"}
        ),
    }
    assert namespace(mini, **changes) == namespace(mini)


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
@pytest.mark.parametrize("engine", ["fixed", "random", "without a word", "seeded"])
def test_case_a27_a_random_hash_seed_is_said(
    native: Any,
    mini: Any,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    engine: str,
) -> None:
    """Engines of other versions draw it, with or without saying how."""
    from vllm.v1.core import kv_cache_utils

    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if engine in ("random", "seeded"):
        monkeypatch.setattr(kv_cache_utils, "resolve_none_hash_seed", lambda _: os.urandom(32).hex())
    elif engine == "without a word":
        monkeypatch.delattr(kv_cache_utils, "resolve_none_hash_seed")
    if engine == "seeded":
        monkeypatch.setenv("PYTHONHASHSEED", "0")
    config = mini.vllm_config(cache_config__prefix_caching_hash_algo=algorithm)
    for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
        OrbitKVConnector(config, role, mini.kv_cache_config())
    said = [line for line in lines if "PYTHONHASHSEED=0" in line]
    assert len(said) == (1 if engine in ("random", "without a word") else 0), lines
    assert all("lost at a restart" in line for line in said)


def test_instance_token_comes_from_the_engine_id(native: Any, mini: Any, manager: Any) -> None:
    for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
        OrbitKVConnector(mini.vllm_config(), role, mini.kv_cache_config())
    OrbitKVConnector(mini.vllm_config(kv_transfer_config__engine_id="b"), role, mini.kv_cache_config())
    first, second, other = (entry["instance"] for entry in manager.registrations)
    assert first == second != other
    assert len(first) == 32


def test_each_tensor_parallel_rank_is_a_shard(native: Any, mini: Any, manager: Any) -> None:
    changes = {"parallel_config__tensor_parallel_size": 2, "parallel_config__world_size": 2}
    scheduler = OrbitKVConnector(
        mini.vllm_config(**changes), KVConnectorRole.SCHEDULER, mini.kv_cache_config()
    )
    workers = [
        OrbitKVConnector(
            mini.vllm_config(**changes, parallel_config__rank=rank),
            KVConnectorRole.WORKER,
            mini.kv_cache_config(),
        )
        for rank in (0, 1)
    ]
    for worker in workers:
        worker.register_kv_caches(mini.kv_tensors())
    assert [worker._worker._client.rank for worker in workers] == [0, 1]
    first, *others = manager.registrations
    assert (first["world_size"], first["groups"][0]["shard_count"]) == (2, 2)
    assert others == [first, first]
    for side in (scheduler, *workers):
        side.shutdown()


def _write_weights(directory: Path, fill: int) -> Path:
    directory.mkdir()
    header = json.dumps({"w": {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]}}).encode()
    body = bytearray(1 << 20)
    body[700_000:800_000] = bytes([fill]) * 100_000
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    return directory


def _identity(path: Path) -> dict[str, Any]:
    from orbitkv.engine.weights import model_identity

    return model_identity({}, str(path), None)


def test_same_configuration_other_weights_differ(tmp_path: Path) -> None:
    first, second = _write_weights(tmp_path / "a", 1), _write_weights(tmp_path / "b", 2)
    assert _identity(first) != _identity(second)
    assert _identity(first) == _identity(_write_weights(tmp_path / "c", 1))


def test_weights_that_cannot_be_identified_are_an_error(tmp_path: Path) -> None:
    from orbitkv.engine.weights import WeightsError

    with pytest.raises(WeightsError, match="no weight file"):
        _identity(tmp_path)
    (tmp_path / "x.safetensors").write_bytes((1 << 40).to_bytes(8, "little"))
    with pytest.raises(WeightsError, match="header of 1099511627776 bytes"):
        _identity(tmp_path)


def test_identity_is_equal_in_other_processes(tmp_path: Path) -> None:
    path = _write_weights(tmp_path / "a", 1)
    code = (
        "import sys; from pathlib import Path; from orbitkv.engine.weights import file_digest;"
        "print(file_digest(Path(sys.argv[1])))"
    )
    package = Path(sys.modules["orbitkv"].__file__).parents[1]
    told = subprocess.run(
        [sys.executable, "-c", code, str(path / "model.safetensors")],
        env={**os.environ, "PYTHONPATH": str(package), "PYTHONHASHSEED": "5"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.split()[-1] == _identity(path)["files"]["model.safetensors"]
