"""The judgement of `make gpu-bench ENGINE=sglang`, on rows and answers as a run leaves them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benches.gpu import run, summary, ttft
from benches.gpu.kinds import KINDS, SGLANG
from benches.gpu.rows import Rows
from benches.gpu.sglang.engine import PRESSING_PROMPTS, PRESSING_SHARE
from benches.gpu.sglang.settings import SglangSettings, dry
from benches.gpu.sglang.targets import verdicts

TOKENS = 8192


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path)


def add(rows: Rows, system: str, kind: str, ms: float, count: int) -> None:
    for number in range(count):
        values = {"mode": "eager", "tokens": TOKENS, "round": number, "whole": True}
        rows.add("ttft", system=system, kind=kind, ms=ms, **values)


def of_hicache(rows: Rows) -> str:
    found = [one.verdict for one in verdicts(rows) if f"eager, {TOKENS} tokens, of HiCache" in one.target]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(("ms", "expected"), [(101.9, "met"), (102.1, "MISSED")])
def test_a_restore_is_held_to_hicache(rows: Rows, ms: float, expected: str) -> None:
    add(rows, "orbitkv", "restore", ms, 9)
    add(rows, "hicache", "restore", 100.0, 5)
    assert of_hicache(rows) == expected


@pytest.mark.parametrize(("ours", "theirs"), [(8, 5), (9, 4), (9, 0), (0, 5)])
def test_too_few_restores_are_no_verdict(rows: Rows, ours: int, theirs: int) -> None:
    add(rows, "orbitkv", "restore", 50.0, ours)
    add(rows, "hicache", "restore", 100.0, theirs)
    add(rows, "native", "hbm-hit", 40.0, 5)
    assert of_hicache(rows) == "not run"


def test_the_summary_calls_systems_by_their_names(rows: Rows, tmp_path: Path) -> None:
    for system in ("orbitkv", "hicache"):
        add(rows, system, "restore", 80.0, 9)
    add(rows, "native", "hbm-hit", 60.0, 9)
    add(rows, "native", "cold", 277.0, 5)
    table = summary.publish(rows, {}, tmp_path, SGLANG.shown)
    entries = json.loads((tmp_path / "summary.json").read_text())
    assert [entry["system"] for entry in entries] == ["hicache", "orbitkv", "device-hit", "cold"]
    assert "device-hit" in table
    assert "hbm-hit" not in table


@pytest.mark.parametrize(
    ("kind", "answer", "expected"),
    [
        ("restore", {"cached": 128, "restored": 128}, True),
        # A page was still on the device: that is faster, and no restore.
        ("restore", {"cached": 128, "restored": 64}, False),
        ("restore", {"cached": 128}, True),
        ("hbm-hit", {"cached": 128, "restored": 0}, True),
        ("hbm-hit", {"cached": 128, "restored": 64}, False),
        ("hbm-hit", {"cached": 64}, False),
    ],
)
def test_a_request_counts_only_if_its_tokens_came_from_where_they_should(
    kind: str, answer: dict[str, Any], expected: bool
) -> None:
    assert ttft._is_whole(answer, kind, 128) is expected


def test_pressing_prompts_are_longer_than_the_memory_and_none_is_too_long() -> None:
    for settings in (SglangSettings(), dry(SglangSettings())):
        assert PRESSING_PROMPTS * PRESSING_SHARE * settings.kv_tokens > settings.kv_tokens
        assert PRESSING_SHARE * settings.kv_tokens < settings.max_model_tokens


@pytest.mark.parametrize("arguments", [["--only", "compiled"], ["--systems", "pegaflow"]])
def test_parts_and_systems_of_another_engine_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run.parsed(["bench", "--engine", "vllm", *arguments])
    with pytest.raises(SystemExit):
        run.parsed(["bench", "--engine", "sglang", *arguments])
    assert f"'{arguments[1]}' is not of sglang" in capsys.readouterr().err


@pytest.mark.parametrize("engine", KINDS)
def test_all_systems_are_measured_unless_some_are_named(engine: str) -> None:
    assert tuple(run.parsed(["bench", "--engine", engine]).systems) == KINDS[engine].systems
