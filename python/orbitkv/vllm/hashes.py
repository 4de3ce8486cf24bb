"""Whether another process of this engine comes to the same block hashes."""

from __future__ import annotations

from collections.abc import Mapping

from vllm.utils import hashing
from vllm.v1.core import kv_cache_utils

SEED = "PYTHONHASHSEED"


def why_private(algorithm: str, environ: Mapping[str, str]) -> str | None:
    """One clause saying why no other process, not even this engine after a restart, will find pages saved
    here; None where others will.

    Every block hash continues the hash before it, and the first one continues a seed. Engines that draw that
    seed at random would save page after page and never find one: nothing fails, and every lookup is a miss.
    """
    if SEED in environ:
        return None
    resolve = getattr(kv_cache_utils, "resolve_none_hash_seed", None)
    if resolve is not None:
        hash_function = hashing.get_hash_fn_by_name(algorithm)
        if resolve(hash_function) == resolve(hash_function):
            return None
    return f"this engine draws the seed of its block hashes at random; set {SEED}=0 in all engines"
