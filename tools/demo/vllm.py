"""vLLM in the demo."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.engine import EngineCounters, Usage
from demo.metrics import metric
from demo.settings import ADAPTER, BLOCK_TOKENS, ENGINE_BLOCKS, MAX_MODEL_LEN, OUTPUT_TOKENS

MODEL_NAME = "tiny"


class VllmStream:
    """Each event has the tokens that are new."""

    def tokens(self, event: Mapping[str, Any]) -> Sequence[int]:
        return [token for choice in event["choices"] for token in choice.get("token_ids") or []]

    def usage(self, event: Mapping[str, Any]) -> Usage | None:
        usage = event.get("usage")
        if not usage:
            return None
        details = usage.get("prompt_tokens_details") or {}
        return Usage(usage["prompt_tokens"], details.get("cached_tokens") or 0)


class Vllm:
    """`vllm serve`."""

    name = "vllm"
    programs = ("vllm",)
    environment: Mapping[str, str] = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    path = "/v1/completions"

    def __init__(self, adapter: Mapping[str, Any] = ADAPTER) -> None:
        self._connector = {
            "kv_connector": "OrbitKVConnector",
            "kv_connector_extra_config": dict(adapter),
        }

    def command(self, programs: Path, model: Path, host: str, port: int) -> list[object]:
        line: list[object] = ["vllm", "serve", model, "--served-model-name", MODEL_NAME]
        line += ["--host", host, "--port", port, "--enforce-eager", "--enable-prompt-tokens-details"]
        # In bfloat16, what else is in a batch decides near ties between two tokens now and then. The demo
        # compares tokens of different batches, so rounding should not be what it shows.
        line += ["--dtype", "float32"]
        line += ["--block-size", BLOCK_TOKENS, "--max-model-len", MAX_MODEL_LEN]
        line += ["--num-gpu-blocks-override", ENGINE_BLOCKS]
        return [*line, "--kv-transfer-config", json.dumps(self._connector)]

    def body(self, prompt: Sequence[int], salt: str | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": MODEL_NAME,
            "prompt": list(prompt),
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if salt is not None:
            body["cache_salt"] = salt
        return body

    def stream(self) -> VllmStream:
        return VllmStream()

    def counters(self, metrics: str) -> EngineCounters:
        def by_source(source: str) -> int:
            return metric(metrics, "vllm:prompt_tokens_by_source_total", f'source="{source}"')

        return EngineCounters(
            computed_tokens=by_source("local_compute"),
            local_tokens=by_source("local_cache_hit"),
            restored_tokens=by_source("external_kv_transfer"),
            external_hit_tokens=metric(metrics, "vllm:external_prefix_cache_hits_total"),
            verified_bytes=metric(metrics, "vllm:orbitkv_load_bytes_total"),
            failed_pages=metric(metrics, "vllm:orbitkv_load_failed_pages_total"),
        )
