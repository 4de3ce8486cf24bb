"""What a test may ask of each worker process of an engine: mixed into vLLM's worker as
`worker_extension_cls`, and called there by `LLM.collective_rpc`."""

from __future__ import annotations

import os
from typing import Any

from support.memory import KvMemory


class RankExtension:
    """One rank. Names begin with `rank_`: the worker has many of its own."""

    model_runner: Any

    def rank_pid(self) -> int:
        """Its process."""
        return os.getpid()

    def rank_payloads(self, pages: int) -> list[bytes]:
        """Bytes of the first blocks of the newest request, in its order."""
        table = list(self.model_runner.requests.values())[-1].block_ids[0]
        memory = KvMemory(self.model_runner.kv_caches)
        return [memory.block(block) for block in table[:pages]]

    def rank_poison(self) -> None:
        """Poisons all KV memory of this rank."""
        KvMemory(self.model_runner.kv_caches).poison()

    def rank_stats(self) -> dict[str, int]:
        """Counters of its native client."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()._worker._client.stats()
