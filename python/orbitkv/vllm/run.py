"""A run of full blocks of one request that are offered to the cache manager together.

A prompt of 32,768 tokens that the engine found in its own cache is offered once more with every request that
has it, so nothing here is kept page by page: a run is slices of the request's lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Run:
    """Blocks at positions `first`, `first + 1`, … of a request, in order. `hashes` and `blocks` are equally
    long and not empty; `parent` is the hash before the first one."""

    request_id: str
    first: int
    hashes: Sequence[bytes]
    parent: bytes | None
    blocks: Sequence[int]
    step: int  # whose forward pass completes the last block
    retries: int = 0
    retry_at: float = 0.0  # on the monotonic clock
    reservation: Any = None
    is_answered: bool = False
    # Pages that are neither dispatched nor given up.
    open: int = 0
    # Indices of pages that were given slots and are not dispatched, in order.
    granted: list[int] = field(default_factory=list)

    def part(self, begin: int, end: int) -> Run:
        """Its pages of indices `begin .. end` as a run that was not offered yet."""
        return Run(
            self.request_id,
            self.first + begin,
            self.hashes[begin:end],
            self.hashes[begin - 1] if begin else self.parent,
            self.blocks[begin:end],
            self.step,
            self.retries,
        )


def stretches(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending indices as ranges `begin .. end` without gaps."""
    begin = 0
    for at in range(1, len(indices) + 1):
        if at == len(indices) or indices[at] != indices[at - 1] + 1:
            yield indices[begin], indices[at - 1] + 1
            begin = at
