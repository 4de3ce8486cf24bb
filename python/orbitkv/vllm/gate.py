"""Admission without stalls on engines that scan one queue of waiting requests (vLLM 0.29 and 0.30).

The engine visits waiting requests in order and stops at the first whose blocks do not fit. A request whose
asynchronous restore has been given blocks waits in that same queue, and is only looked at again when the
scan reaches it. So a request in front of it that does not fit, while nothing runs, stops the engine for
ever: the blocks it needs are held by the restore it hides.

The connector is asked about every request that holds no blocks before the engine allocates for it, and may
answer "not yet", which lets the scan go on. The rule, while a *hold* exists (an asynchronous restore
between its allocation and its first scheduled compute step):

1. A request passes only if its need fits beside the blocks that all holds still need.
2. Once one request was put off by rule 1, those behind it wait too, or small ones could overtake it for ever.
3. A new asynchronous restore is admitted only if the need of the first request put off in this scan fits
   beside it.

Why "not yet" ends: when a second hold begins, by rule 1 `free >= what all holds still need`, and by rule 1
nobody is admitted into that remainder afterwards. Only running requests can grow into it, and they give all
of their blocks back when they finish or are preempted. So once nothing runs every hold fits, in any order (a
single hold fits because nobody else has blocks); no request in front of a hold stops the scan; and a restore
itself ends in bounded time, failed or not. Hence every hold ends, new ones do not begin while someone is put
off (rule 3), and with no hold left the gate lets everything pass and the engine's own order decides. A
request put off because of rule 3 alone waits for one that was put off by its own lookup, or for another's
restore (`sharing`); both have a deadline.

Needs are upper bounds: blocks that a request shares with running ones are counted as if it had to get them.
That may put a request off for a few steps more; it never lets one pass that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class _Head:
    """The first request put off in the current scan."""

    request_id: str
    need_blocks: int
    by_gate: bool


class Gate:
    """Holds and the current scan. `free_blocks` reads the engine's free count."""

    def __init__(self, free_blocks: Callable[[], int], *, enabled: bool) -> None:
        self._free_blocks = free_blocks
        self._enabled = enabled
        # Request id to the blocks that it still has to get before it can finish its prompt.
        self._holds: dict[str, int] = {}
        self._head: _Head | None = None
        self.denials = 0

    @property
    def holds(self) -> frozenset[str]:
        """Requests that hold headroom."""
        return frozenset(self._holds)

    def admits(self, request_id: str, need_blocks: int, *, is_async: bool) -> bool:
        """Whether the engine may now try to allocate `need_blocks` for a request; False means "not yet"."""
        if not self._enabled or self._fits(request_id, need_blocks, is_async):
            return True
        self._put_off(_Head(request_id, need_blocks, by_gate=True))
        self.denials += 1
        return False

    def put_off(self, request_id: str, need_blocks: int) -> None:
        """The request's own lookup answered "not yet", or it waits for another's restore."""
        self._put_off(_Head(request_id, need_blocks, by_gate=False))

    def hold(self, request_id: str, remaining_blocks: int) -> None:
        """An asynchronous restore was given its destination and still needs `remaining_blocks`."""
        self._holds[request_id] = max(0, remaining_blocks)

    def release(self, request_id: str) -> None:
        """The request was scheduled, has lost its blocks, or is gone. Idempotent."""
        self._holds.pop(request_id, None)

    def release_all(self, request_ids: Iterable[str]) -> None:
        """These were scheduled."""
        if self._holds:
            for request_id in request_ids:
                self.release(request_id)

    def new_scan(self) -> None:
        """The engine's scan of the waiting requests is over."""
        self._head = None

    def _fits(self, request_id: str, need_blocks: int, is_async: bool) -> bool:
        head = self._head
        if self._holds and head is not None and head.by_gate:
            return False
        head_blocks = head.need_blocks if is_async and head is not None else 0
        if not self._holds and not head_blocks:
            return True
        holds = sum(need for holder, need in self._holds.items() if holder != request_id)
        return need_blocks + holds + head_blocks <= self._free_blocks()

    def _put_off(self, head: _Head) -> None:
        if self._head is None or (head.by_gate and not self._head.by_gate):
            self._head = head


def engine_needs_gate() -> bool:
    """False where the scheduler keeps requests that hold blocks in a queue of their own."""
    from vllm.v1.core.sched.scheduler import Scheduler

    return "kv_holding_waiting" not in Scheduler.__init__.__code__.co_names
