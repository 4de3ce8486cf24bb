"""An engine in this process, whose blocks can be looked at between its steps."""

from __future__ import annotations

from typing import Any

from benches.gpu.engine import Engine, sampling
from benches.gpu.kv_memory import KvMemory
from benches.gpu.prompts import restorable_tokens

DECODED = 8


class Stepped(Engine):
    """`gate` saves a prompt's pages, overwrites them, restores them and compares. Needs
    `VLLM_ENABLE_V1_MULTIPROCESSING=0`."""

    def __init__(
        self, options: dict[str, Any], transfer: dict[str, Any] | None, weights_seed: int | None = None
    ) -> None:
        super().__init__(options, transfer, weights_seed)
        runner = self.core.model_executor.driver_worker.worker.model_runner
        blocks = self.core.vllm_config.cache_config.num_gpu_blocks
        self._kv = KvMemory(list(runner.kv_caches), blocks)
        self._prompts: list[dict[str, Any]] = []

    def describe(self) -> dict[str, Any]:
        """Also the bytes of a block over all layers, and how a layer lies in memory."""
        tensor = self.core.model_executor.driver_worker.worker.model_runner.kv_caches[0]
        shape = {"kv_shape": list(tensor.shape), "kv_strides": list(tensor.stride())}
        return {**super().describe(), "block_bytes": self._kv.block_bytes, **shape}

    def learn(self, tokens: list[int]) -> dict[str, int]:
        """Computes a prompt and keeps a copy of its whole blocks on the device; its number, and how many
        they are."""
        cached, blocks, snapshot = self._run(tokens, None)
        distinct = self._kv.distinct_blocks(snapshot)
        self._prompts.append({"tokens": tokens, "snapshot": snapshot})
        return {
            "number": len(self._prompts) - 1,
            "cached": cached,
            "blocks": len(blocks),
            "distinct": distinct,
        }

    def gate(self, number: int) -> dict[str, Any]:
        """Restores a learnt prompt into overwritten memory. `control_blocks` is how many of its blocks
        differ just before: it must be all of them, or the comparison sees nothing."""
        prompt = self._prompts[number]
        self.reset()
        self._kv.poison()
        count = prompt["snapshot"][0].shape[0]
        _, control_blocks = self._kv.differing(list(range(1, count + 1)), prompt["snapshot"])
        cached, blocks, differing = self._run(prompt["tokens"], prompt["snapshot"])
        return {
            "blocks": len(blocks),
            "cached": cached,
            "bytes": cached // self.core.vllm_config.cache_config.block_size * self._kv.block_bytes,
            "differing_bytes": differing[0],
            "differing_blocks": differing[1],
            "control_blocks": control_blocks,
        }

    def _run(self, tokens: list[int], snapshot: Any) -> tuple[int, list[int], Any]:
        """Runs a prompt; when its first token is there, its whole blocks are copied, or compared with
        `snapshot`."""
        import torch

        scheduler = self.core.engine_core.engine_core.scheduler
        self._asked += 1
        name = f"stepped-{self._asked}"
        internal = self.core.add_request(name, {"prompt_token_ids": tokens}, sampling(DECODED))
        seen: Any = None
        blocks: list[int] = []
        while True:
            for output in self.core.step():
                if seen is None and output.outputs[0].token_ids:
                    count = restorable_tokens(len(tokens)) // self.core.vllm_config.cache_config.block_size
                    blocks = list(scheduler.kv_cache_manager.get_block_ids(internal)[0][:count])
                    if torch.cuda.is_available():
                        torch.cuda.synchronize()
                    seen = (
                        self._kv.snapshot(blocks)
                        if snapshot is None
                        else self._kv.differing(blocks, snapshot)
                    )
                if output.finished:
                    self.settle()
                    return output.num_cached_tokens or 0, blocks, seen
