"""One restore of a prefix for all requests that wait for it.

Blocks that a restore inside the forward pass fills are in the engine's prefix cache from their allocation on:
a second request of the same step finds them there, and reads each layer after that restore has been waited
for. Blocks of a restore between steps come into that cache only when the restore has ended and the engine's
scan has come to its request. Whoever asked in the meantime would restore the same pages once more, into
blocks of its own. So a request whose first missing page is being restored for another is put off.

It waits for that page alone: what the engine has already is its own at once, what lies behind the other's
pages is looked up when they have come, and its last block, which it writes to, is never one of them. It holds
nothing that it will not need. And the other one is not in its way: it goes on with a lookup of its own as
soon as that restore has failed, its request is gone, the time is up, or a scan that came to this request
after the end of that restore did not put the blocks into the engine's cache.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbitkv.vllm.requests import RequestRecord
    from orbitkv.vllm.worth import Worth


@dataclass(eq=False)
class Restore:
    """A restore between steps, from its order until the engine has cached its blocks."""

    hashes: Sequence[bytes]
    pages: range
    # Every rank has said so; the engine still has to come to the request.
    is_over: bool = False


@dataclass
class Wait:
    """How one admission of a request waits, for whichever restores it finds under way: pages `start .. stop`
    until `deadline`, in monotonic seconds."""

    start: int
    stop: int
    deadline: float
    # The restore of which it has been told to wait after it was over.
    seen_over: Restore | None = None


class Sharing:
    """Restores between steps that are under way, by their pages."""

    def __init__(
        self, worth: Worth, *, block_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._worth = worth
        self._block_tokens = block_tokens
        self._clock = clock
        self._restores: dict[str, Restore] = {}
        # Hashes are chained: equal ones are at the same position behind equal pages.
        self._of_page: dict[bytes, Restore] = {}
        self.counters: Counter[str] = Counter()

    # Restores ---------------------------------------------------------------------------------------------

    def begun(self, record: RequestRecord) -> None:
        """The request's restore has been ordered."""
        restore = Restore(record.request.block_hashes, record.restored)
        self._restores[record.request.request_id] = restore
        for position in restore.pages:
            self._of_page[restore.hashes[position]] = restore

    def is_over(self, request_id: str) -> None:
        """Its pages have landed, or some have not. The engine caches them when its scan comes to the
        request."""
        if (restore := self._restores.get(request_id)) is not None:
            restore.is_over = True

    def forget(self, request_id: str) -> None:
        """Nobody waits for its restore any more: it has failed, or come to the engine's cache, or the request
        is gone. Idempotent."""
        restore = self._restores.pop(request_id, None)
        if restore is not None:
            for position in restore.pages:
                # Another may have restored the page as well, because it had waited long enough.
                if self._of_page.get(restore.hashes[position]) is restore:
                    del self._of_page[restore.hashes[position]]

    def clear(self) -> None:
        """Nobody waits for anything."""
        self._restores.clear()
        self._of_page.clear()

    # Requests that wait -----------------------------------------------------------------------------------

    def puts_off(self, record: RequestRecord, start: int, usable: int) -> bool:
        """Whether a request that lacks its pages from `start` on, of those before `usable`, should be asked
        about again later."""
        hashes = record.request.block_hashes
        restore = self._of_page.get(hashes[start])
        if restore is None or (record.lookup is not None and record.lookup.closed):
            return False
        stop = _common(restore.hashes, hashes, start, min(restore.pages.stop, usable))
        wait = record.wait
        now = self._clock()
        if wait is None:
            deadline = now + self._worth.deadline_ms(stop - start) / 1000
            wait = record.wait = Wait(start, stop, deadline)
        if now >= wait.deadline or wait.seen_over is restore:
            return False
        if restore.is_over:
            wait.seen_over = restore
        wait.stop = max(wait.stop, stop)
        if stop >= usable:
            record.withdraw_lookup()
        return True

    def admitted(self, record: RequestRecord) -> None:
        """The request got its blocks. Counts what it found of what it has waited for."""
        wait = record.wait
        pages = min(record.local_blocks, wait.stop) - wait.start if wait is not None else 0
        if pages > 0:
            self.counters["shared_restores"] += 1
            self.counters["shared_tokens"] += pages * self._block_tokens


def _common(ours: Sequence[bytes], theirs: Sequence[bytes], start: int, stop: int) -> int:
    """End of the pages from `start` on, `stop` at most, that are the same in both."""
    differs = bisect_left(range(start, stop), True, key=lambda position: ours[position] != theirs[position])
    return start + differs
