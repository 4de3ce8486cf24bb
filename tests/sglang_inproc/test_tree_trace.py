"""The trace of transfers: the events that a request has, in the words of docs/trace.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from harness import PAGE_BYTES, Tree, prompt
from support.holds import QUERY_REPLY
from support.manager import Manager, slow_tier
from support.wait import wait_until

from orbitkv import _native as native

Build = Callable[..., Tree]
PAGES = 5
TOKENS = prompt(7_000, PAGES * 64 + 10)
DEADLINE_MS = 30_000
IDS = ("session", "operation", "revision")
FIELDS = {"event", "monotonic_ns", "wall_ms", "request", "pid", "side", "rank", *IDS}
FIELDS |= {"mode", "state", "pages", "failed_pages", "bytes", "ms"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


@pytest.fixture
def traced(path: Path, new_tree: Build) -> Build:
    """Builds trees that trace to `path`."""

    def build(manager: Manager, **settings: object) -> Tree:
        given = {"lookup_deadline_ms": DEADLINE_MS, **settings}
        return new_tree(manager, trace_transfers=True, trace_path=str(path), **given)

    return build


def stored(tree: Tree) -> None:
    """The prompt's pages are in the manager and no longer on the device."""
    tree.run(TOKENS)
    tree.settle()
    tree.manager.wait_saved()
    tree.flush()


def events(tree: Tree, path: Path, rid: str) -> list[dict[str, Any]]:
    """All that was traced of a request, by time; the tree ends with that."""
    tree.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(set(line) <= FIELDS for line in lines)
    return sorted((line for line in lines if line["request"] == rid), key=lambda line: line["monotonic_ns"])


def names(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


def test_events_of_a_restored_request(manager: Manager, traced: Build, path: Path) -> None:
    tree = traced(manager)
    stored(tree)
    request = tree.run(TOKENS)
    assert request.restored == PAGES * 64
    lines = events(tree, path, request.rid)
    assert names(lines)[:4] == ["queued", "read_start", "host_ready", "restore_submit"]
    # A restore is used layer by layer, while its later ones may still be on their way.
    assert sorted(names(lines)[4:]) == ["first_use", "gpu_ready", "restore_complete"]
    assert [line["pages"] for line in lines] == [PAGES] * 7
    assert {line["bytes"] for line in lines} == {PAGES * PAGE_BYTES}
    assert [line["side"] for line in lines] == ["scheduler"] * 3 + ["worker"] * 4
    assert {line["rank"] for line in lines[3:]} == {0}
    asked, answered = ([line[name] for name in IDS] for line in lines[1:3])
    assert asked == answered
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_miss(manager: Manager, traced: Build, path: Path) -> None:
    tree = traced(manager)
    missed = tree.run(TOKENS)
    assert names(events(tree, path, missed.rid)) == ["queued", "read_start"]


def test_neither_tokens_nor_hashes_are_in_it(manager: Manager, traced: Build, path: Path) -> None:
    tree = traced(manager)
    stored(tree)
    waiting = tree.enqueue(TOKENS)
    forbidden = [key[:8] for key in tree.linker.demands._demands[waiting.rid].hashes]
    forbidden += [f"{first},{second}" for first, second in pairwise(TOKENS)]
    assert events(tree, path, waiting.rid)
    text = path.read_text()
    assert not any(part in text for part in forbidden)
    assert any(part in text + str(TOKENS).replace(" ", "") for part in forbidden), "control: it would be seen"


def test_an_abort_while_the_query_runs(manager: Manager, traced: Build, path: Path) -> None:
    tree = traced(manager)
    stored(tree)
    with manager.holds.held(QUERY_REPLY):
        waiting = tree.enqueue(TOKENS)
        manager.holds.wait_reached(QUERY_REPLY)
        tree.cache.release_aborted_request(waiting.handle)
    lines = events(tree, path, waiting.rid)
    assert names(lines) == ["queued", "read_start", "query_cancel", "read_stopped"]
    assert lines[2]["state"] == "pending"
    assert len({tuple(line[name] for name in IDS) for line in lines[1:]}) == 1


def test_an_abort_of_what_was_promised(manager: Manager, traced: Build, path: Path) -> None:
    tree = traced(manager)
    stored(tree)
    waiting = tree.enqueue(TOKENS)
    tree.wait_start(waiting)
    tree.cache.release_aborted_request(waiting.handle)
    lines = events(tree, path, waiting.rid)
    assert names(lines) == ["queued", "read_start", "host_ready", "query_cancel"]
    assert lines[3]["state"] == "ready"


def test_a_deadline(manager: Manager, traced: Build, path: Path) -> None:
    tree = traced(manager, lookup_deadline_ms=50)
    stored(tree)
    with manager.holds.held(QUERY_REPLY):
        waiting = tree.enqueue(TOKENS)
        tree.wait_start(waiting)
    # Whether the client or the leader has looked at the clock first.
    assert names(events(tree, path, waiting.rid))[:3] == ["queued", "read_start", "read_deadline"]


@pytest.mark.parametrize("is_claimed", [True, False], ids=["claimed", "aborted"])
def test_pages_that_are_read_ahead(
    new_manager: Callable[..., Manager], traced: Build, path: Path, is_claimed: bool
) -> None:
    manager = new_manager(pool_size="32mib", flags=slow_tier(50))
    tree = traced(manager, prepare_requests=True)
    stored(tree)
    wait_until(lambda: manager.status()["tier"]["write_queue_pending"] == 0, "the tier has it")
    assert manager.drop_memory() > 0
    waiting = tree.enqueue(TOKENS)
    demand = tree.linker.demands._demands[waiting.rid]
    tree.until(lambda: demand.ahead_state == native.PREPARED, "it is read ahead")
    if is_claimed:
        tree.wait_start(waiting)
        assert tree.admit(waiting) == PAGES * 64
        tree.begin_forward(waiting)
        tree.forward(waiting)
    else:
        tree.cache.release_aborted_request(waiting.handle)
    lines = events(tree, path, waiting.rid)
    assert names(lines)[:4] == ["queued", "read_start", "host_ready", "prepared_read_ms"]
    assert [line["mode"] for line in lines[1:4]] == ["prepare"] * 3
    if is_claimed:
        assert names(lines)[4:6] == ["host_ready", "restore_submit"]
        assert lines[4]["mode"] == "demand"
        assert lines[4]["operation"] == lines[1]["operation"]
    else:
        assert names(lines)[4:] == ["query_cancel"]
        assert lines[4]["state"] == "ready"


def test_pages_that_are_warmed_up(new_manager: Callable[..., Manager], traced: Build, path: Path) -> None:
    manager = new_manager(pool_size="32mib", flags=slow_tier(0))
    tree = traced(manager, queue_warmup=True)
    waiting = tree.enqueue(TOKENS)
    tree.step()
    tree.cache.release_aborted_request(waiting.handle)
    lines = events(tree, path, waiting.rid)
    assert names(lines) == ["queued", "read_start"]
    assert (lines[1]["mode"], lines[1]["pages"]) == ("warm_up", PAGES)


def test_off_by_default(manager: Manager, new_tree: Build, path: Path) -> None:
    tree = new_tree(manager, trace_path=str(path))
    tree.run(TOKENS)
    tree.settle()
    tree.close()
    assert not path.exists()
