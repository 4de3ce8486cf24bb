"""Requests, streams and counters of the demo, without an engine."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from demo import client, compare, workload
from demo.counters import Counters, page_bytes
from demo.drain import Drain
from demo.engine import Engine
from demo.metrics import metric
from demo.rounds import Phase, Round, Source
from demo.settings import BLOCK_TOKENS, ENGINE_TOKENS, MAX_MODEL_LEN, OUTPUT_TOKENS, PREFIX_TOKENS
from demo.sglang import Sglang, SglangStream
from demo.vllm import Vllm, VllmStream

ENGINES: dict[str, Engine] = {"vllm": Vllm(), "sglang": Sglang()}
REQUEST = workload.Request("r", (8, 9), 0)
METRICS = """# HELP vllm:prompt_tokens_by_source_total x
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 100.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external_kv_transfer"} 64.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="tiny",source="external_kv_transfer"} 32.0
vllm:external_prefix_cache_hits_total{engine="0"} 1.5e+03
"""


def stream(*events: dict[str, Any]) -> list[bytes]:
    return [b"data: " + json.dumps(event).encode() + b"\n" for event in events] + [b"\n", b"data: [DONE]\n"]


def tokens_event(*ids: int) -> dict[str, Any]:
    return {"choices": [{"text": "x", "token_ids": list(ids)}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}}


def test_a_stream_gives_tokens_usage_and_time_of_the_first_token() -> None:
    ids = range(OUTPUT_TOKENS)
    lines = stream(tokens_event(), tokens_event(*ids[:3]), tokens_event(*ids[3:]), USAGE)
    answer = client.read_stream(REQUEST, VllmStream(), lines, time.monotonic() - 1)
    assert answer.tokens == tuple(ids)
    assert (answer.prompt_tokens, answer.cached_tokens) == (2, 1)
    assert answer.ttft_ms >= 1000


def sglang_event(*ids: int, finish: str | None = None) -> dict[str, Any]:
    meta = {"prompt_tokens": 2, "cached_tokens": 1, "finish_reason": finish and {"type": finish}}
    return {"output_ids": list(ids), "meta_info": meta}


def test_a_stream_that_repeats_its_tokens_gives_each_once() -> None:
    ids = range(OUTPUT_TOKENS)
    lines = stream(sglang_event(*ids[:1]), sglang_event(*ids[:9]), sglang_event(*ids, finish="length"))
    answer = client.read_stream(REQUEST, SglangStream(), lines, time.monotonic() - 1)
    assert answer.tokens == tuple(ids)
    assert (answer.prompt_tokens, answer.cached_tokens) == (2, 1)
    with pytest.raises(client.RequestError):
        client.read_stream(REQUEST, SglangStream(), lines[:2], time.monotonic())


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_salt_changes_the_request_of_every_engine(engine: Engine) -> None:
    assert engine.body(REQUEST.prompt, None) != engine.body(REQUEST.prompt, "salt")
    assert "salt" in engine.body(REQUEST.prompt, "salt").values()


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_engines_hold_the_blocks_that_the_demo_counts_on(engine: Engine, tmp_path: Path) -> None:
    words = [str(word) for word in engine.command(tmp_path, tmp_path, "127.0.0.1", 1)]
    flags = dict(itertools.pairwise(words))
    assert str(BLOCK_TOKENS) in (flags.get("--block-size"), flags.get("--page-size"))
    assert str(ENGINE_TOKENS) == flags.get("--max-total-tokens") or "--num-gpu-blocks-override" in flags


@pytest.mark.parametrize(
    "events",
    [
        [],
        [tokens_event(*range(OUTPUT_TOKENS))],
        [tokens_event(1), USAGE],
        [{"error": {"message": "the engine died"}}],
    ],
    ids=["nothing", "no usage", "too short", "error"],
)
def test_half_a_stream_is_an_error(events: list[dict[str, Any]]) -> None:
    with pytest.raises(client.RequestError):
        client.read_stream(REQUEST, VllmStream(), stream(*events), time.monotonic())


def test_metrics_are_summed_over_engines() -> None:
    source = 'source="external_kv_transfer"'
    assert metric(METRICS, "vllm:prompt_tokens_by_source_total", source) == 96
    assert metric(METRICS, "vllm:external_prefix_cache_hits_total") == 1500
    assert metric(METRICS, "vllm:external_prefix_cache_hits") == 0


def test_page_bytes_of_a_pool() -> None:
    assert page_bytes({"pool": {"used_bytes": 2 * (131072 + 4096), "pages": 2}}) == 131072
    assert page_bytes({"pool": {"used_bytes": 0, "pages": 0}}) == 0


def test_prompts_fit_the_model_and_are_the_same_every_time() -> None:
    requests = [*workload.serial_requests(), *workload.concurrent_requests()]
    assert requests == [*workload.serial_requests(), *workload.concurrent_requests()]
    assert len({request.name for request in requests}) == len(requests)
    assert len({request.prompt for request in requests}) == len(requests)
    assert {request.prefix_tokens for request in requests} == set(PREFIX_TOKENS)
    assert max(len(request.prompt) for request in requests) + OUTPUT_TOKENS <= MAX_MODEL_LEN


def test_shared_prefixes_are_shared_and_serial_ones_are_not() -> None:
    def first_blocks(requests: list[workload.Request]) -> set[tuple[int, ...]]:
        return {request.prompt[:BLOCK_TOKENS] for request in requests}

    serial, concurrent = workload.serial_requests(), workload.concurrent_requests()
    assert len(first_blocks(serial)) == len(serial)
    assert len(first_blocks(concurrent)) < len(concurrent)


def test_pressing_prompts_do_not_fit_the_engine_and_are_new_each_time() -> None:
    once, again = workload.pressing_requests("a"), workload.pressing_requests("b")
    assert sum(len(request.prompt) for request in once) > ENGINE_TOKENS
    assert not {request.prompt for request in once} & {request.prompt for request in again}


def answered(tokens: tuple[int, ...]) -> list[client.Answer]:
    return [client.Answer(REQUEST, 1.0, tokens, 2, 0)]


def played(tokens: tuple[int, ...]) -> Round:
    return Round("x", Source.MEMORY, [Phase(1, answered(tokens), Counters.zero())], Drain("x", 0, {}), 1)


def test_a_difference_is_found() -> None:
    assert compare.differing(played((1, 2)), played((1, 2))) == []
    assert compare.differing(played((1, 2)), played((1, 3))) == ["r"]


def counted(local: int = 0, restored: int = 0) -> Counters:
    return dataclasses.replace(Counters.zero(), local_tokens=local, restored_tokens=restored)


HELD = Phase(1, answered((1,)), counted(local=32))


@pytest.mark.parametrize(
    ("own", "restored", "clause"),
    [
        (HELD, Phase(1, answered((1,)), counted(restored=32)), ""),
        (HELD, Phase(1, answered((2,)), counted(restored=32)), "differ: r"),
        (HELD, Phase(1, answered((1,)), counted()), "restored nothing"),
        (HELD, Phase(1, answered((1,)), counted(local=32, restored=32)), "own cache as it should"),
        (Phase(1, answered((1,)), counted()), HELD, "own cache as it should"),
    ],
    ids=["equal", "different", "nothing restored", "not pressed out", "not held"],
)
def test_only_a_serial_control_that_restored_acquits(own: Phase, restored: Phase, clause: str) -> None:
    identical, note = compare.weigh(compare.Control(own, restored))
    assert identical is (clause == "")
    assert clause in note
