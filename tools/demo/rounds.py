"""The rounds: the same requests cold, and with their pages in memory, on the SSD, or nowhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from demo import counters, drain, workload
from demo.client import Answer, Client
from demo.counters import Ahead, Counters
from demo.drain import Drain
from demo.processes import DemoError, Processes
from demo.settings import BLOCK_TOKENS, WRITTEN_S
from demo.workload import Request

CONCURRENCY = 4
# More than the engine's blocks hold, so that some wait.
QUEUED = 8
# The engine counts a request's tokens a moment after its answer is out.
SETTLE_S = 5.0
POLL_S = 0.05


class Source(Enum):
    """Where the pages of a round are before it, and so what must serve it."""

    NOTHING = "computed"
    MEMORY = "memory"
    SSD = "ssd"


@dataclass(frozen=True)
class Phase:
    """Some requests at one concurrency, and what was counted meanwhile."""

    concurrency: int
    answers: list[Answer]
    counted: Counters

    @property
    def restorable_pages(self) -> int:
        """Pages that could be asked for: whole blocks but the one of the last token, which the engine
        computes itself, and without those that the engine held."""
        whole = sum((answer.prompt_tokens - 1) // BLOCK_TOKENS for answer in self.answers)
        return whole - self.counted.local_tokens // BLOCK_TOKENS


@dataclass(frozen=True)
class Round:
    """Both phases of a round, and how it drained."""

    name: str
    source: Source
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
        return Counters.read(self._processes.kind, self._processes.engine, self._processes.manager)

    def play(
        self,
        name: str,
        source: Source,
        serial: list[Request],
        concurrent: list[Request],
        concurrency: int = CONCURRENCY,
    ) -> Round:
        """Sends the requests, first one at a time, then several at a time, and waits for the drain."""
        phases = [self.phase(serial, 1)]
        if concurrent:
            phases.append(self.phase(concurrent, concurrency))
        drained = drain.check(name, self.status)
        counted = sum((phase.counted for phase in phases), Counters.zero())
        requests = sum(len(phase.answers) for phase in phases)
        computed, restored = counted.computed_tokens, counted.restored_tokens
        self._say(f"{drained}; {requests} requests, {computed:,} tokens computed, {restored:,} restored")
        return Round(name, source, phases, drained, counters.page_bytes(self.status()))

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
        drained = drain.check(f"pressure {occasion}", self.status)
        total = sum(answer.prompt_tokens for answer in pressed)
        self._say(f"pressed {total:,} tokens of other prompts through the engine's cache; {drained}")

    def drop_memory(self) -> None:
        """Leaves every page on the SSD alone: waits until all are written, and empties the pool."""
        until = time.monotonic() + WRITTEN_S
        while True:
            answer = counters.drop_memory(self._processes.manager)
            if not answer.get("pending_bytes"):
                break
            if time.monotonic() > until:
                raise DemoError(
                    f"{answer['pending_bytes']} bytes were not on the SSD after {WRITTEN_S:.0f} s: "
                    f"the disk of {self._processes.ssd} is too slow for the demo, or stuck"
                )
        if not answer["dropped_pages"]:
            raise DemoError("the cache manager dropped no page from memory: nothing had been saved")
        self._say(f"everything is written; dropped {answer['dropped_pages']:,} pages from memory")

    def restart_manager(self, *, emptied: bool = False) -> None:
        """Ends the cache manager and starts another one on the same SSD directory, or on an empty one."""
        self._say(f"restarting the cache manager{' on an empty SSD directory' * emptied}; the engine stays")
        self._processes.stop_manager()
        if emptied:
            self._processes.empty_ssd()
        self._processes.start_manager()
        found = self.status()["counters"]["found_pages"]
        self._say(f"the new cache manager found {found:,} pages on the SSD; the engine is active again")

    def read_ahead(self, name: str, serial: list[Request], concurrent: list[Request]) -> tuple[Round, Ahead]:
        """A round from the SSD with more requests than run at once, and what was read ahead meanwhile."""
        before = Ahead.read(self._processes.manager)
        played = self.play(name, Source.SSD, serial, concurrent, QUEUED)
        return played, Ahead.read(self._processes.manager) - before

    def status(self) -> dict[str, Any]:
        """The manager's `/status` now."""
        return counters.status(self._processes.manager)
