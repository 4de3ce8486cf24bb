"""A vLLM scheduler in miniature: block pool, queue order and callback order of the real one, nothing else."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput

BLOCK_TOKENS = 4
NUM_LAYERS = 3
KV_HEADS, HEAD_SIZE = 2, 8


def kv_cache_config(num_blocks: int = 64) -> KVCacheConfig:
    spec = FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=KV_HEADS, head_size=HEAD_SIZE, dtype=torch.bfloat16
    )
    names = [f"model.layers.{index}.self_attn.attn" for index in range(NUM_LAYERS)]
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(names, spec)],
        kv_cache_layout="LBHNC",
    )


def kv_tensors(num_blocks: int = 64) -> dict[str, torch.Tensor]:
    """All layers as views of one allocation, filled with distinct bytes."""
    page = KV_HEADS * BLOCK_TOKENS * 2 * HEAD_SIZE
    generator = torch.Generator().manual_seed(7)
    memory = torch.randint(
        0, 256, (NUM_LAYERS * num_blocks * page * 2,), dtype=torch.uint8, generator=generator
    )
    layers = memory.view(torch.bfloat16).view(NUM_LAYERS, num_blocks, KV_HEADS, BLOCK_TOKENS, 2 * HEAD_SIZE)
    return {f"model.layers.{index}.self_attn.attn": layers[index] for index in range(NUM_LAYERS)}


def vllm_config(**changes: Any) -> SimpleNamespace:
    """What the adapter reads of a VllmConfig. `changes` maps `section__field` to a value."""
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_connector_extra_config={"socket": "/nowhere", "lookup_deadline_ms": 10_000},
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            engine_id="engine-1",
            is_kv_producer=True,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            world_size=1,
            rank=0,
        ),
        model_config=SimpleNamespace(
            model="tiny",
            revision=None,
            seed=0,
            is_encoder_decoder=False,
            quantization=None,
            dtype=torch.bfloat16,
            hf_config=SimpleNamespace(to_dict=lambda: {"hidden_size": 16}),
        ),
        cache_config=SimpleNamespace(
            enable_prefix_caching=True,
            prefix_caching_hash_algo="sha256_cbor",
            prefix_match_unit=None,
            block_size=BLOCK_TOKENS,
            cache_dtype="auto",
            kv_sharing_fast_prefill=False,
        ),
        load_config=SimpleNamespace(load_format="dummy"),
        lora_config=None,
        speculative_config=None,
    )
    for path, value in changes.items():
        target = config
        *parents, last = path.split("__")
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, last, value)
    return config


@dataclass(eq=False)
class FakeRequest:
    """Tokens of a request; equal prefixes have equal block hashes."""

    request_id: str
    tokens: list[int]
    skip_reading_prefix_cache: bool = False
    resumable: bool = False
    num_computed_tokens: int = 0
    block_hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hash_blocks()

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def hash_blocks(self) -> None:
        for at in range(len(self.block_hashes), len(self.tokens) // BLOCK_TOKENS):
            prefix = tuple(self.tokens[: (at + 1) * BLOCK_TOKENS])
            self.block_hashes.append(random.Random(hash(prefix)).randbytes(32))

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.hash_blocks()


class Blocks:
    """`KVCacheBlocks` as far as a connector reads it."""

    def __init__(self, table: list[int]) -> None:
        self._table = table

    def get_block_ids(self) -> tuple[list[int]]:
        return (list(self._table),)


class Pool:
    """Free list of block ids; block 0 is never given out."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(1, num_blocks))
        # Hashes of the blocks in the engine's own prefix cache, and how often one was looked for.
        self.cached: set[bytes] = set()
        self.probes = 0

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: list[int]) -> list[object] | None:
        self.probes += 1
        assert kv_cache_group_ids == [0]
        return [object()] if block_hash in self.cached else None

    def get_num_free_blocks(self) -> int:
        return len(self.free)

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        assert len(taken) == count
        return taken


def output(
    new: list[tuple[FakeRequest, list[int], int, int]] = (),
    cached: list[tuple[FakeRequest, list[int], int, int]] = (),
    resumed: list[tuple[FakeRequest, list[int], int, int]] = (),
    preempted: set[str] = frozenset(),
) -> SchedulerOutput:
    """A step's output. Each row is (request, block ids, tokens computed before, tokens scheduled); of a
    cached row the block ids are only the new ones."""
    result = SchedulerOutput.make_empty()
    result.scheduled_new_reqs = [
        NewRequestData(r.request_id, r.tokens, [], None, None, (list(table),), computed, None)
        for r, table, computed, _ in new
    ]
    rows = [*cached, *resumed]
    result.scheduled_cached_reqs = CachedRequestData(
        req_ids=[r.request_id for r, *_ in rows],
        resumed_req_ids={r.request_id for r, *_ in resumed},
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[(list(table),) if table else None for _, table, _, _ in rows],
        num_computed_tokens=[computed for _, _, computed, _ in rows],
        num_output_tokens=[0 for _ in rows],
    )
    result.num_scheduled_tokens = {r.request_id: count for r, _, _, count in [*new, *rows]}
    result.total_num_scheduled_tokens = sum(result.num_scheduled_tokens.values())
    result.preempted_req_ids = set(preempted)
    return result


