"""The namespace: a digest of everything that changes KV bytes but is not in SGLang's chain of page hashes.

The chain covers tokens and, by its seed, `extra_key` (with it the LoRA adapter) and `cache_salt`. It knows
nothing of the model, and nothing of how its KV lies in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import sglang

from orbitkv.engine.native import load_native
from orbitkv.engine.weights import model_identity

if TYPE_CHECKING:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

    from orbitkv.engine.regions import Region
    from orbitkv.engine.settings import Settings

# Of what this adapter writes into a page, and of how it names one. Raise it when either changes.
FORMAT = 1
HASH_HEX_DIGITS = 64
# SGLang draws dummy weights from a generator with a seed of its own, whatever the engine's.
DUMMY_SEED = 1234


def namespace_fields(
    ctx: TreeCacheBuildContext, pool: MHATokenToKVPool, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The parts of the namespace, by name."""
    return {
        "engine": ["sglang", sglang.__version__],
        "format": FORMAT,
        "model": _model_fields(ctx),
        "quantization": str(ctx.model_config.quantization),
        "dtype": str(ctx.model_config.dtype),
        "kv_dtype": [str(pool.dtype), str(pool.store_dtype)],
        "layout": {
            "device": str(pool.device).partition(":")[0],
            "order": "layers of k, v; pages of NHD",
            "layers": [pool.start_layer, len(pool.k_buffer)],
            "kv_heads": pool.head_num,
            "head_size": [pool.head_dim, pool.v_head_dim],
        },
        "page_tokens": pool.page_size,
        "parallel": [ctx.tp_size, ctx.params.pp_size],
        "hash": "sha256 chain of pages",
        "scope": environ.get("ORBITKV_CACHE_SCOPE", ""),
    }


def _model_fields(ctx: TreeCacheBuildContext) -> dict[str, Any]:
    args, model = ctx.server_args, ctx.model_config
    is_dummy = str(getattr(args.load_format, "value", args.load_format)) == "dummy"
    return model_identity(
        model.hf_config.to_dict(),
        model.model_path,
        getattr(model, "revision", None),
        dummy_seed=DUMMY_SEED if is_dummy else None,
    )


def namespace_digest(fields: dict[str, Any]) -> str:
    """64 hex digits."""
    return load_native().blake3_hex(json.dumps(fields, sort_keys=True).encode())


def registration(
    ctx: TreeCacheBuildContext,
    pool: MHATokenToKVPool,
    regions: list[Region],
    *,
    settings: Settings,
    instance: str,
    environ: Mapping[str, str],
) -> Any:
    """The native registration, equal on every rank of one engine. `instance` is 32 hex digits, the same for
    all of them and for no other engine."""
    native = load_native()
    return native.Registration(
        socket=settings.socket,
        engine="sglang",
        engine_version=sglang.__version__,
        model=str(ctx.model_config.model_path),
        instance=instance,
        namespace=namespace_digest(namespace_fields(ctx, pool, environ)),
        world_size=ctx.tp_size,
        groups=[
            {
                "group": 0,
                "page_bytes": sum(region.block_bytes for region in regions),
                "block_tokens": pool.page_size,
                # Each rank has its own KV heads; where there are fewer heads than ranks, its own copy.
                "shard_count": ctx.tp_size,
                "rule": "prefix",
            }
        ],
    )


def hash_bytes(key: str) -> bytes:
    """The native hash of a page: SGLang's hex SHA-256, 32 bytes. Raises ValueError for anything else."""
    if len(key) != HASH_HEX_DIGITS:
        raise ValueError(f"page hash {key!r} has {len(key)} digits; a SHA-256 has {HASH_HEX_DIGITS}")
    return bytes.fromhex(key)
