"""A plugin of SGLang's: calls of ours in the process of the scheduler, where weights and KV memory are.

Engines whose times are compared run without it."""

from __future__ import annotations

import json
import os
import time
from array import array
from pathlib import Path
from typing import Any

from benches.gpu.kv_memory import KvMemory
from benches.gpu.prompts import restorable_tokens
from benches.gpu.weights import enliven

# The scheduler's attribute, by which the engine's RPC finds it.
METHOD = "orbitkv_probe"
ZERO_VARIABLE = "ORBITKV_PROBE_ZERO"
LANDS_WITHIN_S = 60.0


def write_package(directory: Path) -> Path:
    """What makes `register` a plugin for whoever has `directory` on the path; returns it."""
    facts = directory / "orbitkv_probe-0.dist-info"
    facts.mkdir(parents=True, exist_ok=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: orbitkv-probe\nVersion: 0\n")
    (facts / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{METHOD} = {__name__}:register\n")
    return directory


def register() -> None:
    """Called by SGLang in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.managers.scheduler.Scheduler.__init__"
    HookRegistry.register(target, _after_scheduler_init, HookType.AFTER)


def _after_scheduler_init(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    probe = Probe(scheduler)
    setattr(scheduler, METHOD, probe.answer)
    if os.environ.get(ZERO_VARIABLE):
        probe.zero_what_is_restored()


class Probe:
    """One scheduler seen from inside. The engine must be idle when it is asked."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._page_tokens = scheduler.page_size
        pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
        self._tensors = [tensor for pair in zip(pool.k_buffer, pool.v_buffer, strict=True) for tensor in pair]
        self._kv = KvMemory(self._tensors, self._tensors[0].shape[0] // self._page_tokens)
        self._kept: list[tuple[list[int], Any]] = []

    def answer(self, path: str) -> None:
        """Replaces `{"method", "arguments"}` in a file by what the method returned: the engine's RPC brings
        nothing back."""
        file = Path(path)
        asked = json.loads(file.read_text())
        file.write_text(json.dumps(getattr(self, asked["method"])(**asked["arguments"])))

    def describe(self) -> dict[str, Any]:
        """The bytes of a page over all layers, and how a layer's keys lie in memory."""
        keys = self._tensors[0]
        shape = {"kv_shape": list(keys.shape), "kv_strides": list(keys.stride())}
        return {"block_bytes": self._kv.block_bytes, **shape}

    def enliven(self, seed: int) -> int:
        """Fills the weights in; see `weights.enliven`."""
        return enliven(self._scheduler.tp_worker, seed)

    def keep(self, tokens: list[int]) -> dict[str, int]:
        """Keeps a copy of a prompt's whole pages, which the engine holds, on the device."""
        pages = self._pages_of(tokens)
        snapshot = self._kv.snapshot(pages)
        self._kept.append((tokens, snapshot))
        distinct = self._kv.distinct_blocks(snapshot)
        return {"number": len(self._kept) - 1, "blocks": len(pages), "distinct": distinct}

    def poison(self, number: int) -> dict[str, int]:
        """Overwrites all KV memory. `control_blocks` is how many pages of a kept prompt differ now: it must
        be all of them, or `compare` sees nothing."""
        self._kv.poison()
        _, snapshot = self._kept[number]
        _, pages = self._kv.differing(list(range(1, snapshot[0].shape[0] + 1)), snapshot)
        return {"control_blocks": pages}

    def compare(self, number: int) -> dict[str, int]:
        """A kept prompt's pages, where they are now, against the copy."""
        tokens, snapshot = self._kept[number]
        pages = self._pages_of(tokens)
        if len(pages) != snapshot[0].shape[0]:
            raise RuntimeError(f"the tree has {len(pages)} of {snapshot[0].shape[0]} pages of a prompt")
        _synchronize()
        bad_bytes, bad_pages = self._kv.differing(pages, snapshot)
        return {"blocks": len(pages), "differing_bytes": bad_bytes, "differing_blocks": bad_pages}

    def zero_what_is_restored(self) -> None:
        """From now on each restored page is overwritten with zeros when it has landed, before a forward pass
        reads it."""
        linker = self._scheduler.tree_cache.linker.cache_linker
        start = linker.start_layer_wise_loading

        def start_and_zero() -> int:
            queued = [(load.pinned, list(load.blocks)) for load in linker._queued]
            index = start()
            if queued:
                self._await_loads(linker)
                self._zero([page for _, pages in queued for page in pages])
            return index

        linker.start_layer_wise_loading = start_and_zero

    def _await_loads(self, linker: Any) -> None:
        deadline = time.monotonic() + LANDS_WITHIN_S
        while linker.num_completed_loads() < len(linker._loading):
            if time.monotonic() > deadline:
                raise RuntimeError(f"a restore has not landed in {LANDS_WITHIN_S:.0f} s")
            time.sleep(0.001)
        _synchronize()

    def _zero(self, pages: list[int]) -> None:
        for tensor in self._tensors:
            for page in pages:
                tensor[page * self._page_tokens : (page + 1) * self._page_tokens] = 0
        _synchronize()

    def _pages_of(self, tokens: list[int]) -> list[int]:
        """Page numbers of a prompt's whole pages, as far as the engine's tree has them."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        key = RadixKey(array("q", tokens[: restorable_tokens(len(tokens))]))
        slots = self._scheduler.tree_cache.match_prefix(MatchPrefixParams(key=key)).device_indices
        return (slots[:: self._page_tokens] // self._page_tokens).tolist()


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
