"""The estimate alone: what it refuses, when not, and that it finds out again. Time is simulated."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from orbitkv.vllm.estimate import (
    HALF_LIFE_SAMPLES,
    LEAST_DEADLINE_MS,
    MIN_SAMPLES,
    PROBE_AGAIN_S,
    PROBE_FIRST_S,
    PROBE_MOST_S,
    Rate,
    RestoreEstimate,
)
from orbitkv.vllm.prefill import MAX_UNDER_WAY, MIN_STEP_TOKENS, PrefillTimer

PAGE_TOKENS, PAGE_BYTES = 32, 1 << 16
SEEDS = range(50)


def estimate(ranks: int = 1) -> RestoreEstimate:
    return RestoreEstimate(page_tokens=PAGE_TOKENS, copy_bytes=PAGE_BYTES, read_bytes=ranks * PAGE_BYTES)


def learned(*, compute_s: float, read_s: float, copy_s: float = 0.0, ranks: int = 1) -> RestoreEstimate:
    """An estimate that has seen pages take so long, in transfers of different sizes."""
    known = estimate(ranks)
    for pages in range(1, MIN_SAMPLES + 1):
        known.prefill.observe(pages * PAGE_TOKENS, pages * compute_s)
        known.observe_reads(pages, pages * read_s, 1, 0.0)
        known.observe_copies(pages * PAGE_BYTES * ranks, pages * copy_s * ranks, 0.0)
    return known


# Speeds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rate_lies_between_the_speeds_that_were_seen(seed: int) -> None:
    draw = random.Random(seed)
    rate, speeds = Rate(), []
    for _ in range(100):
        speeds.append(10 ** draw.uniform(-6, 12))
        seconds = 10 ** draw.uniform(-6, 4)
        rate.observe(speeds[-1] * seconds, seconds, draw.choice([1, 1, 3]))
        assert min(speeds) * 0.999 <= rate.per_second <= max(speeds) * 1.001
        assert rate.seconds(rate.per_second) == pytest.approx(1.0)


def test_an_old_sample_weighs_half_after_its_half_life() -> None:
    rate = Rate()
    rate.observe(100, 1.0)
    for _ in range(HALF_LIFE_SAMPLES):
        rate.observe(0, 1e-9)
    rate.observe(0, 0.5 * 0.5 ** (1 / HALF_LIFE_SAMPLES))
    assert rate.per_second == pytest.approx(50, rel=1e-6)


def test_several_samples_at_once_age_the_rest_as_often() -> None:
    one_by_one, at_once = Rate(), Rate()
    for rate in (one_by_one, at_once):
        rate.observe(100, 1.0)
    for _ in range(3):
        one_by_one.observe(0, 1e-12)
    at_once.observe(0, 1e-12, 3)
    one_by_one.observe(0, 1.0)
    at_once.observe(0, 1.0)
    assert at_once.per_second == pytest.approx(one_by_one.per_second, rel=1e-6)
    assert at_once.samples == one_by_one.samples


@pytest.mark.parametrize(
    ("amount", "seconds"),
    [(-1, 1), (1, 0), (1, -1), (math.nan, 1), (1, math.nan), (math.inf, 1), (1, math.inf)],
)
def test_what_cannot_be_is_no_sample(amount: float, seconds: float) -> None:
    rate = Rate()
    rate.observe(amount, seconds)
    assert (rate.samples, rate.per_second, rate.seconds(1)) == (0, 0.0, 0.0)


def test_nothing_came_through() -> None:
    rate = Rate()
    rate.observe(0, 2.0)
    assert (rate.per_second, rate.seconds(1)) == (0.0, math.inf)


# Refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_it_refuses_what_takes_longer_than_computing_and_nothing_else(seed: int) -> None:
    draw = random.Random(seed)
    compute_s, read_s, copy_s = (10 ** draw.uniform(-5, 0) for _ in range(3))
    known = learned(compute_s=compute_s, read_s=read_s, copy_s=copy_s, ranks=draw.choice([1, 4]))
    assert known.may_read(0.0) == (read_s + copy_s <= compute_s)
    assert known.may_copy(0.0) == (copy_s <= compute_s)


@pytest.mark.parametrize("lacking", ["prefill", "read", "copy"])
def test_too_few_samples_refuse_nothing(lacking: str) -> None:
    known = learned(compute_s=0.001, read_s=1.0, copy_s=1.0)
    getattr(known, lacking).samples = MIN_SAMPLES - 1
    assert known.may_read(0.0) == (lacking in ("prefill", "read"))
    assert known.may_copy(0.0) == (lacking in ("prefill", "copy"))
    assert estimate().may_read(0.0)
    assert estimate().may_copy(0.0)


def test_reads_that_bring_nothing_are_refused() -> None:
    known = learned(compute_s=10.0, read_s=1.0)
    assert known.may_read(0.0)
    known.read.restart()
    known.observe_reads(0, 0.5, 1, 0.0)
    assert not known.may_read(0.0)


def test_an_engine_that_became_slow_restores_again() -> None:
    known = learned(compute_s=0.001, read_s=0.01)
    assert not known.may_read(0.0)
    for _ in range(5 * HALF_LIFE_SAMPLES):
        known.prefill.observe(PAGE_TOKENS, 0.1)
    assert known.may_read(0.0)


# Probes ---------------------------------------------------------------------------------------------------


def lookups(
    known: RestoreEstimate, read_s: float, start: float, seconds: float, *, finds: bool = True
) -> list[float]:
    """A lookup every 100 ms; the times of those that were let through. What they read, if there is anything,
    takes so long a page."""
    through = []
    for tick in range(int(seconds * 10)):
        now = start + tick / 10
        if known.may_read(now):
            through.append(now)
            if finds:
                known.observe_reads(4, 4 * read_s, 1, now + 0.05)
    return through


def test_a_tier_that_became_fast_is_found_out() -> None:
    known = learned(compute_s=0.01, read_s=1.0)
    slow = lookups(known, 1.0, 0.0, 600.0)
    assert slow[0] == pytest.approx(PROBE_FIRST_S)
    pauses = [round(after - before, 3) for before, after in pairwise(slow)]
    assert pauses == sorted(pauses)
    assert max(pauses) <= PROBE_MOST_S + 0.2
    assert len(slow) < 600 / PROBE_MOST_S + 6, "probes are few"
    assert known.read_probes.count == len(slow)
    fast = lookups(known, 0.001, 600.0, 2 * PROBE_MOST_S)
    assert fast[0] <= 600 + PROBE_MOST_S + 0.2
    behind = [now for now in fast if now > fast[0]]
    assert len(behind) == round((720.0 - fast[0]) * 10) - 1, "from the first probe on nothing is refused"
    # And slow again: refused at once, and looked at again as soon as the first time.
    for _ in range(3 * HALF_LIFE_SAMPLES):
        known.observe_reads(4, 40.0, 1, 720.0)
    assert lookups(known, 1.0, 720.0, 2 * PROBE_FIRST_S)[0] == pytest.approx(720.0 + PROBE_FIRST_S)


def test_a_probe_that_finds_nothing_is_followed_by_another() -> None:
    known = learned(compute_s=0.01, read_s=1.0)
    through = lookups(known, 1.0, 0.0, PROBE_FIRST_S + 3.5 * PROBE_AGAIN_S, finds=False)
    assert through == pytest.approx([PROBE_FIRST_S + count * PROBE_AGAIN_S for count in range(4)])


def test_reads_that_were_under_way_are_no_probes() -> None:
    known = learned(compute_s=0.01, read_s=1.0)
    assert not known.may_read(0.0)
    for _ in range(20):
        known.observe_reads(4, 4.0, 1, 1.0)
    assert not known.may_read(PROBE_FIRST_S - 0.1)
    assert known.may_read(PROBE_FIRST_S), "the pause has not grown"


def test_copies_have_probes_of_their_own() -> None:
    known = learned(compute_s=0.001, read_s=0.0001, copy_s=0.01)
    assert not known.may_copy(0.0)
    assert known.may_copy(PROBE_FIRST_S)
    assert not known.may_copy(PROBE_FIRST_S)
    known.observe_copies(PAGE_BYTES, 1e-5, PROBE_FIRST_S)
    assert known.may_copy(PROBE_FIRST_S)
    assert (known.copy_probes.count, known.read_probes.count) == (1, 0)


# Deadlines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most_ms", [0, 50, 500, 60_000])
def test_nobody_waits_longer_than_computing_takes(most_ms: int) -> None:
    assert estimate().deadline_ms(100, most_ms) == most_ms, "nothing is known"
    known = learned(compute_s=0.01, read_s=0.001)
    assert known.deadline_ms(1, most_ms) == min(most_ms, LEAST_DEADLINE_MS)
    assert known.deadline_ms(30, most_ms) in ({300, 301} if most_ms > 300 else {most_ms})
    assert known.deadline_ms(1 << 40, most_ms) == most_ms


# Prefill --------------------------------------------------------------------------------------------------


def test_steps_that_compute_prompts_are_timed() -> None:
    timer = PrefillTimer()
    timer.begin(1, {"a": 500, "b": 1, "c": 12}, has_sync_loads=False, now=10.0)
    assert timer.end(1, 10.5) == (500, 0.5)
    timer.begin(2, {"a": MIN_STEP_TOKENS // 2, "b": MIN_STEP_TOKENS // 2}, has_sync_loads=False, now=11.0)
    assert timer.end(2, 12.0) == (MIN_STEP_TOKENS, 1.0)


@pytest.mark.parametrize(
    ("scheduled", "has_sync_loads"),
    [
        ({"a": 500}, True),
        ({"a": MIN_STEP_TOKENS - 1}, False),
        (dict.fromkeys(range(200), 1), False),
        ({}, False),
    ],
    ids=["restores", "too_few", "decodes", "empty"],
)
def test_other_steps_are_not(scheduled: dict[str, int], has_sync_loads: bool) -> None:
    timer = PrefillTimer()
    timer.begin(1, scheduled, has_sync_loads=has_sync_loads, now=10.0)
    assert timer.end(1, 11.0) is None


def test_steps_that_overlap_share_the_time() -> None:
    timer = PrefillTimer()
    timer.begin(1, {"a": 500}, has_sync_loads=False, now=10.0)
    timer.begin(2, {"a": 500}, has_sync_loads=False, now=10.1)
    assert timer.end(1, 11.0) == (500, 1.0)
    assert timer.end(2, 12.0) == (500, 1.0)


def test_steps_without_an_end_are_forgotten() -> None:
    timer = PrefillTimer()
    for step in range(10 * MAX_UNDER_WAY):
        timer.begin(step, {"a": 500}, has_sync_loads=False, now=float(step))
    assert len(timer._under_way) == MAX_UNDER_WAY
    last = 10 * MAX_UNDER_WAY - 1
    assert timer.end(last, last + 1.0) == (500, 1.0)
    assert not timer._under_way
    assert timer.end(last, last + 2.0) is None, "no step ends twice"
    timer.begin(last + 1, {"a": 500}, has_sync_loads=False, now=last + 9.0)
    assert timer.end(last + 1, last + 9.0) is None, "no time has passed"
