"""SGLang's tree cache with real pools, and the calls that its scheduler makes on it."""

from __future__ import annotations

import json
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.runtime_context import publish
from sglang.srt.server_args import ServerArgs
from support.manager import Manager
from support.wait import wait_until

PAGE = 64
POOL_TOKENS = 2048
HEADS, HEAD_SIZE, LAYERS = 2, 64, 4
PAGE_BYTES = 2 * LAYERS * PAGE * HEADS * HEAD_SIZE * 2

# All that is read of a model: SGLang resolves its arguments by it.
_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": HEAD_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 8192,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": HEADS,
    "torch_dtype": "bfloat16",
    "vocab_size": 1024,
}


def _publish_arguments() -> ServerArgs:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(_CONFIG))
        args = ServerArgs(
            model_path=directory,
            device="cpu",
            skip_tokenizer_init=True,
            attention_backend="torch_native",
            page_size=PAGE,
            load_format="dummy",
            radix_cache_backend="orbitkv",
            enable_unified_cache_external_linker=True,
        )
        publish(args, role="scheduler")
    return args


_ARGS = _publish_arguments()


@dataclass(eq=False)
class Request:
    """As much of a request as the tree looks at."""

    rid: str
    tokens: list[int]
    extra_key: str | None = None
    cache_salt: str | None = None
    logprob_start: int | None = None
    prefix_indices: Any = None
    last_node: Any = None
    match: MatchResult | None = None
    slots: Any = None
    session: Any = None
    kv: Any = None
    priority: int = 0
    swa_host_hit_length: int = 0
    mamba_host_hit_length: int = 0
    restored: int = 0
    held: int = 0
    consumer: int = -1
    locks: list[Any] = field(default_factory=list)

    @property
    def handle(self) -> CacheRequestHandle:
        return CacheRequestHandle(self.rid, 0)

    def key(self, *, limit: bool) -> RadixKey:
        """Its tokens; with `limit` those that may come from a cache."""
        length = len(self.tokens) - 1
        if self.logprob_start is not None:
            length = min(length, self.logprob_start)
        tokens = array("q", self.tokens)
        return RadixKey(
            tokens, extra_key=self.extra_key, limit=length if limit else None, cache_salt=self.cache_salt
        )


def context(pool: MHATokenToKVPool, **changes: Any) -> SimpleNamespace:
    """What the factory is handed."""
    allocator = PagedTokenToKVPoolAllocator(POOL_TOKENS, PAGE, torch.bfloat16, "cpu", pool, False)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(8, 4096, "cpu", False),
        token_to_kv_pool_allocator=allocator,
        page_size=PAGE,
    )
    config = SimpleNamespace(to_dict=lambda: {"model_type": "tiny"})
    fields = {
        "server_args": _ARGS,
        "params": params,
        "is_hybrid_swa": False,
        "is_hybrid_ssm": False,
        "is_dsa": False,
        "enable_hierarchical_cache": False,
        "disable_radix_cache": False,
        "effective_chunked_prefill_size": None,
        "full_tokens_per_layer": None,
        "tp_worker": SimpleNamespace(
            register_hicache_layer_transfer_counter=lambda counter: None, model_runner=SimpleNamespace()
        ),
        "model_config": SimpleNamespace(
            hf_config=config, model_path="tiny", revision=None, quantization=None, dtype=torch.bfloat16
        ),
        "tp_size": 1,
        "tp_rank": 0,
        "tp_group": None,
    }
    return SimpleNamespace(**{**fields, **changes})


def new_pool() -> MHATokenToKVPool:
    return MHATokenToKVPool(POOL_TOKENS, PAGE, torch.bfloat16, HEADS, HEAD_SIZE, LAYERS, "cpu", False)


