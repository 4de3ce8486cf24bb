"""A model directory without weights: engines fill them in at random, so nothing is downloaded.

Random weights say nothing about text. Times, KV bytes and equality of greedy tokens mean what they mean with
real ones, because none of them depends on the values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen3 decoder. The default is Qwen3-8B's."""

    layers: int = 36
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    intermediate: int = 12288
    vocab: int = 151936
    max_tokens: int = 40960

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Keys and values of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes


QWEN3_8B = Shape()
# As wide, so that pages of a layer are as large, but fast to start.
SHALLOW = Shape(layers=8)
# For a dry run of the scripts on an engine without a GPU.
TINY = Shape(4, 256, 4, 2, 64, 512, 2048, 40960)


def write_model(directory: Path, shape: Shape = QWEN3_8B, dtype: str = "bfloat16") -> Path:
    """Writes `config.json` and `generation_config.json` into `directory`, which is made; returns it.
    Engines load it with `load_format="dummy"` and `skip_tokenizer_init=True`, and take prompts of token
    ids."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(_config(shape, dtype), indent=1))
    generation = {"eos_token_id": shape.vocab - 1, "temperature": 0.0}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


def _config(shape: Shape, dtype: str) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": shape.vocab - 2,
        "eos_token_id": shape.vocab - 1,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.max_tokens,
        "max_window_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1_000_000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab,
    }
