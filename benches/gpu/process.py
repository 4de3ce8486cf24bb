"""Server processes beside the engines: cache managers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

READY_WITHIN_S = 60.0
HTTP_S = 10.0


class ProcessError(Exception):
    """A server process that did not become ready, or something awaited that did not come."""


def wait_until(
    look: Callable[[], Any], what: str, within_s: float = READY_WITHIN_S, every_s: float = 0.02
) -> Any:
    """Looks until it is true; what it returned. Raises `ProcessError` naming `what`."""
    deadline = time.monotonic() + within_s
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise ProcessError(f"waited {within_s:.0f} s in vain: {what}")
        time.sleep(every_s)
    return seen


class Server:
    """A process in a session of its own, its output in `log`."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.log_path = log
        self._is_killed = False
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def check(self) -> None:
        """Raises `ProcessError` with the end of its log if it has ended."""
        if (code := self._process.poll()) is not None:
            raise ProcessError(f"exited with {code}: {self.log_path.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """SIGKILL to it and what it started; once: a number is used again."""
        if self._is_killed:
            return
        self._is_killed = True
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """SIGTERM, and SIGKILL after 20 s. Does nothing the second time."""
        if self._is_killed:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        self.kill()


class Manager:
    """`orbitkv-cache-manager`, the one on PATH. `restart` replaces the process by another on the same
    socket."""

    def __init__(self, log: Path, pool_size: str, flags: tuple[str, ...] = ()) -> None:
        executable = shutil.which("orbitkv-cache-manager")
        if executable is None:
            raise ProcessError(
                "orbitkv-cache-manager is not on PATH: install the wheel, and put its bin there"
            )
        self._directory = Path(tempfile.mkdtemp(prefix="okv-"))  # short: a socket's path is
        self.socket = self._directory / "manager.sock"
        self._ready = self._directory / "ready.json"
        self._command = [executable, "--socket", str(self.socket), "--http-addr", "127.0.0.1:0"]
        self._command += ["--ready-file", str(self._ready), "--pool-size", pool_size, *flags]
        self._log = log
        self._server: Server | None = None
        self._http = ""
        self.start()

    def start(self) -> None:
        """Starts the process and waits until engines can connect."""
        self._ready.unlink(missing_ok=True)
        server = self._server = Server(self._command, self._log)

        def is_ready() -> bool:
            server.check()
            return self._ready.exists() and self._ready.stat().st_size > 0

        wait_until(is_ready, "orbitkv-cache-manager is ready")
        self._http = json.loads(self._ready.read_text())["http"]

    def status(self) -> dict[str, Any]:
        """Its `/status`."""
        with urllib.request.urlopen(f"http://{self._http}/status", timeout=HTTP_S) as answer:
            return json.load(answer)

    def active_instances(self) -> int:
        """Engines whose self-test passed."""
        return sum(bool(row["active"]) for row in self.status()["instances"])

    def wait_saved(self) -> None:
        """Waits until no save is under way, nor a write to a slower tier."""

        def is_saved() -> bool:
            status = self.status()
            written = (status.get("tier") or {}).get("write_queue_pending", 0)
            return (
                status["save"]["inflight_bytes"] == 0 and status["save"]["reservations"] == 0 and not written
            )

        wait_until(is_saved, "saves have ended")

    def wait_unchanged(self, counter: str, for_s: float) -> None:
        """Waits until a counter has not changed for so long."""
        seen, since = self.status()["counters"][counter], time.monotonic()
        while time.monotonic() - since < for_s:
            time.sleep(0.05)
            now = self.status()["counters"][counter]
            if now != seen:
                seen, since = now, time.monotonic()

    def drop_memory(self) -> int:
        """Forgets every page in memory that nobody holds; how many."""
        request = urllib.request.Request(f"http://{self._http}/cache/memory/drop", method="POST")
        with urllib.request.urlopen(request, timeout=HTTP_S) as answer:
            return json.load(answer)["dropped_pages"]

    def kill(self) -> None:
        """SIGKILL."""
        if self._server is not None:
            self._server.kill()

    def restart(self) -> None:
        """SIGTERM to the process, and another in its place."""
        if self._server is not None:
            self._server.close()
        self.start()

    def close(self) -> None:
        """Ends it and removes its directory."""
        if self._server is not None:
            self._server.close()
        shutil.rmtree(self._directory, ignore_errors=True)
