"""The manager's pool, reached from outside like a stray write would reach it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def _segments(pid: int) -> Iterator[list[mmap.mmap]]:
    maps = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if "/memfd:" in str(entry.readlink()):
            with entry.open("r+b") as file:
                if size := os.fstat(file.fileno()).st_size:
                    maps.append(mmap.mmap(file.fileno(), size))
    try:
        yield maps
    finally:
        for one in maps:
            one.close()


def flip_byte(pid: int, payload: bytes, at: int, mask: int = 0x01) -> None:
    """Flips bits of byte `at` of the one page in the pool of process `pid` that holds `payload`."""
    with _segments(pid) as segments:
        found = [(segment, at_byte) for segment in segments if (at_byte := segment.find(payload)) >= 0]
        assert len(found) == 1, f"the page was found {len(found)} times in {len(segments)} segments"
        segment, start = found[0]
        assert segment.find(payload, start + 1) < 0, "the page is there twice"
        segment[start + at] ^= mask
