"""The trace of transfers: which events a request has, in which order, and that nothing but the trace ever
suffers from it."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orbitkv.engine import trace as tracing
from orbitkv.engine.settings import Settings, SettingsError
from orbitkv.vllm.log import once

TOKENS = list(range(7_000_100, 7_000_118))  # 4 full blocks of 4 tokens and 2 tokens more
PAGES = 4
FIELDS = {"event", "monotonic_ns", "wall_ms", "request", "pid", "side", "rank", "session", "operation"}
FIELDS |= {"revision", "mode", "state", "pages", "failed_pages", "bytes", "ms", "events"}
RESTORED = ["queued", "read_start", "host_ready", "restore_submit", "restore_complete", "gpu_ready"]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the engines of the test trace to."""
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("ORBITKV_TRACE_TRANSFERS", "1")
    monkeypatch.setenv("ORBITKV_TRACE_PATH", str(path))
    return path


def request(mini: Any, name: str, tokens: list[int] = TOKENS) -> Any:
    return mini.FakeRequest(name, list(tokens))


def shut_down(engine: Any) -> None:
    engine.connector.shutdown()
    engine.worker.shutdown()


def events(path: Path, name: str) -> list[dict[str, Any]]:
    """What was traced of a request, by time."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(set(line) <= FIELDS for line in lines)
    return sorted((line for line in lines if line["request"] == name), key=lambda line: line["monotonic_ns"])


def names(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


def restore(engine: Any, mini: Any, name: str, mode: str) -> list[bytes]:
    """A request is restored and runs; the bytes of its pages."""
    b = engine.add(request(mini, name))
    assert engine.match(b) == (4 * PAGES, mode == "async")
    table = engine.allocate(b, 4 * PAGES, tokens=4 * PAGES if mode == "async" else None)
    if mode == "async":
        engine.step()
        assert engine.received[-1] == name
        # vLLM gives it the blocks of its other tokens, and says so once more.
        table = engine.allocate(b, 0, local=table)
    engine.step(mini.output(new=[(b, table, 16, 2)]), has_sync=mode == "sync")
    b.append(7)
    engine.step(mini.output(cached=[(b, [], 18, 1)]))
    engine.finish(b)
    return [engine.content(block) for block in table[:PAGES]]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_events_of_a_restored_request(
    make_engine: Callable[..., Any], mini: Any, path: Path, mode: str
) -> None:
    engine = make_engine(load_mode=mode)
    saved = engine.compute_and_save(request(mini, "a"))
    engine.pool.free.reverse()
    assert restore(engine, mini, "b", mode) == saved
    shut_down(engine)

    assert names(events(path, "a")) == ["queued", "read_start"], "a miss"
    lines = events(path, "b")
    assert names(lines) == [*RESTORED, "first_use"]
    assert [line["pages"] for line in lines] == [PAGES] * 7
    assert {line["bytes"] for line in lines} == {sum(map(len, saved))}
    assert [line["side"] for line in lines[:3]] == ["scheduler"] * 3
    assert [(line["side"], line["rank"]) for line in lines[3:6]] == [("worker", 0)] * 3
    ids = [tuple(line[key] for key in ("session", "operation", "revision")) for line in lines[1:3]]
    assert (
        ids[0] == ids[1] != tuple(events(path, "a")[1][key] for key in ("session", "operation", "revision"))
    )
    assert {line["pid"] for line in lines} == {os.getpid()}
    assert path.stat().st_mode & 0o777 == 0o600


def test_neither_tokens_nor_hashes_are_in_it(make_engine: Callable[..., Any], mini: Any, path: Path) -> None:
    engine = make_engine(load_mode="async")
    engine.compute_and_save(request(mini, "a"))
    restore(engine, mini, "b", "async")
    shut_down(engine)
    text = path.read_text()
    assert "restore_complete" in text, "control: there is something to look through"
    for token in TOKENS:
        assert str(token) not in text
    for block_hash in request(mini, "x").block_hashes:
        assert block_hash.hex()[:8] not in text
        assert repr(block_hash)[2:-1][:8] not in text


def test_a_layer_is_used_while_later_ones_are_on_their_way(
    make_engine: Callable[..., Any],
    mini: Any,
    native: Any,
    manager: Any,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restore inside the step overlaps with the forward pass, and the trace says so."""
    engine = make_engine(load_mode="sync")
    engine.compute_and_save(request(mini, "a"))
    manager.hold_loads = True

    def land(load: Any, layer: int, timeout_ms: int) -> bool:
        if layer == 2:
            load.finish()
        return True

    monkeypatch.setattr(native.Load, "wait_layer", land)
    restore(engine, mini, "b", "sync")
    shut_down(engine)
    assert names(events(path, "b"))[3:] == ["restore_submit", "first_use", "restore_complete", "gpu_ready"]


