"""The trace of transfers of a real engine, whose two sides are one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.manager import Manager
from support.sglang import PAGE_TOKENS, Sglang, restorable
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 400
PAGES = restorable(TOKENS) // PAGE_TOKENS
EVENTS = {
    "queued",
    "read_start",
    "host_ready",
    "restore_submit",
    "first_use",
    "restore_complete",
    "gpu_ready",
}


def test_a_restored_request(
    manager: Manager, new_engine: Callable[..., Sglang], new_prompt: Prompts, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    environment = {"ORBITKV_TRACE_TRANSFERS": "1", "ORBITKV_TRACE_PATH": str(path)}
    engine = new_engine(manager, environment=environment)
    assert f"OrbitKV: transfers are traced to {path}" in engine.log()
    tokens = new_prompt(TOKENS)
    cold = engine.add(tokens)
    cold.result()
    engine.press_out()
    again = engine.add(tokens)
    assert again.result().restored == restorable(TOKENS)

    def events(name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        of_it = [line for line in lines if line["request"] == name]
        return sorted(of_it, key=lambda line: line["monotonic_ns"])

    wait_until(lambda: {line["event"] for line in events(again.name)} >= EVENTS, "all is traced")
    lines = events(again.name)
    assert [line["event"] for line in lines][:4] == ["queued", "read_start", "host_ready", "restore_submit"]
    assert len(lines) == len(EVENTS)
    assert {line["pages"] for line in lines} == {PAGES}
    assert {line["pid"] for line in lines} == {engine.scheduler_pid}
    assert [line["event"] for line in events(cold.name)] == ["queued", "read_start"], "control: a miss"
