"""Choice between a restore inside the forward pass and one between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbitkv.engine.settings import Settings

# Copies in host memory, and over PCI Express, are rarely slower; until the first restore was timed nothing
# better is known.
INITIAL_BYTES_PER_SECOND = 2e9
INITIAL_DEVICE_BYTES_PER_SECOND = 2e10
# Weight of the newest measurement in the moving average.
NEWEST_WEIGHT = 0.2


class TransferEstimate:
    """Moving average of the restore bandwidth, and what the current step has been charged with so far."""

    def __init__(self, settings: Settings, page_bytes: int, *, on_device: bool = False) -> None:
        self._mode = settings.load_mode
        self._sync_max_s = settings.sync_max_ms / 1000
        self._page_bytes = page_bytes
        self.bytes_per_second = INITIAL_DEVICE_BYTES_PER_SECOND if on_device else INITIAL_BYTES_PER_SECOND
        self._decoding: set[str] = set()
        self._sync_pages = 0

    def is_async(self, pages: int) -> bool:
        """Whether a restore of so many pages should leave the step alone. With nothing decoding nobody is
        delayed by one that does not; otherwise all of a step's restores together have `sync_max_ms`."""
        if self._mode != "auto":
            return self._mode == "async"
        if not self._decoding:
            return False
        seconds = (self._sync_pages + pages) * self._page_bytes / self.bytes_per_second
        return seconds > self._sync_max_s

    def add_sync(self, pages: int) -> None:
        """A restore inside the coming step was decided."""
        self._sync_pages += pages

    def begin_step(self, decoding: set[str]) -> None:
        """A scheduling pass ended with these requests scheduled."""
        self._decoding = decoding
        self._sync_pages = 0

    def finished(self, request_id: str) -> None:
        """The request decodes no more."""
        self._decoding.discard(request_id)

    def observe(self, num_bytes: int, seconds: float) -> None:
        """A restore of so many bytes took that long."""
        if num_bytes > 0 and seconds > 0:
            self.bytes_per_second += NEWEST_WEIGHT * (num_bytes / seconds - self.bytes_per_second)
