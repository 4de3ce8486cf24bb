"""Hold points and fault switches of one process of a test build (`crates/holds`)."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.wait import wait_until

# In the manager.
QUERY_REPLY = "query_reply"  # answers to queries wait, in order
QUERY_REPLY_FIRST = "query_reply_first"  # N: at most N answers wait, later ones overtake them
SSD_READ = "ssd_read"  # the thread of a cache directory, before it gives the disk a page to read
SSD_WRITE = "ssd_write"  # the same, to write
MEMORY_TIER_DELAY = "memory_tier_delay_ms"  # N: what the tier begins from now on takes N ms
SSD_FORGET = "ssd_forget"  # before a directory records a reset
SSD_FAULT = "ssd_fault"  # NAME read|write eio|short|enospc|erofs|slow=MS|stuck [COUNT]; another …
# In an engine process.
COPY_RESTORE = "copy_restore"  # before the first byte of a restore moves
COPY_SAVE = "copy_save"  # before the first byte of a save moves
COMMIT = "commit"  # before commits are sent
RESTORE_FAULT = "restore_fault"  # skip | zero
FAIL_PAGE = "fail_page"  # N: the N-th next restored page fails
CUDA_DRIVER = "cuda_driver"  # PATH: the CUDA driver is loaded from there

ANSWER_S = 10.0


class HoldsError(Exception):
    """The process has no hold points, or does not know what it was asked."""


@contextmanager
def hooks_directory() -> Iterator[Path]:
    """Where this process and its children are reached. A process listens in one directory for all its life,
    so whoever asks second gets the first one's, and the first one removes it."""
    if given := os.environ.get("ORBITKV_TEST_DIR"):
        yield Path(given)
        return
    directory = Path(tempfile.mkdtemp(prefix="okv-"))
    os.environ["ORBITKV_TEST_DIR"] = str(directory)
    yield directory
    del os.environ["ORBITKV_TEST_DIR"]
    shutil.rmtree(directory, ignore_errors=True)


def listen() -> None:
    """Has this process listen before its first engine is built: by a client of no manager."""
    from orbitkv import _native as native

    group = {"group": 0, "page_bytes": 4096, "block_tokens": 1, "shard_count": 1, "rule": "prefix"}
    registration = native.Registration(
        socket="/nonexistent/manager.sock",
        engine="listener",
        engine_version="1",
        model="none",
        instance="0" * 32,
        namespace="0" * 64,
        world_size=1,
        groups=[group],
    )
    native.SchedulerClient(registration).close()


class Holds:
    """Speaks to `<directory>/<pid>.sock`, one connection a request."""

    def __init__(self, directory: Path, pid: int | None = None) -> None:
        self._path = directory / f"{pid or os.getpid()}.sock"

    def ask(self, line: str) -> str:
        """Sends one request line and returns the answer; raises `HoldsError` if it is an error."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            try:
                connection.connect(str(self._path))
            except OSError as error:
                raise HoldsError(f"{self._path}: {error}; is this a build with test hooks?") from None
            connection.sendall(line.encode() + b"\n")
            answer = connection.makefile().readline().strip()
        if not answer and line != "list":
            raise HoldsError(f"{line!r} got no answer")
        if answer.startswith("error"):
            raise HoldsError(f"{line!r}: {answer}")
        return answer

    def hold(self, point: str) -> None:
        """From now on whoever reaches `point` stops there."""
        self.ask(f"hold {point}")

    def release(self, point: str) -> None:
        """Lets everybody at `point` go."""
        self.ask(f"release {point}")

    def reached(self, point: str) -> int:
        """Arrivals at `point` since it was held."""
        return int(self.ask(f"reached {point}"))

    def set(self, switch: str, value: object | None = None) -> None:
        """Sets a switch; without a value it is removed."""
        self.ask(f"set {switch}" if value is None else f"set {switch} {value}")

    @contextmanager
    def held(self, point: str) -> Iterator[None]:
        """Holds `point` for the length of a block, and releases it however the block ends."""
        self.hold(point)
        try:
            yield
        finally:
            self.release(point)

    @contextmanager
    def switched(self, switch: str, value: object) -> Iterator[None]:
        """Sets a switch for the length of a block."""
        self.set(switch, value)
        try:
            yield
        finally:
            self.set(switch)

    def wait_reached(self, point: str, count: int = 1, **wait: object) -> None:
        """Waits until `point` was reached that often. `wait` goes to `wait_until`."""
        wait_until(lambda: self.reached(point) >= count, f"{point} reached {count} times", **wait)

    def clear(self) -> None:
        """Releases every point and removes every switch."""
        for item in self.ask("list").split():
            kind, _, rest = item.partition(":")
            name = rest.partition("=")[0]
            if kind == "hold":
                self.release(name)
            elif kind == "switch":
                self.set(name)