@pytest.mark.parametrize("state", ["pending", "ready"])
def test_a_cancelled_query(
    make_engine: Callable[..., Any], mini: Any, manager: Any, path: Path, state: str
) -> None:
    engine = make_engine()
    engine.compute_and_save(request(mini, "a"))
    manager.hold_queries = state == "pending"
    b = engine.add(request(mini, "b"))
    engine.match(b)
    engine.finish(b)
    shut_down(engine)
    lines = events(path, "b")
    ready = ["host_ready"] if state == "ready" else []
    stopped = ["read_stopped"] if state == "pending" else []
    assert names(lines) == ["queued", "read_start", *ready, "query_cancel", *stopped]
    assert next(line for line in lines if line["event"] == "query_cancel")["state"] == state


def test_a_deadline(make_engine: Callable[..., Any], mini: Any, manager: Any, path: Path) -> None:
    engine = make_engine(lookup_deadline_ms=1)
    engine.compute_and_save(request(mini, "a"))
    manager.hold_queries = True
    b = engine.add(request(mini, "b"))
    while engine.match(b) == (None, False):
        pass
    shut_down(engine)
    expected = ["queued", "read_start", "read_deadline", "query_cancel", "read_stopped"]
    assert names(events(path, "b")) == expected


@pytest.mark.parametrize("ends", ["claimed", "cancelled", "lost"])
def test_a_prepared_request(
    make_engine: Callable[..., Any],
    mini: Any,
    manager: Any,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: str,
) -> None:
    monkeypatch.setenv("ORBITKV_PREPARE_REQUESTS", "1")
    engine = make_engine(load_mode="sync")
    engine.compute_and_save(request(mini, "a"))
    manager.hold_preparations = True
    b = engine.add(request(mini, "b"))
    engine.step()
    manager.hold_preparations = False
    engine.step()
    if ends == "lost":
        manager.preparations[-1].lose("expired")
    if ends == "cancelled":
        engine.finish(b)
    else:
        engine.match(b)
        table = engine.allocate(b, 4 * PAGES)
        engine.step(mini.output(new=[(b, table, 16, 2)]), has_sync=True)
    shut_down(engine)

    lines = events(path, "b")
    begun = ["queued", "read_start", "host_ready", "prepared_read_ms"]
    end = {"claimed": ["host_ready"], "cancelled": ["query_cancel"], "lost": ["read_start", "host_ready"]}[
        ends
    ]
    assert names(lines)[: 4 + len(end)] == begun + end
    assert [line["mode"] for line in lines[1:4]] == ["prepare"] * 3
    read_ms = (lines[3]["monotonic_ns"] - lines[1]["monotonic_ns"]) / 1e6
    assert 0 < lines[3]["ms"] <= read_ms + 1
    if ends != "cancelled":
        assert {line["mode"] for line in lines[4 : 4 + len(end)]} == {"demand"}
        is_same = lines[4]["operation"] == lines[1]["operation"]
        assert is_same == (ends == "claimed"), "a claim is the same operation"


