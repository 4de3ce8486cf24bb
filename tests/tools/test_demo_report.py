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
from demo.rounds import Phase, Round, Source
from demo.workload import Request

PAGE_BYTES = 131072
# Two prompts of 257 and 513 tokens: 8 and 16 pages, and a token each that is always computed.
PAGES = 24
ZERO = Counters.zero()
COLD = replace(ZERO, computed_tokens=770, missed_pages=PAGES)
HIT = replace(
    ZERO,
    computed_tokens=2,
    restored_tokens=768,
    external_hit_tokens=768,
    verified_bytes=PAGES * PAGE_BYTES,
)
IN_MEMORY = replace(HIT, ram_pages=PAGES)
ON_SSD = replace(HIT, ssd_pages=PAGES)


def answer(prefix_tokens: int, ttft_ms: float, cached: int = 0, tokens: tuple[int, ...] = (1, 2)) -> Answer:
    request = Request(f"{prefix_tokens} tokens", (8,) * (prefix_tokens + 1), prefix_tokens)
    return Answer(request, ttft_ms, tokens, prefix_tokens + 1, cached)


def played(name: str, source: Source, counted: Counters, ttft_ms: float, cached: int) -> Round:
    answers = [answer(256, ttft_ms, cached), answer(512, ttft_ms + 10, cached)]
    return Round(name, source, [Phase(1, answers, counted)], Drain(name, 0.1, {}), PAGE_BYTES)


def rounds() -> list[Round]:
    return [
        played("cold", Source.NOTHING, COLD, 50, 0),
        played("from memory", Source.MEMORY, IN_MEMORY, 10, 256),
        played("from SSD", Source.SSD, ON_SSD, 20, 256),
        played("manager restarted", Source.SSD, ON_SSD, 22, 256),
        played("SSD emptied", Source.NOTHING, COLD, 50, 0),
        played("from memory again", Source.MEMORY, IN_MEMORY, 12, 256),
    ]


def outcome(*changed: Round) -> report.Outcome:
    """A good one, with these rounds in the place of those of the same names."""
    by_name = {played.name: played for played in changed}
    every = [by_name.get(played.name, played) for played in rounds()]
    same = {played.name: Verdict(True, []) for played in every[1:]}
    return report.Outcome("vllm 0.29.0", "passed", every, same, [r.drain for r in every], "io_uring")


def test_summary_has_exactly_the_promised_keys_and_the_measured_values() -> None:
    summary = report.summary(outcome())
    by_round = summary.pop("rounds")
    assert summary == {
        "engine": "vllm 0.29.0",
        "outputs_identical": True,
        "restored_tokens": 4 * 768,
        "ttft_ms": {"cold": 55, "restored": 15, "ssd": 25},
        "tiers": {"ram": 48, "ssd": 48, "miss": 48},
        "drained": True,
        "self_test": "passed",
        "ssd_mode": "io_uring",
    }
    assert [row["name"] for row in by_round] == [played.name for played in rounds()]
    assert by_round[2] == {
        "name": "from SSD",
        "source": "ssd",
        "requests": 2,
        "requested_pages": PAGES,
        "tiers": {"ram": 0, "ssd": PAGES, "miss": 0},
        "restored_tokens": 768,
        "verified_bytes": PAGES * PAGE_BYTES,
        "bad_pages": 0,
        "ttft_ms": 25,
        "outputs_identical": True,
        "drained": True,
    }
    assert by_round[0]["outputs_identical"] is None, "it is what the others are compared with"


def test_a_good_outcome_has_no_problem() -> None:
    assert report.problems(outcome()) == []


