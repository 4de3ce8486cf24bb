"""A trace of what requests ask for and restore, as JSON lines. Off by default; docs/trace.md explains it.

The engine's threads append to a bounded buffer and do nothing else. A thread of this module opens the file,
makes the lines and writes them. What goes wrong there ends the trace with one warning, and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orbitkv.engine.native import load_native

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitkv.engine.log import OnceLogger
    from orbitkv.engine.settings import Settings

# A file is not written past this size. Processes that share one look before each batch, so together they may
# pass it by a batch each.
MAX_FILE_BYTES = 256 << 20
# Events between two looks of the writer; more are dropped and counted.
MAX_BUFFERED = 16384
BATCH_EVENTS = 256
FLUSH_S = 0.1
# A file that cannot be written to in this time must not keep the engine from ending.
CLOSE_S = 1.0
# Clients may choose request ids.
MAX_ID_CHARS = 200
# `json.dumps` would make an encoder a line.
_encode = json.JSONEncoder(separators=(",", ":")).encode
OFF = "OrbitKV: transfers are not traced any more, the cache goes on; %s: %s"


class NoTrace:
    """The trace that is off."""

    is_on = False

    def event(self, name: str, request_id: str, **fields: Any) -> None:
        """Nothing."""

    def of(self, request_id: str, operation: Any, mode: str) -> Callable[..., None]:
        """What takes the events of an operation."""
        return _nothing

    def close(self) -> None:
        """Nothing."""


def _nothing(name: str, **fields: Any) -> None:
    pass


class Trace(NoTrace):
    """Events of one side of an adapter. Called from one thread."""

    is_on = True

    def __init__(self, path: str, log: OnceLogger, *, page_bytes: int, **common: Any) -> None:
        self._log = log
        self._path = Path(
            path or Path(tempfile.gettempdir()) / f"orbitkv-trace-{os.getpid()}.jsonl"
        ).absolute()
        self._page_bytes = page_bytes
        self._common = common
        self._buffer: deque[tuple[int, int, str, str, Any, dict[str, Any]]] = deque()
        # The first two are the engine's thread's, the others the writer's.
        self._events = self._dropped = 0
        self._written = self._told_dropped = 0
        self._is_over = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orbitkv-trace", daemon=True)
        self._thread.start()

    def event(self, name: str, request_id: str, *, operation: Any = None, **fields: Any) -> None:
        """Something happened now. `pages` among the fields also become bytes. `operation` is a native query
        or preparation; one that could not be sent has no name on the manager, and nothing to tell."""
        ids = operation.ids if operation is not None else None
        if ids is not None and ids[1] == 0:
            return
        self._events += 1
        if self._is_over or len(self._buffer) >= MAX_BUFFERED:
            self._dropped += 1
            return
        self._buffer.append((time.monotonic_ns(), time.time_ns(), name, request_id, ids, fields))

    def of(self, request_id: str, operation: Any, mode: str) -> Callable[..., None]:
        """What takes the events of an operation: their name and fields."""
        return partial(self.event, request_id=request_id, operation=operation, mode=mode)

    def close(self) -> None:
        """Writes what is buffered, for a bounded time. Idempotent."""
        self._closing.set()
        self._thread.join(CLOSE_S)
        if self._written < self._events:
            self._log.say_once(
                "trace-lost",
                logging.WARNING,
                "OrbitKV: %d of %d events are not in %s",
                self._events - self._written,
                self._events,
                self._path,
            )

    # The writer's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            file = _open(self._path)
            try:
                self._log.say_once(
                    "trace-on", logging.INFO, "OrbitKV: transfers are traced to %s", self._path
                )
                while not self._closing.wait(FLUSH_S):
                    self._flush(file)
                self._flush(file)
            finally:
                os.close(file)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the trace, the engine goes on
            self._log.warn_once("trace-off", OFF, self._path, error)
        self._is_over = True
        self._buffer.clear()

    def _flush(self, file: int) -> None:
        while self._buffer:
            count = min(len(self._buffer), BATCH_EVENTS)
            self._write(file, [self._line(*self._buffer.popleft()) for _ in range(count)])
            self._written += count
        if (dropped := self._dropped) > self._told_dropped:
            fields = {"events": dropped - self._told_dropped}
            line = self._line(time.monotonic_ns(), time.time_ns(), "dropped", "", None, fields)
            self._write(file, [line])
            self._told_dropped = dropped

    def _write(self, file: int, lines: list[str]) -> None:
        data = "".join(lines).encode()
        if os.fstat(file).st_size + len(data) > MAX_FILE_BYTES:
            raise OSError(f"it would pass its limit of {MAX_FILE_BYTES} bytes")
        # One call for whole lines: with O_APPEND those of several processes do not mix.
        while data:
            data = data[os.write(file, data) :]

    def _line(
        self, now_ns: int, wall_ns: int, name: str, request_id: str, ids: Any, fields: dict[str, Any]
    ) -> str:
        line = {
            "event": name,
            "monotonic_ns": now_ns,
            "wall_ms": wall_ns // 1_000_000,
            "request": request_id[:MAX_ID_CHARS],
            **self._common,
        }
        if ids is not None:
            line["session"], line["operation"], line["revision"] = ids
        line.update(fields)
        if "pages" in fields:
            line["bytes"] = fields["pages"] * self._page_bytes
        return _encode(line) + "\n"


def _open(path: Path) -> int:
    """Appends to a file of this user, or makes it. The default name can be guessed, in a directory that
    others may write to: neither their links nor their files are followed."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        return file
    os.close(file)
    raise OSError("it is not a regular file of this user; set ORBITKV_TRACE_PATH to another one")


def open_trace(settings: Settings, log: OnceLogger, *, page_bytes: int, **common: Any) -> NoTrace:
    """The trace of one side as the settings want it. `page_bytes` is what the side counts for a page;
    `common` is in each of its lines; `log` is the adapter's."""
    if not settings.trace_transfers:
        return NoTrace()
    try:
        return Trace(settings.trace_path, log, page_bytes=page_bytes, pid=os.getpid(), **common)
    except (OSError, RuntimeError) as error:  # no temporary directory, or no thread can be started
        log.warn_once("trace-off", OFF, settings.trace_path, error)
        return NoTrace()


def trace_cancel(trace: Callable[..., None], state: int) -> None:
    """Interest in an operation of that state, as last seen, has ended."""
    native = load_native()
    if state != native.MISS:
        trace("query_cancel", state="pending" if state == native.PENDING else "ready")
    if state == native.PENDING:
        trace("read_stopped")