def test_a_warm_up_has_no_operation(
    make_engine: Callable[..., Any], mini: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORBITKV_QUEUE_WARMUP", "1")
    engine = make_engine()
    engine.add(request(mini, "a"))
    shut_down(engine)
    lines = events(path, "a")
    assert names(lines) == ["queued", "read_start"]
    assert (lines[1]["mode"], lines[1]["pages"], "operation" in lines[1]) == ("warm_up", PAGES, False)


def test_what_was_never_sent_has_no_events(make_engine: Callable[..., Any], mini: Any, path: Path) -> None:
    engine = make_engine()
    query = engine.connector._scheduler._client.query(b"")
    query.ids = (0, 0, 0)
    engine.connector._scheduler._trace.of("b", query, "demand")("read_start", pages=1)
    engine.add(request(mini, "b"))
    shut_down(engine)
    assert names(events(path, "b")) == ["queued"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_pages_that_did_not_land(
    make_engine: Callable[..., Any], mini: Any, manager: Any, path: Path, mode: str
) -> None:
    engine = make_engine(load_mode=mode)
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    engine.match(b)
    table = engine.allocate(b, 4 * PAGES, tokens=4 * PAGES if mode == "async" else None)
    manager.fail_blocks = {table[3]}
    engine.step(mini.output(new=[(b, table, 16, 2)]) if mode == "sync" else None, has_sync=mode == "sync")
    shut_down(engine)
    lines = events(path, "b")[3:]
    assert names(lines)[:3] == ["restore_submit", "restore_complete", "gpu_ready"]
    assert [(line["pages"], line.get("failed_pages")) for line in lines[1:3]] == [(3, 1), (3, None)]
    assert "first_use" not in names(lines), "the engine throws away what it computed"


def test_a_lease_that_was_lost_before_its_restore(
    make_engine: Callable[..., Any], mini: Any, manager: Any, path: Path
) -> None:
    engine = make_engine(load_mode="async")
    engine.compute_and_save(request(mini, "a"))
    b = engine.add(request(mini, "b"))
    engine.match(b)
    manager.queries[-1].lost = True
    engine.allocate(b, 4 * PAGES, tokens=4 * PAGES)
    engine.step()
    shut_down(engine)
    lines = events(path, "b")
    assert names(lines) == ["queued", "read_start", "host_ready", "restore_complete"]
    assert (lines[3]["pages"], lines[3]["failed_pages"]) == (0, PAGES)


# Off, and gone wrong --------------------------------------------------------------------------------------


def writers() -> int:
    return sum(thread.name == "orbitkv-trace" for thread in threading.enumerate())


@pytest.mark.parametrize("value", [None, "0", ""])
def test_off_writes_nothing_and_has_no_thread(
    make_engine: Callable[..., Any], mini: Any, path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("ORBITKV_TRACE_TRANSFERS")
    else:
        monkeypatch.setenv("ORBITKV_TRACE_TRANSFERS", value)
    before = writers()
    engine = make_engine(load_mode="async")
    engine.compute_and_save(request(mini, "a"))
    restore(engine, mini, "b", "async")
    assert writers() == before
    shut_down(engine)
    assert not path.exists()
    # Control: the same engine with the trace on.
    monkeypatch.setenv("ORBITKV_TRACE_TRANSFERS", "1")
    shut_down(make_engine())
    assert path.exists()


def test_the_switch_takes_no_other_value() -> None:
    with pytest.raises(SettingsError, match="ORBITKV_TRACE_TRANSFERS is 'yes'; it must be 1"):
        Settings.parse({}, {"ORBITKV_TRACE_TRANSFERS": "yes"})


def test_without_a_path_a_file_of_the_process(
    make_engine: Callable[..., Any],
    tmp_path: Path,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
) -> None:
    monkeypatch.delenv("ORBITKV_TRACE_PATH")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    shut_down(make_engine())
    expected = tmp_path / f"orbitkv-trace-{os.getpid()}.jsonl"
    assert expected.exists()
    assert [line for line in lines if "traced" in line] == [f"OrbitKV: transfers are traced to {expected}"]


def make_unusable(kind: str, path: Path) -> Path:
    match kind:
        case "directory":
            path.mkdir()
        case "link":
            (path.parent / "other").touch()
            path.symlink_to(path.parent / "other")
        case "fifo":
            os.mkfifo(path)
        case "device":
            return Path("/dev/null")
        case "no directory":
            return path / "missing"
    return path


def assert_goes_on(engine: Any, mini: Any, lines: list[str], why: str) -> None:
    """The engine saves and restores, and has said once why it does not trace."""
    saved = engine.compute_and_save(request(mini, "a"))
    engine.pool.free.reverse()
    assert restore(engine, mini, "b", "async") == saved
    shut_down(engine)
    said = [line for line in lines if "not traced any more" in line]
    assert len(said) == 1
    assert why in said[0]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("directory", "Is a directory"),
        ("link", "symbolic links"),
        ("fifo", "No such device"),
        ("device", "is not a regular file"),
        ("no directory", "No such file or directory"),
    ],
)
def test_a_path_that_cannot_be_written(
    make_engine: Callable[..., Any],
    mini: Any,
    path: Path,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    why: str,
) -> None:
    monkeypatch.setenv("ORBITKV_TRACE_PATH", str(make_unusable(kind, path)))
    assert_goes_on(make_engine(load_mode="async"), mini, lines, why)
    if kind == "link":
        assert (path.parent / "other").read_text() == ""


def test_a_full_disk(
    make_engine: Callable[..., Any], mini: Any, path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tracing.os, "write", full)
    assert_goes_on(make_engine(load_mode="async"), mini, lines, "No space left on device")
    assert any("events are not in" in line for line in lines)


def test_no_thread_can_be_started(
    make_engine: Callable[..., Any], mini: Any, path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert_goes_on(make_engine(load_mode="async"), mini, lines, "can't start new thread")


def test_the_size_limit(
    make_engine: Callable[..., Any], mini: Any, path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MAX_FILE_BYTES", 700)
    monkeypatch.setattr(tracing, "BATCH_EVENTS", 1)
    assert_goes_on(make_engine(load_mode="async"), mini, lines, "limit of 700 bytes")
    assert 350 < path.stat().st_size <= 700
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_full_buffer_drops_and_counts(
    path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    monkeypatch.setattr(tracing, "MAX_BUFFERED", 3)
    monkeypatch.setattr(tracing, "FLUSH_S", 3600)
    trace = tracing.Trace(str(path), once, page_bytes=10)
    for number in range(10):
        trace.event("queued", f"r{number}", pages=2)
    trace.close()
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line["request"], line.get("bytes")) for line in written] == [
        ("queued", "r0", 20),
        ("queued", "r1", 20),
        ("queued", "r2", 20),
        ("dropped", "", None),
    ]
    assert written[3]["events"] == 7
    assert f"OrbitKV: 7 of 10 events are not in {path}" in lines


def test_a_file_that_takes_nothing_keeps_nobody(
    make_engine: Callable[..., Any], mini: Any, path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    """The writer stands in its first write until the engine has ended."""
    stands, go_on, write = threading.Event(), threading.Event(), os.write

    def stuck(file: int, data: bytes) -> int:
        stands.set()
        go_on.wait(30)
        return write(file, data)

    monkeypatch.setattr(tracing.os, "write", stuck)
    monkeypatch.setattr(tracing, "CLOSE_S", 0.01)
    engine = make_engine(load_mode="async")
    saved = engine.compute_and_save(request(mini, "a"))
    assert stands.wait(60)
    engine.pool.free.reverse()
    assert restore(engine, mini, "b", "async") == saved
    shut_down(engine)
    assert path.read_text() == ""
    assert any("events are not in" in line for line in lines)
    go_on.set()


def test_long_and_odd_request_ids(path: Path) -> None:
    trace = tracing.Trace(str(path), once, page_bytes=10)
    trace.event("queued", "x" * 10_000)
    trace.event("queued", 'a\n"\udc80')
    trace.close()
    written = [json.loads(line)["request"] for line in path.read_text().splitlines()]
    assert written == ["x" * tracing.MAX_ID_CHARS, 'a\n"\udc80']


def test_several_writers_share_a_file(path: Path) -> None:
    traces = [tracing.Trace(str(path), once, page_bytes=10, rank=rank) for rank in range(4)]
    for number in range(500):
        for trace in traces:
            trace.event("queued", str(number))
    for trace in traces:
        trace.close()
    written = [json.loads(line) for line in path.read_text().splitlines()]
    for rank in range(4):
        assert [int(line["request"]) for line in written if line["rank"] == rank] == list(range(500))
