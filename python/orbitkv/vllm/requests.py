"""What the scheduler side remembers of one request, from `on_new_request` to its end."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from orbitkv.vllm.lookup import Lookup
    from orbitkv.vllm.sharing import Wait


class Phase(enum.Enum):
    """Where a request is, as far as its blocks are concerned."""

    WAITING = enum.auto()  # holds no blocks
    LOADING = enum.auto()  # an asynchronous restore fills its blocks
    RUNNING = enum.auto()  # scheduled at least once since it got its blocks


@dataclass(frozen=True)
class Answer:
    """The last answer to a lookup: `count` blocks from block `start`, restored in the step or between
    steps."""

    start: int
    count: int
    is_async: bool


@dataclass
class RequestRecord:
    """One request. Block positions count from the start of the request; `blocks` maps them to block ids."""

    request: Request
    phase: Phase = Phase.WAITING
    lookup: Lookup | None = None
    # Monotonic seconds until which this admission's lookups may answer "not yet".
    lookup_deadline: float | None = None
    # Has been put off in this admission, as another request's restore brings its pages.
    wait: Wait | None = None
    answer: Answer | None = None
    blocks: list[int] = field(default_factory=list)
    # Leading blocks of `blocks` that were in the engine's own cache when the table was made.
    local_blocks: int = 0
    # Positions that came from the cache manager; it has them already.
    restored: range = range(0)
    # They were restored between steps, and the request has been in no step since.
    is_unused: bool = False
    # Leading positions whose saving has been decided.
    considered: int = 0
    # A restore for this request failed once: it is recomputed, however often it is looked up again.
    restore_failed: bool = False

    def begin_admission(self) -> None:
        """The engine asks about a request that holds no blocks: new, preempted, or its restore failed."""
        self.close_lookup()
        self.lookup = None
        self.phase = Phase.WAITING
        self.lookup_deadline = None
        self.wait = None
        self.answer = None
        self.blocks = []
        self.local_blocks = 0
        self.restored = range(0)
        self.is_unused = False

    def close_lookup(self) -> None:
        """Ends interest in the pages found; idempotent."""
        if self.lookup is not None:
            self.lookup.close()

    def withdraw_lookup(self) -> None:
        """Ends interest in the pages found, as if nothing had been asked yet."""
        self.close_lookup()
        self.lookup = None
        self.lookup_deadline = None

    def fail_from(self, position: int) -> None:
        """Blocks from `position` on hold nothing usable: they will be computed, and may then be saved."""
        self.restore_failed = True
        self.restored = range(self.restored.start, min(self.restored.stop, position))
        self.considered = min(self.considered, position)
