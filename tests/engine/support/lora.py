"""Tiny LoRA adapters for the tiny model."""

from __future__ import annotations

import json
from pathlib import Path

RANK = 8
# Of the tiny model.
LAYERS, HIDDEN = 4, 256
OUTPUTS = {"q_proj": 256, "k_proj": 128, "v_proj": 128}


def tiny_adapter(directory: Path, seed: int) -> Path:
    """Writes an adapter of the attention's projections with random weights, large enough to change every
    greedy output."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for module, outputs in OUTPUTS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("lora_A", (RANK, HIDDEN)), ("lora_B", (outputs, RANK))):
                values = torch.randn(shape, generator=generator) * 0.3
                weights[f"{name}.{part}.weight"] = values.to(torch.bfloat16)
    directory.mkdir(parents=True)
    save_file(weights, str(directory / "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(OUTPUTS),
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory
