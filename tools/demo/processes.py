"""Everything the demo starts, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from demo import counters
from demo.engine import Engine
from demo.settings import (
    ATTACH_S,
    ENGINE_ENVIRONMENT,
    ENGINE_START_S,
    POOL_SIZE,
    RECOVER_S,
    SSD_CAPACITY,
    STOP_S,
    Places,
)

HOST = "127.0.0.1"
POLL_S = 0.2
TAIL_LINES = 25


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


class Processes:
    """`orbitkv run --ssd` with an engine, and the cache manager behind it. With `prepare` the engine reads
    ahead for requests that wait. `beside`: another engine on the manager of those, which ends with them."""

    def __init__(
        self, kind: Engine, places: Places, *, prepare: bool = False, beside: Processes | None = None
    ) -> None:
        self.kind = kind
        self._places = places
        self._prepare = prepare
        self._beside = beside
        # A socket's path is short, and its directory is its owner's alone: mkdtemp gives both.
        self.directory = beside.directory if beside else Path(tempfile.mkdtemp(prefix="orbitkv-demo-"))
        self.socket = self.directory / "manager.sock"
        self.port = free_port()
        self._manager_http = beside._manager_http if beside else f"{HOST}:{free_port()}"
        self.engine_log = places.out / f"{kind.name}.log"
        self.manager_log = places.out / "manager.log"
        self._run: subprocess.Popen[bytes] | None = None
        self._manager: subprocess.Popen[bytes] | None = None

    @property
    def ssd(self) -> Path:
        """The directory of the SSD cache."""
        return self._places.ssd

    @property
    def engine(self) -> str:
        """Base address of the engine."""
        return f"http://{HOST}:{self.port}"

    @property
    def manager(self) -> str:
        """Base address of the cache manager."""
        return f"http://{self._manager_http}"

    def start(self) -> None:
        """One command: it starts the manager unless there is one, then the engine."""
        orbitkv = [self._places.program("orbitkv"), "run", "--socket", self.socket]
        if self._manager is None and self._beside is None:
            orbitkv += ["--http-addr", self._manager_http, "--pool-size", POOL_SIZE]
            orbitkv += [f"--ssd={self.ssd}", "--ssd-capacity", SSD_CAPACITY]
        engine = self.kind.command(self._places.programs, self._places.model, HOST, self.port)
        self._run = self._spawn([*orbitkv, "--", *engine], self.engine_log, "wb")

    def _spawn(self, command: list[object], log: Path, mode: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **ENGINE_ENVIRONMENT, **self.kind.environment}
        environment["ORBITKV_PREPARE_REQUESTS"] = str(int(self._prepare))
        environment["PATH"] = f"{self._places.programs}:{environment.get('PATH', '')}"
        with log.open(mode) as output:
            return subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                # A session of its own: Ctrl-C is for the demo, which then stops them in order.
                start_new_session=True,
            )

    def wait_healthy(self, progress: Callable[[float], None]) -> None:
        """Waits until the engine serves."""
        self.wait_until(
            "the engine serves", lambda: counters.is_healthy(self.engine), ENGINE_START_S, progress
        )

    def wait_until(
        self,
        what: str,
        holds: Callable[[], bool],
        patience_s: float,
        progress: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Waits until `holds()`; `DemoError` when the time is over, or a process ended meanwhile."""
        begun = time.monotonic()
        while not holds():
            self.require_alive()
            passed_s = time.monotonic() - begun
            if passed_s > patience_s:
                raise DemoError(f"waited {passed_s:.0f} s in vain until {what}")
            progress(passed_s)
            time.sleep(POLL_S)

    def require_alive(self) -> None:
        """`DemoError` if something that must run has ended."""
        for name, process in (("orbitkv run", self._run), ("the cache manager", self._manager)):
            if process is not None and process.poll() is not None:
                raise DemoError(f"{name} ended with {process.returncode}")

    def active_instance(self) -> dict[str, object] | None:
        """The engine as the manager sees it, once hits and saves are on."""
        try:
            instances = counters.status(self.manager)["instances"]
        except counters.CountersError:
            return None
        own = (row for row in instances if row["active"] and row["engine"] == self.kind.name)
        return next(own, None)

    def stop_manager(self) -> None:
        """Asks the manager to end, whoever has started it, and waits until it has."""
        if self._manager is not None:
            end(self._manager, group=False)
            self._manager = None
            return
        pid = self._noted_manager()
        if pid is None:
            raise DemoError(f"{self.socket}.json does not name the cache manager")
        os.kill(pid, signal.SIGTERM)
        self.wait_until("the cache manager ends", lambda: not is_running(pid), STOP_S)
        self._keep_first_log()

    def start_manager(self) -> None:
        """Starts a manager in the place of one that has ended, with the same SSD directory, and waits until
        it has found what is in there and the engine uses it again."""
        self.launch_manager()
        self.wait_serving()

    def launch_manager(self, *flags: object) -> None:
        """Starts a manager of which engines may find out later."""
        command = [self._places.program("orbitkv-cache-manager"), "--socket", self.socket]
        command += ["--http-addr", self._manager_http, "--pool-size", POOL_SIZE]
        command += ["--ssd-cache-path", self.ssd, "--ssd-cache-capacity", SSD_CAPACITY, *flags]
        self._manager = self._spawn(command, self.manager_log, "ab")
        self.wait_until("the SSD directory is serving", self._ssd_serves, RECOVER_S)

    def wait_serving(self) -> None:
        """Waits until the SSD directory is read and written and the engine uses the cache; `DemoError` if the
        directory has a state of which neither comes."""
        self.wait_until("the SSD directory is serving", self._ssd_serves, RECOVER_S)
        self.wait_until(
            "the engine is connected and active", lambda: self.active_instance() is not None, ATTACH_S
        )

    def _ssd_serves(self) -> bool:
        try:
            (row,) = counters.status(self.manager)["ssd"]
        except counters.CountersError:
            return False
        if row["state"] not in ("recovering", "serving"):
            raise DemoError(
                f"the SSD directory {row['path']} is {row['state']!r}: {self.manager_log.name} says why"
            )
        return row["state"] == "serving"

    def ssd_mode(self) -> str:
        """How pages go to the SSD and back, in the manager's words."""
        (row,) = counters.status(self.manager)["ssd"]
        return row["mode"]

    def empty_ssd(self) -> None:
        """Removes every page from the SSD directory. Only while no manager works in it."""
        shutil.rmtree(self.ssd)

    def stop_engine(self) -> None:
        """Asks `orbitkv run` to end, as Ctrl-C would. A manager that the demo has started stays."""
        if self._run is not None:
            end(self._run, group=True)
            self._run = None

    def close(self) -> None:
        """Ends everything that is left, whatever state it is in."""
        if self._beside is not None:
            self.stop_engine()
            return
        noted = self._noted_manager()
        self.stop_engine()
        if self._manager is not None:
            end(self._manager, group=False)
            self._manager = None
        # A manager whose `orbitkv run` had to be killed.
        if noted is not None and is_running(noted):
            os.kill(noted, signal.SIGKILL)
        self._keep_first_log()
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.ssd, ignore_errors=True)

    def _noted_manager(self) -> int | None:
        """Process id of the manager that `orbitkv run` has started, while it lives."""
        try:
            pid = json.loads(Path(f"{self.socket}.json").read_text())["pid"]
        except (OSError, ValueError, KeyError):
            return None
        return pid if is_running(pid) else None

    def _keep_first_log(self) -> None:
        """`orbitkv run` keeps the manager's log beside the socket, which goes away."""
        log = Path(f"{self.socket}.log")
        if log.exists():
            with self.manager_log.open("ab") as kept:
                kept.write(log.read_bytes())
            log.unlink()

    def tails(self) -> str:
        """The last lines of every log, and where the logs are."""
        parts = []
        beside = Path(f"{self.socket}.log")
        for log in (self.engine_log, self.manager_log, beside):
            if log.exists():
                lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
                parts.append("\n".join([f"--- last lines of {log}", *lines]))
        return "\n".join(parts)


def on_one_manager(served: Sequence[tuple[Engine, Places]], *, prepare: bool) -> list[Processes]:
    """What is to be started for these engines. The first one has the manager."""
    first, *others = served
    host = Processes(*first, prepare=prepare)
    return [host, *(Processes(*other, prepare=prepare, beside=host) for other in others)]


def is_running(pid: int) -> bool:
    """Whether that process is a cache manager, and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # The kernel cuts names after 15 bytes.
    name, _, rest = stat.partition(") ")
    return name.endswith("(orbitkv-cache-m") and not rest.startswith("Z")


def end(process: subprocess.Popen[bytes], group: bool) -> None:
    """SIGTERM, time to end, then SIGKILL to what is left; `group`: to its whole process group."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if group:
        # The demo has started this group, and its leader is gone: what is in it was left behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
