"""What one attached client has counted, as the worker side tells it: what was added since it last looked."""

from __future__ import annotations

from typing import Any

from orbitkv.vllm.stats import Increments, worker_counts


class Counted:
    """The counters of one native client, read once a step at most."""

    def __init__(self, client: Any, *, page_tokens: int) -> None:
        self._client = client
        # Tokens that a page restored on this rank stands for. Each rank has a part of it; one counts them.
        self._page_tokens = page_tokens
        self._step, self._stats = -1, {}
        self._increments = Increments()
        self._copied = (0, 0)

    def take_counts(self, step: int) -> dict[str, int | float]:
        """What was counted since the last call, by the names of `stats.COUNTERS`."""
        grown = self._increments.take(self._of_step(step))
        return worker_counts(grown, self._page_tokens) if grown else {}

    def take_copied(self, step: int) -> tuple[int, float]:
        """Bytes and seconds of restores that have ended since the last call: of their copies alone, without
        what those waited for, which is the step before or another restore."""
        stats, before = self._of_step(step), self._copied
        now = (stats["timed_bytes"], stats["timed_us"])
        if now[1] == before[1]:
            # None has ended; bytes come first, and wait for their time.
            return 0, 0.0
        self._copied = now
        return now[0] - before[0], (now[1] - before[1]) / 1e6

    def _of_step(self, step: int) -> dict[str, int]:
        """The counters as they were when first asked for in this step."""
        if self._step != step:
            self._step, self._stats = step, self._client.stats()
        return self._stats
