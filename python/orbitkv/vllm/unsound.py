"""Blocks of failed restores that nobody has computed yet, and whoever would read them.

vLLM 0.29 computes a block that was not restored once, for the first request that has it, and leaves it in the
prefix cache meanwhile. Others that have the block, and those that find it in the cache, count it as computed.
That holds while the first one computes it in the very next step. It does not if that request is aborted or
preempted, or computes its prompt in chunks while the others run on: they would read what was never written.

So blocks that hold nothing usable are remembered, with everything behind them that was computed from them,
until they were computed from their first token to their last or were given to somebody else. A step in which
a request reads one of them otherwise is one whose restore has failed: the engine is told so, drops what the
step computed for the request, and has it compute the blocks itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orbitkv.vllm.tables import Row


class UnsoundBlocks:
    """Block ids, and the requests that have one in their tables. Empty as long as no restore fails."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        # Block id to its leading tokens that were computed since.
        self._computed: dict[int, int] = {}
        self._holders: set[str] = set()

    def add(self, blocks: list[int]) -> None:
        """The first of these holds nothing usable, and the others were computed from it."""
        # Of one that was known already, some may have been computed again by now.
        is_new = blocks[0] not in self._computed
        for block in blocks:
            if is_new or block not in self._computed:
                self._computed[block] = 0

    def reused(self, blocks: Iterable[int]) -> None:
        """The engine has given these to somebody who will fill them."""
        if self._computed:
            for block in blocks:
                self._computed.pop(block, None)

    def table(self, request_id: str, blocks: list[int]) -> None:
        """A request has these blocks, and what is added to them later is its own to fill."""
        if self._computed and not self._computed.keys().isdisjoint(blocks):
            self._holders.add(request_id)

    def finished(self, request_id: str) -> None:
        """The request is over. Its blocks may still be in the engine's prefix cache."""
        self._holders.discard(request_id)

    @property
    def is_watching(self) -> bool:
        """Whether any request has an unsound block."""
        return bool(self._holders)

    def read_in(self, rows: Iterable[Row]) -> dict[str, list[int]]:
        """Takes in a step: by request, the blocks that it counts as computed and that are not, even at the
        end of the step. A layer writes all of a step's tokens before it reads any, so that what one request
        computes in a step another may read in it."""
        rows = [row for row in rows if row.request_id in self._holders]
        read: dict[str, list[int]] = {}
        while True:
            computed = self._after(rows)
            found = {row.request_id: blocks for row in rows if (blocks := self._lacking(row, computed))}
            if not found:
                break
            # What these compute themselves is not usable either, so it does not help the others.
            read |= found
            rows = [row for row in rows if row.request_id not in found]
        self._computed = {block: done for block, done in computed.items() if done < self._block_tokens}
        for row in rows:
            if self._computed.keys().isdisjoint(row.table):
                self._holders.discard(row.request_id)
        return read

    def _after(self, rows: list[Row]) -> dict[int, int]:
        """Computed tokens of unsound blocks after a step of these rows."""
        computed = dict(self._computed)
        for row in rows:
            for at, block in self._unsound(row, row.end):
                done = computed[block]
                if row.begin <= at + done:
                    computed[block] = max(done, min(self._block_tokens, row.end - at))
        return computed

    def _lacking(self, row: Row, computed: dict[int, int]) -> list[int]:
        return [
            block
            for at, block in self._unsound(row, row.begin)
            if computed[block] < min(self._block_tokens, row.begin - at)
        ]

    def _unsound(self, row: Row, end: int) -> list[tuple[int, int]]:
        """First token and id of the row's unsound blocks that begin before token `end`."""
        count = -(-end // self._block_tokens)
        return [
            (position * self._block_tokens, block)
            for position, block in enumerate(row.table[:count])
            if block in self._computed
        ]
