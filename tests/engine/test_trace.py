"""The trace of transfers of a real engine, whose pages come from a slow tier behind an emptied pool."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.engine import Engine
from support.manager import Manager
from support.prompts import BLOCK_TOKENS, restorable_tokens
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 600
PAGES = restorable_tokens(TOKENS) // BLOCK_TOKENS
PAGE_BYTES = 64 << 10
DELAY_MS = 100
ASKED = ["queued", "read_start", "host_ready"]
# A restore inside the step is used layer by layer, while its later ones are still on their way.
RESTORED = {"restore_submit", "restore_complete", "gpu_ready", "first_use"}
FIELDS = {"event", "monotonic_ns", "wall_ms", "request", "pid", "side", "rank", "session", "operation"}
FIELDS |= {"revision", "mode", "pages", "failed_pages", "bytes", "ms"}


@pytest.fixture(scope="module")
def trace_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "trace.jsonl"


@pytest.fixture(scope="module", params=["async", "sync", "prepared"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def engine(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], mode: str, trace_path: Path
) -> Iterator[Engine]:
    tier = ("--memory-tier-size", "128mib", "--memory-tier-delay-ms", str(DELAY_MS))
    manager = new_manager(flags=tier)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORBITKV_TRACE_TRANSFERS", "1")
        patch.setenv("ORBITKV_TRACE_PATH", str(trace_path))
        patch.setenv("ORBITKV_PREPARE_REQUESTS", str(int(mode == "prepared")))
        load_mode = "sync" if mode == "sync" else "async"
        yield new_engine(
            manager,
            max_num_seqs=1,
            connector={"verify_restore": "all", "lookup_deadline_ms": 60_000, "load_mode": load_mode},
        )


def read(path: Path) -> list[dict[str, Any]]:
    """All lines, by time."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: line["monotonic_ns"])


def traced(engine: Engine, path: Path, name: str, wanted: set[str]) -> list[dict[str, Any]]:
    """The events of a request, once all those wanted are there: each side writes its lines a little later."""
    # vLLM makes the ids of requests by appending to those that it is given.
    request_id = engine._internal_ids[name]

    def events() -> list[dict[str, Any]]:
        lines = [line for line in read(path) if line["request"] == request_id]
        return lines if wanted <= {line["event"] for line in lines} else []

    return wait_until(events, f"{wanted} of {name} are traced")


def is_prepared(engine: Engine) -> bool:
    return engine.manager.status()["query"]["operations"]["prepared"] == 1


def test_a_restored_request(engine: Engine, new_prompt: Prompts, mode: str, trace_path: Path) -> None:
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens).tokens
    engine.press_out()
    wait_until(lambda: engine.manager.status()["tier"]["write_queue_pending"] == 0, "the tier has it")
    engine.manager.drop_memory()
    engine.kv.poison()

    engine.add("running", new_prompt(20, 1), 1000)
    engine.step_until(lambda: engine.generated("running") > 0, "the only slot is taken")
    engine.add("restored", tokens)
    hashes = list(engine.request("restored").block_hashes)
    if mode == "prepared":
        engine.step_until(lambda: is_prepared(engine), "it is read ahead")
        engine.step()
    engine.abort("running")
    result = engine.finish(["restored"])["restored"]
    assert (result.tokens, result.cached) == (cold, restorable_tokens(TOKENS))
    engine.settle()

    asked = [*ASKED, "prepared_read_ms", "host_ready"] if mode == "prepared" else ASKED
    lines = traced(engine, trace_path, "restored", {*asked, *RESTORED})
    names = [line["event"] for line in lines]
    assert names[: len(asked)] == asked
    rest = names[len(asked) :]
    assert rest[0] == "restore_submit"
    assert set(rest) == RESTORED
    assert len(rest) == len(RESTORED)
    if mode != "sync":
        assert rest == ["restore_submit", "restore_complete", "gpu_ready", "first_use"]
    at = {line["event"]: line["monotonic_ns"] for line in reversed(lines)}
    assert at["restore_complete"] <= at["gpu_ready"]
    assert (at["host_ready"] - at["read_start"]) / 1e6 >= DELAY_MS, "it was read from the slow tier"
    counted = [line for line in lines if line["event"] not in ("queued", "prepared_read_ms")]
    assert {line["pages"] for line in counted} == {PAGES}
    assert {line["bytes"] for line in counted} == {PAGES * PAGE_BYTES}
    assert len({line["operation"] for line in lines if "operation" in line}) == 1
    assert "query_cancel" not in names
    assert_names_no_content(lines, trace_path.read_text(), tokens, hashes)


def assert_names_no_content(
    lines: list[dict[str, Any]], text: str, tokens: list[int], hashes: list[bytes]
) -> None:
    """Neither tokens nor hashes: no field can hold them, and none of their usual texts is there."""
    for line in lines:
        assert set(line) <= FIELDS
        assert all(isinstance(value, str | int | float) for value in line.values())
    forbidden = [text for block in hashes for text in (block.hex(), repr(bytes(block))[2:-1])]
    for first, second in pairwise(tokens):
        forbidden += [f"{first},{second}", f"{first}, {second}", f"{first} {second}"]

    def found(where: str) -> bool:
        return any(part in where for part in forbidden)

    assert not found(text)
    assert found(text + json.dumps({"tokens": tokens})), "control: it would be seen"
    assert found(text + hashes[0].hex()), "control: it would be seen"


def test_a_request_that_is_aborted_while_it_is_read(
    engine: Engine, new_prompt: Prompts, mode: str, trace_path: Path
) -> None:
    tokens = new_prompt(TOKENS)
    engine.run(tokens)
    engine.press_out()
    wait_until(lambda: engine.manager.status()["tier"]["write_queue_pending"] == 0, "the tier has it")
    engine.manager.drop_memory()
    if mode == "prepared":
        engine.add("running", new_prompt(20, 1), 1000)
        engine.step_until(lambda: engine.generated("running") > 0, "the only slot is taken")
    engine.add("aborted", tokens)
    engine.step()
    engine.abort("aborted")
    if mode == "prepared":
        engine.abort("running")
    engine.settle()
    engine.manager.assert_drained()
    lines = traced(engine, trace_path, "aborted", {"query_cancel", "read_stopped"})
    assert [line["event"] for line in lines] == ["queued", "read_start", "query_cancel", "read_stopped"]
    assert lines[2]["mode"] == ("prepare" if mode == "prepared" else "demand")
