"""The rounds: the same requests cold, after pressure, and after a restart of the manager."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo import counters, drain, workload
from demo.client import Answer, Client
from demo.counters import Ahead, Counters
from demo.drain import Drain
from demo.processes import Processes
from demo.workload import Request

CONCURRENCY = 4
# More than the engine's blocks hold, so that some wait.
QUEUED = 8
# The engine counts a request's tokens a moment after its answer is out.
SETTLE_S = 5.0
POLL_S = 0.05


@dataclass(frozen=True)
class Phase:
    """Some requests at one concurrency, and what was counted meanwhile."""

    concurrency: int
    answers: list[Answer]
    counted: Counters


@dataclass(frozen=True)
class Round:
    """Both phases of a round, and how it drained."""

    name: str
    phases: list[Phase]
    drain: Drain
    page_bytes: int

    @property
    def counted(self) -> Counters:
        """What was counted over both phases."""
        return sum((phase.counted for phase in self.phases), Counters.zero())

    @property
    def serial(self) -> list[Answer]:
        """Answers to the requests that were sent one at a time."""
        return [answer for phase in self.phases if phase.concurrency == 1 for answer in phase.answers]

    def tokens(self) -> dict[str, tuple[int, ...]]:
        """Output tokens by request."""
        return {answer.request.name: answer.tokens for phase in self.phases for answer in phase.answers}


class Stage:
    """Plays rounds on running processes."""

    def __init__(self, processes: Processes, client: Client, say: Callable[[str], None]) -> None:
        self._processes, self._client, self._say = processes, client, say

    def read(self) -> Counters:
        """All counters now."""
        return Counters.read(self._processes.engine, self._processes.manager)

    def play(
        self, name: str, serial: list[Request], concurrent: list[Request], concurrency: int = CONCURRENCY
    ) -> Round:
        """Sends the requests, first one at a time, then several at a time, and waits for the drain."""
        phases = [self.phase(serial, 1)]
        if concurrent:
            phases.append(self.phase(concurrent, concurrency))
        drained = drain.check(name, self._status)
        counted = sum((phase.counted for phase in phases), Counters.zero())
        requests = sum(len(phase.answers) for phase in phases)
        computed, restored = counted.computed_tokens, counted.restored_tokens
        self._say(f"{drained}; {requests} requests, {computed:,} tokens computed, {restored:,} restored")
        return Round(name, phases, drained, counters.page_bytes(self._status()))

    def phase(self, requests: list[Request], concurrency: int, salt: str | None = None) -> Phase:
        """Sends requests and counts what they did."""
        before = self.read()
        answers = self._client.complete_all(requests, concurrency, salt)
        return Phase(concurrency, answers, self._settled(before, answers) - before)

    def _settled(self, before: Counters, answers: list[Answer]) -> Counters:
        """Counters once they cover all prompts, or after a bounded wait."""
        asked = sum(answer.prompt_tokens for answer in answers)
        until = time.monotonic() + SETTLE_S
        while True:
            now = self.read()
            since = now - before
            covered = since.computed_tokens + since.local_tokens + since.restored_tokens
            if covered >= asked or time.monotonic() > until:
                return now
            time.sleep(POLL_S)

    def press(self, occasion: str) -> None:
        """Fills the engine's own cache with other prompts, so that nothing from before is left there."""
        pressed = self._client.complete_all(workload.pressing_requests(occasion), 1)
        # What was just saved must not be in flight when the next round is counted.
        drained = drain.check(f"pressure {occasion}", self._status)
        total = sum(answer.prompt_tokens for answer in pressed)
        self._say(f"pressed {total:,} tokens of other prompts through the engine's cache; {drained}")

    def read_ahead(self, name: str, serial: list[Request], concurrent: list[Request]) -> tuple[Round, Ahead]:
        """A round with nothing in memory, all in the tier, and more requests than run at once."""
        self._processes.wait_until("all pages are in the tier", self._tier_is_idle, SETTLE_S)
        counters.post(f"{self._processes.manager}/cache/memory/drop")
        before = Ahead.read(self._processes.manager)
        played = self.play(name, serial, concurrent, QUEUED)
        return played, Ahead.read(self._processes.manager) - before

    def _tier_is_idle(self) -> bool:
        return self._status()["tier"]["write_queue_pending"] == 0

    def _status(self) -> dict[str, Any]:
        return counters.status(self._processes.manager)
