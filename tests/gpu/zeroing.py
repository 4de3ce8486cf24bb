"""A connector that spoils what it restores: the control of every test of restored bytes.

The real one runs to its end; then the blocks of the restore are overwritten, before the engine reads them.
A test that cannot tell this engine from a sound one tests nothing."""

from __future__ import annotations

from typing import Any

from orbitkv.vllm import OrbitKVConnector as Sound


class OrbitKVConnector(Sound):
    """As the real one, except that restored blocks are zeros."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._tensors = list(kv_caches.values())
        self._spoiled: dict[str, list[int]] = {}
        super().register_kv_caches(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        loads = getattr(self._connector_metadata, "loads", [])
        for order in loads:
            if order.is_async:
                self._spoiled[order.request_id] = list(order.blocks)
        if sync := [block for order in loads if not order.is_async for block in order.blocks]:
            # All layers have landed before the first is spoiled; the forward pass finds nothing to wait for.
            self._worker.wait_for_layer("every layer")
            self._zero(sync)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        sent, received = super().get_finished(finished_req_ids)
        for request_id in received or ():
            if blocks := self._spoiled.pop(request_id, None):
                self._zero(blocks)
        return sent, received

    def _zero(self, blocks: list[int]) -> None:
        import torch

        for tensor in self._tensors:
            if tensor.is_cuda:
                # What the copies' own stream still writes must land first.
                torch.cuda.synchronize(tensor.device)
            ratio = tensor.shape[0] // self._kv_cache_config.num_blocks
            for block in blocks:
                tensor[block * ratio : (block + 1) * ratio] = 0
