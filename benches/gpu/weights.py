"""Random weights with which the KV cache decides what is generated.

Those of `load_format="dummy"` are so small that a token follows from the one before it alone: an engine
whose whole KV cache is zeros generates the same. With these, attention is sharp and its output as large as
what it is added to."""

from __future__ import annotations

from typing import Any

# Of the normalised queries and keys: a few tokens get most of the attention.
ATTENTION_GAIN = 2.0


def enliven(worker: Any, seed: int) -> int:
    """Fills the parameters of a worker's model in place, the same for the same seed and device; how many
    there are. For `LLM.collective_rpc`, before the first request."""
    import torch

    count = 0
    with torch.no_grad():
        for name, parameter in worker.model_runner.model.named_parameters():
            count += 1
            if "norm" in name:
                parameter.fill_(ATTENTION_GAIN if "q_norm" in name or "k_norm" in name else 1.0)
                continue
            generator = torch.Generator(parameter.device).manual_seed(seed * 1000 + count)
            std = 1.0 if "embed" in name else parameter.shape[-1] ** -0.5
            parameter.normal_(0.0, std, generator=generator)
    return count
