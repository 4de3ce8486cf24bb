"""The drain check against made-up reports of a manager."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from demo import drain

ROOT = Path(__file__).resolve().parents[2]
QUIET = json.loads((ROOT / "crates" / "cli" / "tests" / "status.json").read_text())

BUSY: list[tuple[str, Callable[[dict[str, Any]], None]]] = [
    ("query_reserved_bytes", lambda r: r["query"].update(reserved_bytes=1)),
    ("query_speculative_reserved_bytes", lambda r: r["query"].update(speculative_reserved_bytes=1)),
    (
        "query_reserved_bytes_by_phase[restoring]",
        lambda r: r["query"].update(reserved_bytes_by_phase={"ready": 0, "restoring": 1}),
    ),
    ("operations[draining]", lambda r: r["query"].update(operations={"draining": 1})),
    ("leases", lambda r: r["query"].update(leases=1)),
    ("save_reservations", lambda r: r["save"].update(reservations=1)),
    ("save_inflight_bytes", lambda r: r["save"].update(inflight_bytes=1)),
    ("load_inflight_bytes", lambda r: r["load"].update(inflight_bytes=1)),
    ("pool_quarantined_bytes", lambda r: r["pool"].update(quarantined_bytes=1)),
    ("sessions_unfinished", lambda r: r["sessions"].update(unfinished=1)),
    ("tier_read_queue_pending", lambda r: r["tier"].update(read_queue_pending=1)),
]


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def check(reports: Iterator[dict[str, Any]]) -> drain.Drain:
    clock = Clock()
    return drain.check("a round", lambda: next(reports), 5.0, clock.time, clock.sleep)


def report(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    changed = copy.deepcopy(QUIET)
    change(changed)
    return changed


def forever(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while True:
        yield value


def test_a_quiet_manager_is_drained_at_once() -> None:
    done = check(forever(QUIET))
    assert (done.drained, done.took_s) == (True, 0.0)


@pytest.mark.parametrize(("gauge", "change"), BUSY, ids=[gauge for gauge, _ in BUSY])
def test_each_gauge_is_waited_for(gauge: str, change: Callable[[dict[str, Any]], None]) -> None:
    busy = report(change)
    later = check(iter([busy, busy, QUIET]))
    assert later.drained
    assert later.took_s == pytest.approx(2 * drain.POLL_S)
    never = check(forever(busy))
    assert not never.drained
    assert never.left == {gauge: 1}
    assert gauge in str(never)


def test_a_report_without_a_gauge_is_an_error() -> None:
    with pytest.raises(KeyError):
        check(forever(report(lambda r: r["query"].pop("leases"))))


def test_writes_are_waited_for_only_on_request() -> None:
    busy = report(lambda r: r["tier"].update(write_queue_pending=3))
    assert check(forever(busy)).drained
    clock = Clock()
    never = drain.check("the end", lambda: busy, 5.0, clock.time, clock.sleep, writes=True)
    assert never.left == {"tier_write_queue_pending": 3}