@pytest.mark.parametrize(
    ("name", "source", "counted", "cached", "problem"),
    [
        ("cold", Source.NOTHING, IN_MEMORY, 256, "cold: 24 pages were found where there should be none"),
        ("from memory", Source.MEMORY, COLD, 0, "from memory: nothing was restored"),
        ("from memory", Source.MEMORY, IN_MEMORY, 0, "not restored: 256 tokens, 512 tokens"),
        ("from memory", Source.MEMORY, ON_SSD, 256, "from memory: nothing came from memory"),
        ("from memory", Source.MEMORY, replace(IN_MEMORY, local_tokens=32), 256, "still held 32 tokens"),
        ("from SSD", Source.SSD, COLD, 0, "from SSD: nothing was restored"),
        ("from SSD", Source.SSD, IN_MEMORY, 256, "from SSD: nothing came from the SSD"),
        (
            "from SSD",
            Source.SSD,
            replace(ON_SSD, ssd_pages=PAGES - 1, ram_pages=1),
            256,
            "from SSD: 1 pages were in memory, which should be empty",
        ),
        (
            "from SSD",
            Source.SSD,
            replace(ON_SSD, ssd_pages=PAGES - 1),
            256,
            "24 pages to ask for, and 23 were",
        ),
        ("from SSD", Source.SSD, replace(ON_SSD, verified_bytes=7), 256, "7 landed"),
        ("from SSD", Source.SSD, replace(ON_SSD, bad_pages=2), 256, "2 pages were unreadable"),
        ("manager restarted", Source.SSD, COLD, 0, "manager restarted: nothing was restored"),
        ("SSD emptied", Source.NOTHING, ON_SSD, 256, "24 pages were found where there should be none"),
        ("from memory again", Source.MEMORY, COLD, 0, "from memory again: nothing was restored"),
    ],
)
def test_each_round_that_was_not_what_it_should_be_is_named(
    name: str, source: Source, counted: Counters, cached: int, problem: str
) -> None:
    changed = played(name, source, counted, 10, cached)
    assert problem in "\n".join(report.problems(outcome(changed)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"verdicts": {"from SSD": Verdict(False, [])}}, "from SSD: outputs differ"),
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
    none = outcome(played("from memory", Source.MEMORY, COLD, 50, 0))
    assert report.summary(none)["ttft_ms"] == {"cold": 55, "restored": None, "ssd": 25}


def test_what_the_engine_held_itself_is_not_asked_for() -> None:
    phase = Phase(1, [answer(256, 1.0)], replace(ZERO, local_tokens=64))
    assert phase.restorable_pages == 8 - 2


def test_table_has_a_line_a_phase_with_pages_by_tier() -> None:
    lines = report.table(outcome()).removesuffix(f"\n\n{report.LEGEND}").splitlines()
    assert len(lines) == 8
    assert lines[2].endswith("reference")
    assert lines[3].endswith("identical")
    assert "3.0 MiB" in lines[4]  # 24 pages of 128 KiB
    assert lines[4].split()[-4:] == ["0", "24", "0", "identical"]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("verdict", "cell"),
    [
        (Verdict(True, [], ["256 tokens"]), "1 differ by batch"),
        (Verdict(False, [], ["256 tokens", "512 tokens"]), "2 DIFFERENT"),
    ],
)
def test_a_difference_shows_in_the_table_even_if_the_batch_made_it(verdict: Verdict, cell: str) -> None:
    text = report.table(replace(outcome(), verdicts={"from memory": verdict}))
    assert text.splitlines()[3].endswith(cell)


def test_the_plot_is_an_image(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    good = outcome()
    curves = [plot.Curve(played.name, played.serial) for played in good.rounds[:4]]
    plot.draw(tmp_path / "ttft.png", good.engine, curves)
    assert (tmp_path / "ttft.png").read_bytes().startswith(b"\x89PNG")


def test_labels_keep_their_distance_and_their_order() -> None:
    assert plot.label_heights([100, 12, 10, 50], gap=6) == [100, 16, 10, 50]


def with_ahead(used: Ahead) -> report.Outcome:
    good = outcome()
    ahead = played("read ahead", Source.SSD, ON_SSD, 20, 256)
    return replace(good, rounds=[*good.rounds[:3], ahead, *good.rounds[3:]], ahead=used)


def test_reading_ahead_is_in_the_summary_and_the_table_only_if_it_was_asked_for() -> None:
    used = Ahead(read_bytes=1 << 20, restored_bytes=1 << 19, claims=5)
    summary = report.summary(with_ahead(used))
    assert summary["prepared"] == {"read_bytes": 1 << 20, "restored_bytes": 1 << 19, "claims": 5}
    assert summary["tiers"] == {"ram": 48, "ssd": 72, "miss": 48}
    assert report.problems(with_ahead(used)) == []
    assert "read ahead" in report.table(with_ahead(used))
    assert "1.0 MiB for requests that waited, 0.5 MiB of it used (50%)" in report.ahead_line(used)
    assert "prepared" not in report.summary(outcome())


@pytest.mark.parametrize("used", [Ahead(1 << 20, 1 << 19, 0), Ahead(1 << 20, 0, 5)])
def test_reading_ahead_that_nobody_used_is_a_problem(used: Ahead) -> None:
    assert [p for p in report.problems(with_ahead(used)) if "nothing that was read ahead was used" in p]
