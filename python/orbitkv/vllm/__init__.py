"""Adapter of OrbitKV to vLLM: a KV connector for `--kv-transfer-config`.

    {"kv_connector": "OrbitKVConnector", "kv_connector_module_path": "orbitkv.vllm",
     "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}

`orbitkv run vllm serve MODEL` writes this configuration itself.
"""

from __future__ import annotations

from orbitkv.vllm.connector import OrbitKVConnector

__all__ = ["OrbitKVConnector"]
