"""The blocks of a request that one question to the cache manager is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orbitkv.engine.native import load_native

if TYPE_CHECKING:
    from vllm.v1.request import Request

# A frame holds at most 1 MiB; this many hashes of 32 bytes are half of it.
MAX_BLOCKS = 16384


def usable_blocks(request: Request, block_tokens: int) -> int:
    """Leading blocks that may be restored. The engine computes at least the last token: it has to sample from
    it."""
    return min((request.num_tokens - 1) // block_tokens, len(request.block_hashes))


@dataclass(frozen=True)
class Extent:
    """Blocks `start .. stop` of a request, by what they contain: hashes are chained, so the last one stands
    for every token from the first on."""

    start: int
    stop: int
    last_hash: bytes

    @classmethod
    def of(cls, request: Request, start: int, usable: int) -> Extent:
        """What one question can be about from `start` on, of the `usable` leading blocks. `start` is one of
        them."""
        stop = min(usable, start + MAX_BLOCKS)
        return cls(start, stop, request.block_hashes[stop - 1])

    def hashes(self, request: Request) -> bytes:
        """The request's own hashes of these blocks, 32 bytes each."""
        return load_native().pad_hashes(list(request.block_hashes[self.start : self.stop]))