def report(step: int) -> KVConnectorOutput:
    """A worker's report that `step` has ended."""
    from orbitkv.vllm.metadata import WorkerReport

    return KVConnectorOutput(kv_connector_worker_meta=WorkerReport(step))


class Engine:
    """Both sides of a connector, stepped in the engine's callback order."""

    def __init__(self, connector: Any, worker: Any, num_blocks: int = 64) -> None:
        self.connector, self.worker = connector, worker
        self.pool = Pool(num_blocks)
        self.kv = kv_tensors(num_blocks)
        self.received: list[str] = []
        self.invalid: list[set[int]] = []
        self.counts: Counter[str] = Counter()  # what the engine would show on its /metrics
        connector.bind_gpu_block_pool(self.pool)
        worker.register_kv_caches(self.kv)

    def add(self, request: FakeRequest) -> FakeRequest:
        self.connector.on_new_request(request)
        return request

    def match(self, request: FakeRequest, local_blocks: int = 0) -> tuple[int | None, bool]:
        return self.connector.get_num_new_matched_tokens(request, local_blocks * BLOCK_TOKENS)

    def allocate(
        self, request: FakeRequest, external: int, local: list[int] = (), tokens: int | None = None
    ) -> list[int]:
        """Gives a request its whole table and tells the connector."""
        tokens = request.num_tokens if tokens is None else tokens
        count = -(-tokens // BLOCK_TOKENS)
        table = [*local, *self.pool.take(count - len(local))]
        self.connector.update_state_after_alloc(request, Blocks(table), external)
        return table

    def step(
        self, scheduled: SchedulerOutput | None = None, forward: Any = None, has_sync: bool = False
    ) -> KVConnectorOutput:
        """One engine step. `forward` runs between the layers' waits and the end, as the model would."""
        scheduled = scheduled or output()
        metadata = self.connector.build_connector_meta(scheduled)
        worker = self.worker
        worker.handle_preemptions(metadata)
        worker.bind_connector_metadata(metadata)
        context = SimpleNamespace(attn_metadata={})
        if has_sync:
            worker.start_load_kv(context)
        if scheduled.total_num_scheduled_tokens:
            for layer in self.kv:
                worker.wait_for_layer_load(layer)
            if forward is not None:
                forward()
        if not has_sync:
            worker.start_load_kv(context)
        if scheduled.total_num_scheduled_tokens:
            worker.wait_for_save()
        _, received = worker.get_finished(set())
        result = KVConnectorOutput(
            finished_recving=received,
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_stats=worker.get_kv_connector_stats(),
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        self.connector.update_connector_output(result)
        for stats in (result.kv_connector_stats, self.connector.get_kv_connector_stats()):
            if stats is not None:
                assert not stats.is_empty(), "a step that counted nothing says so"
                self.counts.update(stats.data)
        self.received += sorted(received or ())
        self.invalid.append(result.invalid_block_ids)
        self.metadata = metadata
        return result

    def finish(self, request: FakeRequest, table: list[int] = ()) -> tuple[bool, Any]:
        return self.connector.request_finished_all_groups(request, (list(table),))

    def content(self, block: int) -> bytes:
        return b"".join(
            self.kv[layer][block].contiguous().view(torch.uint8).numpy().tobytes() for layer in self.kv
        )

    def fill(self, block: int, seed: int) -> bytes:
        """Writes a pattern into a block as a forward pass would."""
        generator = torch.Generator().manual_seed(seed)
        for tensor in self.kv.values():
            part = tensor[block]
            raw = torch.randint(0, 256, (part.numel() * 2,), dtype=torch.uint8, generator=generator)
            part.copy_(raw.view(torch.bfloat16).view(part.shape))
        return self.content(block)

    def compute_and_save(self, request: FakeRequest) -> list[bytes]:
        """Prefills a request from nothing and steps until its pages are saved; returns their bytes."""
        self.add(request)
        assert self.match(request) == (0, False)
        table = self.allocate(request, 0)
        full = request.num_tokens // BLOCK_TOKENS
        contents: list[bytes] = []

        def forward() -> None:
            contents.extend(self.fill(block, 1000 + block) for block in table[:full])

        self.step(output(new=[(request, table, 0, request.num_tokens)]), forward)
        self.finish(request, table)
        self.pool.free += table
        for _ in range(3):
            self.step()
        return contents
