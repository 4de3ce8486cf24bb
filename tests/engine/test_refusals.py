"""Configurations that cannot be served with the cache: the engine says so in one line and serves without it,
or, where the configuration means nothing, does not start."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.engine import Engine
from support.lines import adapter_lines
from support.lora import RANK, tiny_adapter
from support.manager import Manager
from support.models import tiny_model
from support.prompts import restorable_tokens

Prompts = Callable[..., list[int]]
TOKENS = 300
HIT = restorable_tokens(TOKENS)
LORA = {"enable_lora": True, "max_loras": 1, "max_lora_rank": RANK}


def assert_served_without_cache(engine: Engine, tokens: list[int], lora: Any = None) -> list[int]:
    """The engine's own cache alone serves; what was generated."""
    first = engine.run(tokens, lora=lora)
    assert first.cached == 0
    assert engine.run(tokens, lora=lora).cached == HIT, "the engine's own cache works"
    engine.press_out()
    again = engine.run(tokens, lora=lora)
    assert (again.cached, again.tokens) == (0, first.tokens)
    status = engine.manager.status()
    assert (status["instances"], status["pool"]["pages"]) == ([], 0)
    return first.tokens


def assert_hits(engine: Engine, tokens: list[int]) -> None:
    """Control: what the refused engine did not get."""
    engine.run(tokens)
    engine.press_out()
    assert engine.run(tokens).cached == HIT


def test_an_engine_with_lora_has_no_cache(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    new_prompt: Prompts,
    tmp_path: Path,
) -> None:
    """Base and adapter, in two runs of the engine whose adapters have one name and other weights."""
    from vllm.lora.request import LoRARequest

    manager, tokens = new_manager(), new_prompt(TOKENS)
    generated = []
    for seed in (1, 2):
        adapter = LoRARequest("adapter", 1, str(tiny_adapter(tmp_path / str(seed), seed)))
        with adapter_lines() as lines:
            engine = new_engine(manager, options=LORA, wait_active=False)
        (line,) = lines
        assert line.startswith("OrbitKV off, serving without it: LoRA is on")
        assert "unset --enable-lora" in line
        generated += [assert_served_without_cache(engine, tokens, lora) for lora in (None, adapter)]
    base, first, base_again, second = map(tuple, generated)
    assert base == base_again
    assert len({base, first, second}) == 3, "the adapters change what is generated"
    assert_hits(new_engine(manager), tokens)


def test_hashes_that_collide_are_not_shared(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    new_prompt: Prompts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.utils import hashing

    # The package is none of the engine's own; any hash of 16 bytes stands for it.
    short = SimpleNamespace(xxh3_128_digest=lambda data: hashlib.sha256(data).digest()[:16])
    monkeypatch.setattr(hashing, "_xxhash", short)
    manager, tokens = new_manager(), new_prompt(TOKENS)
    with adapter_lines() as lines:
        engine = new_engine(manager, options={"prefix_caching_hash_algo": "xxhash_cbor"}, wait_active=False)
    (line,) = lines
    assert "prefix_caching_hash_algo is 'xxhash_cbor'" in line
    assert line.endswith("set sha256_cbor or sha256")
    assert_served_without_cache(engine, tokens)
    assert_hits(new_engine(manager), tokens)


def test_a_socket_that_does_not_exist_is_named(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    new_prompt: Prompts,
    tmp_path: Path,
) -> None:
    manager, tokens = new_manager(), new_prompt(TOKENS)
    missing = tmp_path / "no.sock"
    with adapter_lines(logging.INFO) as lines:
        engine = new_engine(manager, connector={"socket": str(missing)}, wait_active=False)
        assert_served_without_cache(engine, tokens)
    (line,) = lines
    assert line.startswith("OrbitKV not active, serving without it: ")
    assert str(missing) in line


@pytest.mark.parametrize(
    ("role", "said"),
    [({}, "Please specify kv_role"), ({"kv_role": "kv_all"}, "input_value='kv_all'")],
)
def test_a_role_that_means_nothing_stops_the_engine(role: dict[str, str], said: str) -> None:
    from vllm import LLM

    config = {"kv_connector": "OrbitKVConnector", "kv_connector_module_path": "orbitkv.vllm", **role}
    with pytest.raises(ValueError, match="kv_role") as error:
        LLM(model=str(tiny_model()), skip_tokenizer_init=True, kv_transfer_config=config)
    assert said in str(error.value)
    assert "'kv_both'" in str(error.value)
