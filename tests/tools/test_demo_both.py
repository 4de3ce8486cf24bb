"""Table, summary and verdict of the demo of both engines, on made-up measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from demo import both, both_report
from demo.both_report import Budget, Outcome, Share
from demo.client import Answer
from demo.compare import Verdict
from demo.counters import Counters
from demo.drain import Drain
from demo.processes import on_one_manager
from demo.rounds import Phase, Round, Source
from demo.settings import ADAPTER
from demo.workload import Request

STATUS = Path(__file__).resolve().parents[2] / "crates" / "cli" / "tests" / "status.json"
PAGE_BYTES = 131072
# Two prompts of 257 and 513 tokens: 8 and 16 pages, and a token each that is always computed.
TOKENS = 768
ZERO = Counters.zero()
HIT = replace(ZERO, restored_tokens=TOKENS, verified_bytes=24 * PAGE_BYTES)
DRAINED = Drain("both at once", 0.1, {})


def played(source: Source, counted: Counters, ttft_ms: float, concurrency: int, begun_s: float) -> Round:
    answers = [
        Answer(Request(f"{count}", (8,) * (count + 1), count), ms, (1, 2), count + 1, 0, begun_s + ms / 1e3)
        for count, ms in ((256, ttft_ms), (512, ttft_ms + 10))
    ]
    return Round(source.value, source, [Phase(concurrency, answers, counted)], DRAINED, PAGE_BYTES)


def share(engine: str, begun_s: float = 100.0, restored: Counters = HIT, cold: Counters = ZERO) -> Share:
    return Share(
        engine,
        "passed",
        played(Source.NOTHING, cold, 50, 1, 10.0),
        played(Source.SSD, restored, 20, 4, begun_s),
        Verdict(True, []),
    )


GOOD = Outcome(
    [share("vllm 0.29.0"), share("sglang 0.5.20", 100.5)], Budget(12 << 20, 11 << 20, 8), [DRAINED]
)


def with_second(changed: Share) -> Outcome:
    return replace(GOOD, shares=[GOOD.shares[0], changed])


def test_the_summary_has_each_engines_share_and_what_they_had_together() -> None:
    summary = both_report.summary(GOOD)
    assert summary["engines"][1] == {
        "engine": "sglang 0.5.20",
        "self_test": "passed",
        "requests": 2,
        "restored_tokens": TOKENS,
        "verified_bytes": 24 * PAGE_BYTES,
        "ttft_ms": {"cold": 55, "restored": 25},
        # Half a second after the other one began.
        "through_ms": 530,
        "outputs_identical": True,
    }
    assert [row["through_ms"] for row in summary.pop("engines")] == [30, 530]
    assert summary == {
        "query_budget": {"budget_bytes": 12 << 20, "peak_bytes": 11 << 20, "waits": 8},
        "outputs_identical": True,
        "drained": True,
    }


def test_the_table_has_a_line_an_engine_and_one_for_the_budget() -> None:
    lines = both_report.table(GOOD).splitlines()
    assert lines[2].split()[:4] == ["vllm", "0.29.0", "4", "2"]
    assert lines[3].split()[-5:] == ["768", "3.0", "MiB", "530", "identical"]
    assert lines[-1] == (
        "query budget 12.0 MiB: queries of both engines owned at most 11.0 MiB at once (92%), "
        "and 8 waited for it"
    )


def test_a_good_outcome_has_no_problem() -> None:
    assert both_report.problems(GOOD) == []


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (share("b", restored=ZERO), "b: 0 of 768 tokens were restored"),
        (share("b", restored=replace(HIT, restored_tokens=736)), "b: 736 of 768 tokens were restored"),
        (share("b", cold=HIT), "b: 768 tokens were restored in the cold round"),
        (share("b", restored=replace(HIT, verified_bytes=7)), "and 7 landed"),
        (share("b", restored=replace(HIT, bad_pages=2)), "b: 2 pages were unreadable"),
        (replace(share("b"), verdict=Verdict(False, [])), "b: outputs differ"),
        (replace(share("b"), self_test="passed on 0 of 1 ranks"), "b: the self-test did not pass"),
    ],
)
def test_what_is_wrong_with_one_engine_is_named(bad: Share, problem: str) -> None:
    found = both_report.problems(with_second(bad))
    assert problem in "\n".join(found)
    assert all(line.startswith("b: ") for line in found)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"budget": Budget(100, 101, 8)}, "queries owned 101 bytes at once, the budget is 100"),
        ({"budget": Budget(100, 90, 0)}, "no query waited for budget"),
        ({"drains": [Drain("engines stopped", 5.1, {"leases": 1})]}, "not drained after 5.1 s: leases = 1"),
    ],
)
def test_what_is_wrong_with_what_they_shared_is_named(change: dict[str, object], problem: str) -> None:
    (found,) = both_report.problems(replace(GOOD, **change))
    assert problem in found


def test_the_budget_is_what_the_manager_says() -> None:
    status = json.loads(STATUS.read_text())
    status["query"].update(budget_bytes=100, peak_reserved_bytes=60)
    status["counters"].update(budget_waits=9)
    assert Budget.read(status, 4) == Budget(100, 60, 5)


def test_both_engines_verify_everything_and_use_one_manager() -> None:
    started = on_one_manager(both.engines(), prepare=False)
    try:
        first, second = started
        assert (first.kind.name, second.kind.name) == ("vllm", "sglang")
        assert (first.socket, first.manager) == (second.socket, second.manager)
        assert first.engine != second.engine
        assert first.engine_log != second.engine_log
        assert json.loads(second.kind.environment["ORBITKV_CONFIG"]).items() > ADAPTER.items()
    finally:
        for each in reversed(started):
            each.close()
