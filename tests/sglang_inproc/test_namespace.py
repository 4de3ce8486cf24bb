"""Whatever makes KV bytes incompatible makes another namespace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import context, new_pool

from orbitkv.sglang.namespace import hash_bytes, namespace_digest, namespace_fields


def digest(environ: dict[str, str] | None = None, **changes: Any) -> str:
    memory = new_pool()
    for name, value in changes.pop("pool", {}).items():
        setattr(memory, name, value)
    ctx = context(memory)
    model = SimpleNamespace(**{**vars(ctx.model_config), **changes.pop("model", {})})
    ctx = SimpleNamespace(**{**vars(ctx), "model_config": model, **changes})
    return namespace_digest(namespace_fields(ctx, memory, environ or {}))


def test_equal_engines_share() -> None:
    assert digest() == digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"hf_config": SimpleNamespace(to_dict=lambda: {"model_type": "other"})}},
        {"model": {"dtype": torch.float16}},
        {"model": {"quantization": "fp8"}},
        {"pool": {"dtype": torch.float16}},
        {"pool": {"page_size": 32}},
        {"pool": {"head_num": 1}},
        {"pool": {"v_head_dim": 32}},
        {"pool": {"start_layer": 2}},
        {"tp_size": 2},
        {"environ": {"ORBITKV_CACHE_SCOPE": "team"}},
    ],
    ids=str,
)
def test_another_engine_does_not(changes: dict[str, Any]) -> None:
    assert digest(**changes) != digest()


def test_a_page_hash_is_a_sha256() -> None:
    assert hash_bytes("ab" * 32) == b"\xab" * 32
    for key in ("", "ab" * 16, "zz" * 32):
        with pytest.raises(ValueError, match=r"64|hexadecimal"):
            hash_bytes(key)
