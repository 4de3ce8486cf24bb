"""SGLang in the demo."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from demo.engine import EngineCounters, Usage
from demo.metrics import metric
from demo.settings import ADAPTER, BLOCK_TOKENS, ENGINE_TOKENS, MAX_MODEL_LEN, OUTPUT_TOKENS

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # The allocator's kernels have no form for a CPU.
    "TRITON_INTERPRET": "1",
    # /health would otherwise send a request through the engine, and be counted.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
}


class SglangStream:
    """Each event has all tokens so far."""

    def __init__(self) -> None:
        self._seen = 0

    def tokens(self, event: Mapping[str, Any]) -> Sequence[int]:
        new = event["output_ids"][self._seen :]
        self._seen += len(new)
        return new

    def usage(self, event: Mapping[str, Any]) -> Usage | None:
        meta = event["meta_info"]
        return Usage(meta["prompt_tokens"], meta["cached_tokens"]) if meta["finish_reason"] else None


class Sglang:
    """`python -m sglang.launch_server`."""

    name = "sglang"
    programs = ("python",)
    path = "/generate"

    def __init__(self, adapter: Mapping[str, Any] = ADAPTER) -> None:
        self.environment: Mapping[str, str] = {**ENVIRONMENT, "ORBITKV_CONFIG": json.dumps(adapter)}

    def command(self, programs: Path, model: Path, host: str, port: int) -> list[object]:
        line: list[object] = [programs / "python", "-m", "sglang.launch_server", "--model-path", model]
        line += ["--host", host, "--port", port, "--device", "cpu", "--attention-backend", "torch_native"]
        line += ["--disable-cuda-graph", "--sampling-backend", "pytorch", "--mem-fraction-static", 0.2]
        # Tokens of different batches are compared: see vllm.py.
        line += ["--dtype", "float32", "--skip-tokenizer-init", "--skip-server-warmup", "--enable-metrics"]
        line += ["--page-size", BLOCK_TOKENS, "--context-length", MAX_MODEL_LEN]
        return [*line, "--max-total-tokens", ENGINE_TOKENS, "--max-running-requests", 16]

    def body(self, prompt: Sequence[int], salt: str | None) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True}
        body: dict[str, Any] = {"input_ids": list(prompt), "sampling_params": sampling, "stream": True}
        if salt is not None:
            body["extra_key"] = salt
        return body

    def stream(self) -> SglangStream:
        return SglangStream()

    def counters(self, metrics: str) -> EngineCounters:
        def by_mode(mode: str) -> int:
            return metric(metrics, "sglang:prefill_effective_tokens_total", f'mode="{mode}"')

        return EngineCounters(
            computed_tokens=by_mode("input"),
            local_tokens=by_mode("device_hit"),
            restored_tokens=by_mode("host_hit"),
            external_hit_tokens=metric(metrics, "sglang:cached_tokens_total", 'cache_source="host"'),
            verified_bytes=metric(metrics, "sglang:orbitkv_load_bytes_total"),
            failed_pages=metric(metrics, "sglang:orbitkv_load_failed_pages_total"),
        )
