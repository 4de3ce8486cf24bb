"""How the engines of a run are built: one set of options for all systems."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benches.gpu.model import QWEN3_8B, TINY, Shape, write_model
from benches.gpu.prompts import BLOCK_TOKENS

GIB = 1 << 30

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "127.0.0.1",
    # Its first use would compile, and wants more of CUDA than such a host has.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
TINY_MODEL = Path(__file__).resolve().parents[2] / ".venv" / "models" / "tiny-qwen3"
# Without a GPU: the tiny engine of a dry run.
CPU_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}


@dataclass(frozen=True)
class EngineSettings:
    """One engine. The defaults are what `vllm serve` does by itself: compiled with CUDA graphs, its core in
    a process of its own. `layout` is the engine's own choice if None."""

    shape: Shape = QWEN3_8B
    is_eager: bool = False
    is_multiprocess: bool = True
    # Greedy tokens that do not depend on what else is in the batch.
    is_deterministic: bool = False
    # 43,000 tokens of the default shape: the longest request, and no two long ones.
    kv_cache_bytes: int = 6 * GIB
    # Of the GPU's memory, what must be free at the start.
    memory_share: float = 0.2
    max_model_tokens: int = 40_000
    max_requests: int = 64
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    layout: str | None = None
    attention: str = "FLASH_ATTN"
    # Weights of `weights.enliven`; None leaves those of the dummy loader.
    weights_seed: int | None = None
    # Functions of ours can be called in the workers (`Engine.rpc`); those that fill weights always can.
    is_open: bool = False
    # vLLM's sleep mode; on a GPU alone.
    can_sleep: bool = False
    is_dry_run: bool = False

    def with_(self, **changes: Any) -> EngineSettings:
        """The same with other values."""
        return replace(self, **changes)

    def options(self, models: Path) -> dict[str, Any]:
        """Keywords of `LLM`; the model directory is written below `models`."""
        name = f"shape-{self.shape.layers}-{self.shape.hidden}-{self.dtype}"
        options: dict[str, Any] = {
            "model": str(write_model(models / name, self.shape, self.dtype)),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "seed": 0,
            "dtype": self.dtype,
            "kv_cache_dtype": self.kv_cache_dtype,
            "enforce_eager": self.is_eager,
            "enable_prefix_caching": True,
            "block_size": BLOCK_TOKENS,
            "max_model_len": self.max_model_tokens,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": self.max_requests,
            # Several engines share the GPU, so each is told what it may take.
            "kv_cache_memory_bytes": self.kv_cache_bytes,
        }
        if self.is_dry_run and self.weights_seed is not None:
            # Such an engine packs its weights as it loads them, so they cannot be filled in later. `make
            # setup` has made these.
            options |= {"model": str(TINY_MODEL), "load_format": "auto"}
            options |= {"hf_overrides": {"max_position_embeddings": self.max_model_tokens}}
        if self.can_sleep:
            options["enable_sleep_mode"] = True
        if not self.is_dry_run:
            options |= {
                "gpu_memory_utilization": self.memory_share,
                "attention_config": {"backend": self.attention},
            }
        return options

    @property
    def filled_with(self) -> int | None:
        """The seed of weights that are filled in after the start, if any are."""
        return None if self.is_dry_run else self.weights_seed

    def environment(self) -> dict[str, str]:
        """Variables of the engine's processes."""
        values = {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1" if self.is_multiprocess else "0"}
        if self.is_dry_run:
            values |= CPU_ENVIRONMENT
        elif self.is_deterministic:
            values["VLLM_BATCH_INVARIANT"] = "1"
        if self.is_open or self.weights_seed is not None:
            # A function goes to the workers, and they are ours.
            values["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        if self.layout is not None:
            values["VLLM_KV_CACHE_LAYOUT"] = self.layout
        return values


def dry(settings: EngineSettings) -> EngineSettings:
    """The tiny counterpart on an engine without a GPU."""
    return settings.with_(
        shape=TINY,
        is_eager=True,
        kv_cache_bytes=GIB // 32,
        max_model_tokens=10_000,
        max_requests=16,
        is_dry_run=True,
    )