class Tree:
    """One scheduler's tree and pools. `run` is a request from the queue to its end."""

    def __init__(self, manager: Manager | None, settings: dict[str, object], **changes: Any) -> None:
        from orbitkv.sglang.factory import build

        self.manager = manager
        socket = str(manager.socket) if manager is not None else "/nonexistent/manager.sock"
        os.environ["ORBITKV_CONFIG"] = json.dumps({"socket": socket, **settings})
        self.pool = new_pool()
        ctx = context(self.pool, **changes)
        self.allocator = ctx.params.token_to_kv_pool_allocator
        try:
            self.cache = build(ctx)
        finally:
            del os.environ["ORBITKV_CONFIG"]
        self.linker = self.cache.linker.cache_linker
        self._serial = 0
        if manager is not None:
            wait_until(lambda: self.linker._scheduler.active, "the engine is active")

    def close(self) -> None:
        self.cache.release_host_resources()

    # What the scheduler calls -------------------------------------------------------------------------------

    def request(self, tokens: Sequence[int], **fields: Any) -> Request:
        self._serial += 1
        return Request(f"r{self._serial}", list(tokens), **fields)

    def match(self, request: Request) -> MatchResult:
        request.match = self.cache.match_prefix(MatchPrefixParams(key=request.key(limit=True), req=request))
        request.prefix_indices = request.match.device_indices
        request.last_node = request.match.last_device_node
        request.held = int(request.match.device_indices.numel())
        return request.match

    def enqueue(self, tokens: Sequence[int], **fields: Any) -> Request:
        """A request comes into the queue."""
        request = self.request(tokens, **fields)
        self.match(request)
        self.cache.prefetch_from_storage(request.handle, request.last_node, [])
        return request

    def step(self) -> None:
        self.cache.check_hicache_events()

    def may_start(self, request: Request) -> bool:
        self.step()
        return self.cache.check_prefetch_progress(request.handle)

    def wait_start(self, request: Request) -> None:
        wait_until(lambda: self.may_start(request), f"{request.rid} may start")

    def admit(self, request: Request) -> int:
        """Matches, takes what is promised, and gives the rest of its tokens slots; tokens restored."""
        match = self.match(request)
        request.locks.append((request.last_node, self.cache.inc_lock_ref(request.last_node).to_dec_params()))
        indices = match.device_indices
        if match.host_hit_length:
            loaded, node = self.cache.init_load_back(
                InitLoadBackParams(
                    best_match_node=match.best_match_node, host_hit_length=match.host_hit_length, req=request
                )
            )
            assert len(loaded) == match.host_hit_length
            indices = torch.cat([indices, loaded])
            request.last_node = node
            request.locks.append((node, self.cache.inc_lock_ref(node).to_dec_params()))
        request.restored = match.host_hit_length
        self.cache.finish_storage_prefetch_admission(request.handle, 0, None)
        rest = -(-(len(request.tokens) - len(indices)) // PAGE) * PAGE
        request.slots = torch.cat([indices, self.alloc(rest)])
        return request.restored

    def alloc(self, tokens: int) -> torch.Tensor:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        if self.allocator.available_size() < tokens:
            self.cache.evict(EvictParams(num_tokens=tokens))
        slots = self.allocator.alloc(tokens)
        assert slots is not None, "the pool is full"
        return slots.to(torch.int64)

    def begin_forward(self, request: Request) -> None:
        request.consumer = self.cache.ready_to_load_host_cache()

    def forward(self, request: Request) -> None:
        """Reads every layer, as attention does, and computes what was not cached."""
        self.linker.layer_done_counter.set_consumer(request.consumer)
        cached = request.held + request.restored
        for layer in range(LAYERS):
            self.pool.get_key_buffer(layer)
            self.pool.get_value_buffer(layer)
            for buffer, content in zip(self.buffers(layer), computed(request, layer), strict=True):
                buffer[request.slots[cached : len(request.tokens)]] = content[cached:]

    def finish(self, request: Request) -> None:
        """Inserts its whole pages, which offers them to the manager."""
        whole = len(request.tokens) // PAGE * PAGE
        key = request.key(limit=False).page_aligned(PAGE)
        cached = request.held + request.restored
        self.cache.insert(InsertParams(key=key, value=request.slots[:whole].clone(), prev_prefix_len=cached))
        self.allocator.free(request.slots[whole:]) if len(request.slots) > whole else None
        for node, receipt in request.locks:
            self.cache.dec_lock_ref(node, receipt)
        request.locks.clear()

    def run(self, tokens: Sequence[int], **fields: Any) -> Request:
        request = self.enqueue(tokens, **fields)
        self.wait_start(request)
        self.admit(request)
        self.begin_forward(request)
        self.forward(request)
        self.finish(request)
        return request

    def flush(self) -> None:
        """The tree and the pools are emptied, and what they held is overwritten."""
        self.cache.reset()
        self.allocator.clear()
        for layer in range(LAYERS):
            for buffer in self.buffers(layer):
                buffer.fill_(-1.0)

    # Views --------------------------------------------------------------------------------------------------

    def buffers(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pool.k_buffer[layer], self.pool.v_buffer[layer]

    def is_right(self, request: Request, tokens: int | None = None) -> bool:
        """Whether the KV of its first tokens is what computing them gives."""
        count = len(request.tokens) if tokens is None else tokens
        return all(
            torch.equal(buffer[request.slots[:count]], content[:count])
            for layer in range(LAYERS)
            for buffer, content in zip(self.buffers(layer), computed(request, layer), strict=True)
        )

    def settle(self) -> None:
        """Steps until nothing is loaded or saved."""
        wait_until(self._is_settled, "loads and saves have ended")

    def _is_settled(self) -> bool:
        self.step()
        return not (self.cache.linker.pending_loads or self.cache.linker.pending_offloads)

    def assert_drained(self) -> None:
        """Nothing is leased, reserved or under way, here or in the manager."""
        assert len(self.linker.demands) == 0
        self.manager.assert_drained(meanwhile=self.step)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            self.step()
            return condition()

        wait_until(met, what)


def computed(request: Request, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a layer: a function of all tokens so far, as in a model."""
    tokens = torch.tensor(request.tokens, dtype=torch.float64)
    history = torch.cumsum(tokens * torch.arange(1, len(tokens) + 1), 0) % 251
    spread = torch.arange(HEADS * HEAD_SIZE, dtype=torch.float64).view(1, HEADS, HEAD_SIZE)
    values = (history.view(-1, 1, 1) * (layer + 2) + spread) % 127
    return values.to(torch.bfloat16), (values + 1).to(torch.bfloat16)


def prompt(seed: int, tokens: int) -> list[int]:
    """Tokens that no other seed begins with."""
    return [seed + 1, *((seed * 31 + i * 7) % 1000 + 3 for i in range(1, tokens))]


def pause(seconds: float = 0.01) -> None:
    time.sleep(seconds)
