"""One restore under way, as the worker side sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitkv.vllm.metadata import LoadOrder


@dataclass
class Load:
    """A restore that has been handed to the client. `native` is None if that failed."""

    order: LoadOrder
    native: Any
    started: float
    ended: float | None = None
    # The forward pass had to wait for it. Otherwise nobody saw when it ended.
    was_awaited: bool = False
    # Layers before this one have been waited for.
    layers_waited: int = 0

    def is_over(self) -> bool:
        """No byte of it moves any more."""
        if self.ended is None and (self.native is None or self.native.poll()):
            self.ended = time.monotonic()
        return self.ended is not None

    def failed_blocks(self) -> set[int]:
        """Blocks that hold nothing usable. Valid once it is over."""
        return set(self.order.blocks) if self.native is None else set(self.native.failed_blocks())

    def landed(self) -> tuple[int, int]:
        """Pages of it that landed and that did not. Valid once it is over."""
        failed = len(self.failed_blocks())
        return len(self.order.blocks) - failed, failed
