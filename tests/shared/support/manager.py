"""A cache manager process of its own for a test."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.gauges import DRAINED_WITHIN_S, not_drained
from support.holds import Holds
from support.wait import wait_until

COMMAND = "orbitkv-cache-manager"
HTTP_S = 10.0


class Manager:
    """`orbitkv-cache-manager` on a socket in `directory`, which must have a short name. `restart` replaces
    the process by another on the same socket.

    The pool is one segment unless `segment_size` says otherwise: while a pool grows, pages may find no slot
    and stay unsaved, and a test that counts pages must not depend on that. Memory is not checked in the
    background unless `flags` say so: tests flip bytes to see what else finds them. `wrapper` is a command in
    front of its own, which it replaces at last."""

    def __init__(
        self,
        directory: Path,
        *,
        pool_size: str = "128mib",
        segment_size: str | None = None,
        flags: tuple[str, ...] = (),
        wrapper: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        self.socket = directory / "manager.sock"
        self.log_path = directory / "manager.log"
        self._ready = directory / "ready.json"
        unscrubbed = () if "--scrub-rate" in flags else ("--scrub-rate", "0")
        flags = (*unscrubbed, *flags)
        self._flags = ["--pool-size", pool_size, "--segment-size", segment_size or pool_size, *flags]
        self._wrapper = wrapper
        self._process: subprocess.Popen[bytes] | None = None
        self._http = ""
        self._attached_pid: int | None = None

    # Life ---------------------------------------------------------------------------------------------------

    def start(self) -> Manager:
        """Starts it and waits until engines can connect."""
        executable = shutil.which(COMMAND)
        assert executable, f"{COMMAND} is not on PATH: run these tests by `make test`"
        self._ready.unlink(missing_ok=True)
        command = [*self._wrapper, executable, "--socket", str(self.socket), "--http-addr", "127.0.0.1:0"]
        command += ["--ready-file", str(self._ready), *self._flags]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "ORBITKV_TEST_DIR": str(self.directory)}
            )
        wait_until(self._is_ready, f"the manager is ready; its log:\n{self.log()}")
        self._http = json.loads(self._ready.read_text())["http"]
        return self

    def attach(self, ready_file: Path | None = None) -> Manager:
        """Views only, of a process that somebody else has started in `directory`."""
        note = json.loads((ready_file or self._ready).read_text())
        self._http, self._attached_pid = note["http"], note["pid"]
        return self

    def _is_ready(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"the manager exited with {code}:\n{self.log()}"
        return self._ready.exists()

    @property
    def pid(self) -> int:
        """Of the running process."""
        if self._process is None:
            assert self._attached_pid is not None, "neither started nor attached"
            return self._attached_pid
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def holds(self) -> Holds:
        """Its hold points."""
        return Holds(self.directory, self.pid)

    def stop(self) -> int:
        """SIGTERM; the exit status. Does nothing to a process that is gone."""
        assert self._process is not None
        if self._process.poll() is None:
            self.thaw()
            self._process.terminate()
        try:
            return self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the manager ignored SIGTERM for 30 s:\n{self.log()}") from None

    def kill(self) -> None:
        """SIGKILL, and waits for its end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> Manager:
        """Ends the process, however it is, and starts another on the same socket."""
        self.stop()
        return self.start()

    # Views --------------------------------------------------------------------------------------------------

    def log(self) -> str:
        """What it wrote so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def get(self, path: str) -> str:
        """Body of a GET."""
        with urllib.request.urlopen(f"http://{self._http}{path}", timeout=HTTP_S) as response:
            return response.read().decode()

    def status(self) -> dict[str, Any]:
        """`/status`."""
        return json.loads(self.get("/status"))

    def metrics(self) -> dict[str, float]:
        """`/metrics`: samples by name with labels, as in the text."""
        lines = [line for line in self.get("/metrics").splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def counters(self) -> dict[str, int]:
        """Counters of `/status`."""
        return self.status()["counters"]

    def drop_memory(self) -> int:
        """Drops every page that nobody holds; how many."""
        request = urllib.request.Request(f"http://{self._http}/cache/memory/drop", method="POST")
        with urllib.request.urlopen(request, timeout=HTTP_S) as response:
            return json.load(response)["dropped_pages"]

    def active_instances(self) -> int:
        """Engines whose self-test passed."""
        return sum(row["active"] for row in self.status()["instances"])

    def wait_saved(self) -> None:
        """Waits until no save is under way."""
        wait_until(lambda: self.status()["save"]["inflight_bytes"] == 0, "saves have ended")

    def assert_drained(
        self, within_s: float = DRAINED_WITHIN_S, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """The drain check: every gauge of work is back at zero within that time. Of an engine with running
        requests, `meanwhile` is its step: what they save ends in the steps that follow."""
        deadline = time.monotonic() + within_s
        while left := not_drained(self.status()):
            assert time.monotonic() < deadline, f"not drained within {within_s} s: {left}"
            meanwhile()
            time.sleep(0.02)


@contextmanager
def managers(test_dir: Path) -> Iterator[Callable[..., Manager]]:
    """Starts managers that end with the block, each in a directory with a name short enough for a socket;
    keywords are those of `Manager`."""
    started: list[Manager] = []

    def start(**options: object) -> Manager:
        directory = Path(tempfile.mkdtemp(prefix="m-", dir=test_dir))
        started.append(Manager(directory, **options).start())
        return started[-1]

    yield start
    for manager in started:
        manager.stop()


def slow_tier(delay_ms: int, *, depth: int = 0, size: str = "128mib") -> tuple[str, ...]:
    """Flags of a manager whose tier takes that long for a page, and has so many under way at once."""
    flags = {"size": size, "delay-ms": delay_ms, "depth": depth}
    return tuple(word for name, value in flags.items() for word in (f"--memory-tier-{name}", str(value)))
