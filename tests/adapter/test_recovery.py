"""Requests whose restore failed are preempted, and nothing of what was computed from it is found again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from orbitkv.vllm import recovery


class Connector:
    """Ours, with the blocks of requests that have left."""

    def __init__(self, left: list[list[int]]) -> None:
        self._left = left

    def left_tables(self) -> list[list[int]]:
        return self._left


def scheduler(connector: Any, tables: dict[str, list[int]]) -> Any:
    """What recovery uses of a scheduler with these running requests, and what it did to it."""
    done = SimpleNamespace(evicted=[], preempted=[])
    running = [
        SimpleNamespace(
            request_id=name, status=RequestStatus.RUNNING, num_stale_output_tokens=0, drop_stale_output=False
        )
        for name in tables
    ]
    manager = SimpleNamespace(
        get_block_ids=lambda request_id: (tables[request_id],),
        evict_blocks=lambda blocks: done.evicted.append(sorted(blocks)),
    )
    return SimpleNamespace(
        connector=connector,
        running=running,
        kv_cache_manager=manager,
        prev_step_scheduled_req_ids=set(tables),
        requests={request.request_id: request for request in running},
        _preempt_request=lambda request, timestamp, drop_stale_output: done.preempted.append(
            (request.request_id, drop_stale_output)
        ),
        done=done,
    )


def handled(self: Any, invalid_block_ids: set[int], num_scheduled_tokens: dict[str, int]) -> set[str]:
    """The engine's own."""
    return {"own"}


recover = recovery._recovering(handled, Connector)


def test_requests_with_a_bad_block_are_preempted_the_last_one_first() -> None:
    engine = scheduler(Connector([]), {"a": [1, 2, 3], "sound": [1, 8], "b": [1, 2, 9]})
    assert recover(engine, {2}, {"a": 1}) == {"a", "b", "own"}
    assert engine.done.preempted == [("b", True), ("a", True)]
    assert engine.done.evicted == [[2, 9], [2, 3]]
    assert [request.request_id for request in engine.running] == ["sound"]
    assert engine.prev_step_scheduled_req_ids == {"sound"}


def test_what_requests_computed_that_have_left_is_not_found_again() -> None:
    engine = scheduler(Connector([[4, 5], [1, 2, 7, 6]]), {"sound": [1]})
    assert recover(engine, {2}, {}) == {"own"}
    assert engine.done.evicted == [[2, 6, 7]]
    assert engine.done.preempted == []


def test_what_a_step_sampled_for_requests_that_lost_their_blocks_is_dropped() -> None:
    engine = scheduler(Connector([]), {"a": [1], "b": [2], "c": [3]})
    for name in "abc":
        engine.running.remove(engine.requests[name])
    for name in "ab":
        engine.requests[name].num_stale_output_tokens = 1
    # "b" was in no step with a failed restore, and "gone" has ended meanwhile.
    recover(engine, {1}, {"a": 1, "c": 1, "gone": 1})
    assert [engine.requests[name].drop_stale_output for name in "abc"] == [True, False, False]


def test_schedulers_of_other_connectors_are_left_alone() -> None:
    engine = scheduler(object(), {"a": [2]})
    assert recover(engine, {2}, {}) == {"own"}
    assert engine.done.preempted == []
    assert engine.done.evicted == []


def test_it_is_installed_once_and_refused_where_the_engine_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Scheduler, "_handle_invalid_blocks", Scheduler._handle_invalid_blocks)
    assert recovery.preempt_failed_restores(Connector) is None
    installed = Scheduler._handle_invalid_blocks
    assert recovery.preempt_failed_restores(Connector) is None
    assert Scheduler._handle_invalid_blocks is installed
    monkeypatch.setattr(KVCacheManager, "evict_blocks", lambda self, blocks: None)
    reason = recovery.preempt_failed_restores(Connector)
    assert reason == "KVCacheManager.evict_blocks of this vLLM is not the one that is known"
