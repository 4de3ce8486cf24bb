"""Table, summary and verdict of the demo, on made-up measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from demo import plot, report
from demo.client import Answer
from demo.compare import Verdict
from demo.counters import Ahead, Counters
from demo.drain import Drain
from demo.rounds import Phase, Round
from demo.workload import Request

ZERO = Counters.zero()
COLD = replace(ZERO, computed_tokens=600, missed_pages=18, saved_pages=18)
HIT = replace(
    ZERO, computed_tokens=24, restored_tokens=576, external_hit_tokens=576, ram_pages=18, restored_pages=18
)


def answer(prefix_tokens: int, ttft_ms: float, cached: int = 0, tokens: tuple[int, ...] = (1, 2)) -> Answer:
    request = Request(f"{prefix_tokens} tokens", (8,) * prefix_tokens, prefix_tokens)
    return Answer(request, ttft_ms, tokens, prefix_tokens, cached)


def played(name: str, counted: Counters, ttft_ms: float, cached: int) -> Round:
    answers = [answer(256, ttft_ms, cached), answer(512, ttft_ms + 10, cached)]
    return Round(name, [Phase(1, answers, counted)], Drain(name, 0.1, {}), 131072)


def outcome() -> report.Outcome:
    rounds = [
        played("cold", COLD, 50, 0),
        played("pressed out", HIT, 10, 256),
        played("manager restarted", COLD, 50, 0),
        played("pressed out again", HIT, 12, 256),
    ]
    same = {played.name: Verdict(True, []) for played in rounds[1:]}
    return report.Outcome("vllm 0.29.0", "passed", *rounds, same, [r.drain for r in rounds])


def test_summary_has_exactly_the_promised_keys_and_the_measured_values() -> None:
    assert report.summary(outcome()) == {
        "engine": "vllm 0.29.0",
        "outputs_identical": True,
        "restored_tokens": 1152,
        "ttft_ms": {"cold": 55, "restored": 15},
        "tiers": {"ram": 36, "miss": 36},
        "drained": True,
        "self_test": "passed",
    }


def test_a_good_outcome_has_no_problem() -> None:
    assert report.problems(outcome()) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"restored": played("pressed out", COLD, 50, 0)}, "pressed out: nothing was restored"),
        ({"restored": played("pressed out", HIT, 10, 0)}, "not restored: 256 tokens, 512 tokens"),
        ({"again": played("pressed out again", COLD, 50, 0)}, "pressed out again: nothing was restored"),
        ({"cold": played("cold", HIT, 10, 256)}, "the cold round was not cold"),
        ({"restarted": played("manager restarted", HIT, 10, 256)}, "had just been started"),
        (
            {"restored": played("pressed out", replace(HIT, local_tokens=32), 10, 256)},
            "the engine itself still held 32 tokens",
        ),
        ({"verdicts": {"pressed out": Verdict(False, [])}}, "pressed out: outputs differ"),
        ({"drains": [Drain("cold", 5.1, {"leases": 1})]}, "not drained after 5.1 s: leases = 1"),
        ({"self_test": "passed on 0 of 1 ranks"}, "the self-test did not pass"),
    ],
)
def test_each_failure_is_named(change: dict[str, object], problem: str) -> None:
    assert problem in "\n".join(report.problems(replace(outcome(), **change)))


def test_failures_show_in_the_summary() -> None:
    bad = replace(outcome(), verdicts={"a": Verdict(False, [])}, drains=[Drain("x", 6, {"leases": 1})])
    result = report.summary(bad)
    assert (result["outputs_identical"], result["drained"]) == (False, False)


def test_without_hits_there_is_no_restored_time() -> None:
    none = replace(outcome(), restored=played("pressed out", COLD, 50, 0))
    assert report.summary(none)["ttft_ms"] == {"cold": 55, "restored": None}


def test_table_has_a_line_a_phase_with_bytes_from_the_page_size() -> None:
    lines = report.table(outcome()).splitlines()
    assert len(lines) == 6
    assert "2.2 MiB" in lines[3]  # 18 pages of 128 KiB
    assert lines[2].endswith("reference")
    assert lines[3].endswith("identical")
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("verdict", "cell"),
    [
        (Verdict(True, [], ["256 tokens"]), "1 differ by batch"),
        (Verdict(False, [], ["256 tokens", "512 tokens"]), "2 DIFFERENT"),
    ],
)
def test_a_difference_shows_in_the_table_even_if_the_batch_made_it(verdict: Verdict, cell: str) -> None:
    text = report.table(replace(outcome(), verdicts={"pressed out": verdict}))
    assert text.splitlines()[3].endswith(cell)


def test_the_plot_is_an_image(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    good = outcome()
    plot.draw(tmp_path / "ttft.png", good.engine, good.cold.serial, good.restored.serial)
    assert (tmp_path / "ttft.png").read_bytes().startswith(b"\x89PNG")


def with_ahead(used: Ahead) -> report.Outcome:
    counted = replace(HIT, ram_pages=0, tier_pages=18)
    return replace(outcome(), ahead=(played("read ahead", counted, 20, 256), used))


def test_reading_ahead_is_in_the_summary_and_the_table_only_if_it_was_asked_for() -> None:
    used = Ahead(read_bytes=1 << 20, restored_bytes=1 << 19, claims=5)
    summary = report.summary(with_ahead(used))
    assert summary["prepared"] == {"read_bytes": 1 << 20, "restored_bytes": 1 << 19, "claims": 5}
    assert summary["tiers"] == {"ram": 36, "memory": 18, "miss": 36}
    assert report.problems(with_ahead(used)) == []
    assert "read ahead" in report.table(with_ahead(used))
    assert "prepared" not in report.summary(outcome())


@pytest.mark.parametrize("used", [Ahead(1 << 20, 1 << 19, 0), Ahead(1 << 20, 0, 5)])
def test_reading_ahead_that_nobody_used_is_a_problem(used: Ahead) -> None:
    assert [p for p in report.problems(with_ahead(used)) if "nothing that was read ahead was used" in p]
