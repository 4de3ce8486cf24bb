"""What cannot be served is refused with one line, and the engine gets the tree cache that it would
have."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import context, new_pool
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from orbitkv.engine.settings import SettingsError
from orbitkv.sglang import factory, plugin
from orbitkv.sglang.support import pool_reason, why_unsupported


class Arguments:
    """Arguments of the engine, some of them others."""

    def __init__(self, args: Any, changes: dict[str, Any]) -> None:
        self._args = args
        vars(self).update(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args, name)


def changed(**changes: Any) -> SimpleNamespace:
    """A context; names of the parameters and of the arguments are changed there."""
    ctx = context(new_pool())
    args = Arguments(ctx.server_args, changes.pop("args", {}))
    for name, value in changes.pop("params", {}).items():
        setattr(ctx.params, name, value)
    return SimpleNamespace(**{**vars(ctx), "server_args": args, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"disable_radix_cache": True}, "the radix cache is off"),
        ({"params": {"page_size": 1}}, "page size is 1; set --page-size 64"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache"),
        ({"args": {"enable_lmcache": True}}, "--enable-lmcache is another external cache"),
        ({"args": {"disaggregation_mode": "prefill"}}, "disaggregation mode is 'prefill'"),
        ({"args": {"enable_pdmux": True}}, "--enable-pdmux runs prefill and decode on streams"),
        ({"args": {"enable_memory_saver": True}}, "--enable-memory-saver is on"),
        ({"params": {"pp_size": 2}}, "pipeline parallel size is 2"),
        ({"params": {"attn_cp_size": 2}}, "attention context parallel size is 2"),
        ({"args": {"dcp_size": 2}}, "decode context parallel size is 2"),
        ({"args": {"enable_dp_attention": True}}, "data parallel attention is on"),
        ({"tp_size": 2, "args": {"nnodes": 2}}, "ranks are on 2 hosts"),
        ({"is_hybrid_swa": True}, "only full attention"),
        ({"is_hybrid_ssm": True}, "only full attention"),
        ({"is_dsa": True}, "only full attention"),
        ({"params": {"is_eagle": True}}, "speculative decoding is on"),
        ({"args": {"speculative_algorithm": "NGRAM"}}, "speculative decoding is on"),
        ({"args": {"dllm_algorithm": "LowConfidence"}}, "diffusion decoding is on"),
        ({"model_config": SimpleNamespace(is_multimodal=True)}, "the model is multimodal"),
        ({"model_config": SimpleNamespace(is_generation=False)}, "the model embeds or classifies"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_configuration_is_refused(changes: dict[str, Any], said: str) -> None:
    assert said in why_unsupported(changed(**changes))


@pytest.mark.parametrize("backend", ["full", "tc_piecewise"])
def test_whole_prefill_graphs_are_refused(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Nobody waits for layers inside them."""
    from orbitkv.sglang import support

    assert why_unsupported(changed()) is None
    monkeypatch.setattr(support, "prefill_graph_backend", lambda: backend)
    assert f"the prefill graph backend is {backend!r}" in why_unsupported(changed())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("is_quantized_kv_cache", True, "the KV cache is quantised"),
        ("store_dtype", torch.uint8, "the KV cache is quantised"),
        ("use_hnd", True, "not laid out token by token"),
        ("kv_cache_layout", "vectorized_5d", "not laid out token by token"),
        ("enable_custom_mem_pool", True, "not an ordinary allocation"),
        ("_post_capture_owner", object(), "not an ordinary allocation"),
    ],
)
def test_a_pool_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: object, said: str) -> None:
    pool = new_pool()
    assert pool_reason(pool) is None
    is_of_class = isinstance(getattr(type(pool), name, None), property)
    monkeypatch.setattr(type(pool) if is_of_class else pool, name, value)
    assert said in pool_reason(pool)
    assert said in why_unsupported(context(pool))


def test_another_pool_is_refused_by_its_name() -> None:
    assert "the KV pool is object" in pool_reason(object())


def build(ctx: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> tuple[Any, list[str]]:
    with caplog.at_level(logging.WARNING, "sglang.orbitkv"):
        cache = factory.build(ctx)
    return cache, [record.getMessage() for record in caplog.records if record.name == "sglang.orbitkv"]


def test_a_refusal_is_one_line_and_a_plain_tree(caplog: pytest.LogCaptureFixture) -> None:
    """Not one with a linker of SGLang's own, which the flag would ask for."""
    cache, lines = build(changed(params={"is_eagle": True}), caplog)
    assert type(cache) is UnifiedRadixCache
    assert cache.linker is None
    assert lines == ["OrbitKV off, serving without it: speculative decoding is on"]


def test_an_error_at_the_start_is_one_line_and_a_plain_tree(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orbitkv.sglang import start

    monkeypatch.setattr(start, "probe_layout", lambda scratch, native: "block 1 was read elsewhere")
    cache, lines = build(changed(), caplog)
    assert type(cache) is UnifiedRadixCache
    assert lines == ["OrbitKV off, serving without it: layout self-test failed: block 1 was read elsewhere"]


def test_a_device_without_a_forward_stream_is_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies that come after nothing would read and write under the engine's kernels."""
    from orbitkv.sglang import start

    monkeypatch.setattr(
        start, "KVDevice", lambda device: SimpleNamespace(has_streams=True, name="cpu", device=device)
    )
    cache, [line] = build(changed(), caplog)
    assert type(cache) is UnifiedRadixCache
    assert "the engine has no forward stream" in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "ORBITKV_CONFIG is '{', which is no JSON"),
        ("[]", "it must be a JSON object"),
        ('{"lookup_deadline": 5}', "did you mean 'lookup_deadline_ms'"),
        ('{"verify_restore": "some"}', "verify_restore is 'some'"),
    ],
)
def test_settings_that_cannot_be_meant_stop_the_engine(
    monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv("ORBITKV_CONFIG", text)
    with pytest.raises(SettingsError, match=r"ORBITKV_CONFIG|verify_restore") as caught:
        factory.build(changed())
    assert said in str(caught.value)


def test_fewer_pages_are_checked_while_a_request_waits_unless_told_otherwise() -> None:
    assert factory.read_settings({}).verify_restore == "sample:64"
    assert factory.read_settings({"ORBITKV_CONFIG": '{"verify_restore": "all"}'}).verify_restore == "all"


@pytest.mark.parametrize(
    ("cache", "is_on"), [(SimpleNamespace(serves_orbitkv=True), True), (SimpleNamespace(), False)]
)
def test_the_scheduler_asks_a_tree_of_ours_and_no_other(cache: SimpleNamespace, is_on: bool) -> None:
    scheduler = SimpleNamespace(
        tree_cache=cache, enable_hicache_storage=False, enable_unified_cache_external_linker=True
    )
    plugin._after_scheduler_init(None, scheduler)
    assert scheduler.enable_hicache_storage is is_on
    assert scheduler.enable_unified_cache_external_linker is is_on


def test_an_engine_without_us_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.runtime_context import get_memory

    theirs = {"enable_hicache_storage": "1", "enable_unified_cache_external_linker": "2"}
    scheduler = SimpleNamespace(**theirs)
    with get_memory().override(radix_cache_backend=None):
        plugin._after_scheduler_init(None, scheduler)
        plugin._before_weight_update(None)
    assert vars(scheduler) == theirs
