"""The namespace: a digest of everything that changes KV bytes but is not in the engine's block hash.

Two engines share pages only if all of it agrees. Ranks and replicas of one deployment agree by construction:
nothing here depends on the process.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import vllm
from vllm.platforms import current_platform

from orbitkv.engine.native import load_native
from orbitkv.engine.settings import Settings
from orbitkv.engine.weights import model_identity
from orbitkv.vllm.sleep import private_scope

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

INSTANCE_HEX_DIGITS = 32


def namespace_fields(
    config: VllmConfig, kv_cache: KVCacheConfig, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The parts of the namespace, by name."""
    group = kv_cache.kv_cache_groups[0]
    spec = group.kv_cache_spec
    # Only where there is one: it changes the name of no other engine's pages.
    private = {} if (scope := private_scope(config)) is None else {"private": scope}
    return {
        **private,
        "engine": ["vllm", vllm.__version__],
        "model": _model_fields(config.model_config, config.load_config),
        "quantization": str(config.model_config.quantization),
        "dtype": str(config.model_config.dtype),
        "kv_dtype": [str(config.cache_config.cache_dtype), str(spec.dtype)],
        "layout": {
            "device": current_platform.device_type,
            "order": str(kv_cache.kv_cache_layout),
            "layers": list(group.layer_names),
            "page_size_bytes": spec.page_size_bytes,
            "kv_heads": spec.num_kv_heads,
            "head_size": [spec.head_size, spec.head_size_v],
        },
        "block_tokens": spec.block_size,
        "parallel": [
            config.parallel_config.tensor_parallel_size,
            config.parallel_config.pipeline_parallel_size,
        ],
        "hash": _hash_fields(config.cache_config.prefix_caching_hash_algo, environ),
        "scope": environ.get("ORBITKV_CACHE_SCOPE", ""),
    }


def _model_fields(model: ModelConfig, load: LoadConfig) -> dict[str, Any]:
    dummy_seed = model.seed if load.load_format == "dummy" else None
    return model_identity(model.hf_config.to_dict(), model.model, model.revision, dummy_seed=dummy_seed)


def _hash_fields(algorithm: str, environ: Mapping[str, str]) -> dict[str, str]:
    fields = {"algorithm": algorithm, "seed": environ.get("PYTHONHASHSEED", "")}
    if algorithm == "sha256":
        # This variant hashes a pickle, whose bytes belong to the Python version.
        fields["python"] = ".".join(platform.python_version_tuple()[:2])
    return fields


def namespace_digest(fields: dict[str, Any]) -> str:
    """64 hex digits."""
    return load_native().blake3_hex(json.dumps(fields, sort_keys=True).encode())


def registration(
    config: VllmConfig, kv_cache: KVCacheConfig, settings: Settings, environ: Mapping[str, str]
) -> Any:
    """The native registration, equal in every process of one engine.

    Both sides derive the instance token from the engine id, which vLLM hands to all of its processes, so they
    find each other in the manager without a handshake.
    """
    native = load_native()
    group = kv_cache.kv_cache_groups[0]
    engine_id = str(config.kv_transfer_config.engine_id)
    return native.Registration(
        socket=settings.socket,
        engine="vllm",
        engine_version=vllm.__version__,
        model=str(config.model_config.model),
        instance=native.blake3_hex(engine_id.encode())[:INSTANCE_HEX_DIGITS],
        namespace=namespace_digest(namespace_fields(config, kv_cache, environ)),
        world_size=config.parallel_config.world_size,
        groups=[
            {
                "group": 0,
                "page_bytes": page_bytes(kv_cache),
                "block_tokens": group.kv_cache_spec.block_size,
                # Each rank has its own KV heads; where there are fewer heads than ranks, its own copy.
                "shard_count": config.parallel_config.tensor_parallel_size,
                "rule": "prefix",
            }
        ],
    )


def page_bytes(kv_cache: KVCacheConfig) -> int:
    """Bytes of one block of all layers on one rank: one shard of a page."""
    group = kv_cache.kv_cache_groups[0]
    return group.kv_cache_spec.page_size_bytes * len(group.layer_names)
