"""An object in a process group of its own, which can be asked, and killed whole.

    python -m benches.gpu.child FD        (started by `Child` alone)

Engines start processes of their own. A group is what ends with all of them, in whatever state.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENDS_WITHIN_S = 20.0
PR_SET_PDEATHSIG = 1


class ChildError(Exception):
    """The other process failed or did not answer; the message holds its traceback or the end of its log."""


class Child:
    """`module:Class(**arguments)` in a new process. It is being built when this returns: `wait_built`."""

    def __init__(
        self, target: str, arguments: dict[str, Any], log: Path, environment: dict[str, str]
    ) -> None:
        ours, theirs = socket.socketpair()
        self.log_path = log
        self._is_killed = False
        environment = {**os.environ, **environment}
        environment["PYTHONPATH"] = os.pathsep.join(
            part for part in (str(ROOT), environment.get("PYTHONPATH", "")) if part
        )
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benches.gpu.child", str(theirs.fileno())],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment,
            )
        theirs.close()
        self._pipe = Connection(ours.detach())
        self._pipe.send((target, arguments))

    @property
    def pid(self) -> int:
        """Its process id, which is its group's as well."""
        return self._process.pid

    def wait_built(self, within_s: float) -> Any:
        """Waits until the object is there; what its `describe` returned."""
        return self._answer(within_s)

    def call(self, method: str, *arguments: Any, within_s: float = 120.0, **options: Any) -> Any:
        """Calls a method there; the result travels back."""
        self.begin(method, *arguments, **options)
        return self.end(within_s)

    def begin(self, method: str, *arguments: Any, **options: Any) -> None:
        """Starts a call without waiting for its end."""
        try:
            self._pipe.send((method, arguments, options))
        except OSError as error:
            raise ChildError(f"{error}\n{self.log_tail()}") from None

    def end(self, within_s: float = 120.0) -> Any:
        """Waits for the end of the call that was begun."""
        return self._answer(within_s)

    def log_tail(self, characters: int = 3000) -> str:
        """The end of what it and its processes wrote."""
        return self.log_path.read_text(errors="replace")[-characters:]

    def kill(self) -> None:
        """SIGKILL to the whole group, and waits for the end of its first process; once: a number is used
        again."""
        if self._is_killed:
            return
        self._is_killed = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Lets the object close, then ends the group. Does nothing the second time."""
        if self._is_killed:
            return
        with suppress(ChildError, OSError):
            self.call("close", within_s=ENDS_WITHIN_S)
        self.kill()
        self._pipe.close()

    def _answer(self, within_s: float) -> Any:
        deadline = time.monotonic() + within_s
        while not self._pipe.poll(0.2):
            if (code := self._process.poll()) is not None:
                raise ChildError(f"process {self.pid} exited with {code}\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ChildError(f"process {self.pid} did not answer in {within_s:.0f} s\n{self.log_tail()}")
        try:
            error, result = self._pipe.recv()
        except EOFError:
            raise ChildError(f"process {self.pid} ended\n{self.log_tail()}") from None
        if error is not None:
            raise ChildError(error)
        return result


def _serve(pipe: Connection) -> None:
    target, arguments = pipe.recv()
    served: Any = None
    try:
        module, _, name = target.partition(":")
        served = getattr(importlib.import_module(module), name)(**arguments)
        pipe.send((None, served.describe()))
    except Exception:  # noqa: BLE001 - whoever asked wants to read it
        pipe.send((traceback.format_exc(), None))
        return
    while True:
        try:
            method, positional, options = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((None, getattr(served, method)(*positional, **options)))
        except Exception:  # noqa: BLE001 - the same
            pipe.send((traceback.format_exc(), None))


def _end_with_parent() -> None:
    """Whoever started this may be killed: nothing would be left to end it."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _end_with_parent()
    _serve(Connection(int(sys.argv[1])))
