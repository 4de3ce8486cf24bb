"""An object in a process of its own, which a test may stop or kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from support.holds import Holds
from support.wait import wait_until

# Imports of an engine included, on a busy machine.
START_S = 120.0
CALL_S = 60.0


class Child:
    """`build(*arguments)` in a new process; `call` calls methods of what it returned there."""

    def __init__(self, test_dir: Path, build: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build, arguments), name="child")
        self._process.start()
        theirs.close()
        self._test_dir = test_dir
        self._answer(START_S)

    @property
    def pid(self) -> int:
        """Its process id."""
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def holds(self) -> Holds:
        """Its hold points."""
        return Holds(self._test_dir, self.pid)

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls a method there; the result travels back."""
        self._pipe.send((method, arguments, options))
        return self._answer(CALL_S)

    def step_until(self, look: Callable[[], bool], what: str) -> None:
        """Steps an engine until `look` is true here."""
        for _ in range(1000):
            if look():
                return
            self.call("step")
        raise AssertionError(f"the child never came to it: {what}")

    def freeze(self) -> None:
        """SIGSTOP, and waits until every thread has stopped: on a busy machine some run on for a while."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        wait_until(lambda: all(_is_stopped(task) for task in tasks.iterdir()), "the child has stopped")

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and waits for its end."""
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """Ends it in whatever state."""
        self.kill()
        self._pipe.close()

    def _answer(self, within_s: float) -> Any:
        assert self._pipe.poll(within_s), f"the child did not answer within {within_s} s"
        error, result = self._pipe.recv()
        assert error is None, f"the child failed:\n{error}"
        return result


def _is_stopped(task: Path) -> bool:
    # The name before the state may hold anything, a parenthesis included.
    return (task / "stat").read_text().rpartition(") ")[2].startswith("T")


def _serve(pipe: Connection, build: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    served: Any = None

    def answer(work: Callable[[], Any]) -> None:
        try:
            pipe.send((None, work()))
        except Exception:  # noqa: BLE001 - the test at the other end wants to read it
            pipe.send((traceback.format_exc(), None))

    def start() -> None:
        nonlocal served
        served = build(*arguments)

    answer(start)
    while True:
        try:
            method, args, options = pipe.recv()
        except EOFError:
            return
        answer(lambda method=method, args=args, options=options: getattr(served, method)(*args, **options))
