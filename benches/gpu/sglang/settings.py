"""How the SGLang engines of a run are built: one set of options for all systems."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benches.gpu.model import QWEN3_8B, TINY, Shape, write_model
from benches.gpu.prompts import BLOCK_TOKENS
from benches.gpu.run_context import Run
from benches.gpu.settings import TINY_MODEL

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "127.0.0.1",
    # Such a host has neither flashinfer nor the kernels' newest version, and nothing here needs them.
    "SGLANG_IS_FLASHINFER_AVAILABLE": "false",
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
}
# Without a GPU: the tiny engine of a dry run. The allocator's kernels have no form for a CPU.
CPU_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class SglangSettings:
    """One engine, eager unless `has_graphs`."""

    shape: Shape = QWEN3_8B
    # The longest request, and no two long ones: 6.0 GiB of the default shape.
    kv_tokens: int = 682 * BLOCK_TOKENS
    max_model_tokens: int = 40_000
    max_requests: int = 64
    # CUDA graphs: the engine's own choice for decoding and prefill.
    has_graphs: bool = False
    # Greedy tokens that do not depend on what else is in the batch.
    is_deterministic: bool = False
    dtype: str = "bfloat16"
    # Weights of `weights.enliven`; None leaves those of the dummy loader.
    weights_seed: int | None = None
    # Functions of `probe` can be called in the scheduler; those that fill weights always can.
    is_open: bool = False
    # Restored pages are overwritten with zeros: the control of tests.
    is_zeroed: bool = False
    is_dry_run: bool = False

    def with_(self, **changes: Any) -> SglangSettings:
        """The same with other values."""
        return replace(self, **changes)

    def options(self, models: Path) -> dict[str, Any]:
        """Keywords of `sglang.Engine`; the model directory is written below `models`."""
        name = f"shape-{self.shape.layers}-{self.shape.hidden}-{self.dtype}"
        options: dict[str, Any] = {
            "model_path": str(write_model(models / name, self.shape, self.dtype)),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "random_seed": 0,
            "dtype": self.dtype,
            "page_size": BLOCK_TOKENS,
            "max_total_tokens": self.kv_tokens,
            "context_length": self.max_model_tokens,
            "max_running_requests": self.max_requests,
            "chunked_prefill_size": 8192,
            "attention_backend": "triton",
            "sampling_backend": "pytorch",
            "grammar_backend": "none",
            "disable_cuda_graph": not self.has_graphs,
            # Of what others on this GPU leave; what is taken follows from `max_total_tokens`.
            "mem_fraction_static": 0.85,
            # Engines that start together must not choose the same one.
            "nccl_port": _free_port(),
            "log_level": "warning",
        }
        if self.is_deterministic:
            options["enable_deterministic_inference"] = True
        if self.is_dry_run:
            options |= {"device": "cpu", "attention_backend": "torch_native", "mem_fraction_static": 0.2}
            if self.weights_seed is not None:
                options |= {"model_path": str(TINY_MODEL), "load_format": "auto"}
        return options

    @property
    def filled_with(self) -> int | None:
        """The seed of weights that are filled in after the start, if any are."""
        return None if self.is_dry_run else self.weights_seed

    @property
    def has_probe(self) -> bool:
        """Whether the scheduler answers calls of ours."""
        return self.is_open or self.is_zeroed or self.weights_seed is not None

    def environment(self) -> dict[str, str]:
        """Variables of the engine's processes."""
        return {**ENVIRONMENT, **(CPU_ENVIRONMENT if self.is_dry_run else {})}


def settings_of(run: Run, **values: Any) -> SglangSettings:
    """Settings of an engine of a run, tiny in a dry run."""
    settings = SglangSettings(**values)
    return dry(settings) if run.is_dry_run else settings


def dry(settings: SglangSettings) -> SglangSettings:
    """The tiny counterpart on an engine without a GPU, where no kernel is deterministic. In float32, as near
    ties between two tokens would fall either way with what else is in the batch."""
    return settings.with_(
        shape=TINY,
        kv_tokens=43 * BLOCK_TOKENS,
        max_model_tokens=8000,
        max_requests=16,
        has_graphs=False,
        is_deterministic=False,
        dtype="float32",
        is_dry_run=True,
    )


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
