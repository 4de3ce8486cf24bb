"""Copies in one direction, call after call, by a client of OrbitKV with memory of its own.

A call moves `CALL_PAGES` pages, and `CALLS_UNDER_WAY` calls are under way at a time: the interpreter's lock
is taken some hundred times a second, for microseconds, and the waits between are the native client's."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

# 288 MiB of Qwen3-8B's shape.
CALL_PAGES = 32
CALLS_UNDER_WAY = 2
# Saved pages are forgotten after so many calls: their slots are used again, and nobody else's pages go.
CALLS_KEPT = 8
BEGINS_WITHIN_S = 60.0
WAIT_MS = 10_000
_POLL_S = 0.0002
_NO_ROOM_S = 0.01


class CopyError(Exception):
    """A copy that failed, or did not end in time; the message says which."""


class CopyWay:
    """An instance of OrbitKV in a namespace of its own, on memory that lies as the engine's KV does."""

    def __init__(self, socket: str, regions: list[Any]) -> None:
        from orbitkv.engine.native import load_native
        from orbitkv.engine.selftest import scratch_like

        self._native = native = load_native()
        self._memory = scratch_like(regions, native, CALLS_UNDER_WAY * CALL_PAGES)
        self._scratch = scratch_like(regions, native)
        self._memory.settle()
        self._order = self._own_stream()
        group = {"group": 0, "page_bytes": self._memory.layout.page_bytes, "block_tokens": 64}
        registration = native.Registration(
            socket=socket,
            engine="bench",
            engine_version="1",
            model=type(self).__name__,
            instance=os.urandom(16).hex(),
            namespace=os.urandom(32).hex(),
            world_size=1,
            groups=[{**group, "shard_count": 1, "rule": "prefix"}],
        )
        self._scheduler = native.SchedulerClient(registration)
        self._client = native.WorkerClient(
            registration,
            rank=0,
            layout=self._memory.layout,
            scratch=self._scratch.layout,
            layout_probe_passed=True,
            device=str(self._memory.device),
        )
        self._calls = 0
        _wait(lambda: self._scheduler.active, "the client is active", BEGINS_WITHIN_S)

    def _own_stream(self) -> dict[str, int]:
        """What copies come after: a stream on which nothing is, so nothing of the engine's."""
        if self._memory.device.type != "cuda":
            return {}
        import torch

        self._stream = torch.cuda.Stream(self._memory.device)
        return {"stream": self._stream.cuda_stream}

    def call(self) -> None:
        """Begins a call, and waits for the one before the last."""
        raise NotImplementedError

    def drain(self) -> None:
        """Waits for all that was begun."""
        raise NotImplementedError

    def is_registered(self) -> bool:
        """The device reaches all memory of the pool directly."""
        return not self._client.stats().get("registering_bytes", 0)

    def copied_bytes(self) -> int:
        """Of calls that have ended."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends its sessions; its pages are forgotten."""
        self._forget()
        self._client.close()
        self._scheduler.close()

    def _forget(self) -> None:
        if self._scheduler.connected:
            self._scheduler.reset().wait(WAIT_MS * 1000)

    def _next_blocks(self, count: int) -> list[int]:
        """Blocks that no call under way uses."""
        self._calls += 1
        first = self._calls % CALLS_UNDER_WAY * CALL_PAGES
        return list(range(first, first + count))


class Saves(CopyWay):
    """Saves pages that nobody has seen."""

    def __init__(self, socket: str, regions: list[Any]) -> None:
        super().__init__(socket, regions)
        self._under_way: deque[list[int]] = deque()
        self._begun: list[tuple[Any, int]] = []

    def call(self) -> None:
        if len(self._begun) >= CALLS_KEPT:
            self.drain()
        self._save(os.urandom(CALL_PAGES * self._native.HASH_BYTES))

    def _save(self, hashes: bytes) -> None:
        """Saves those of a chain that find room."""
        reservation = self._scheduler.reserve(hashes, parent=None, first_depth=0)
        _wait(reservation.poll, "a reservation is answered")
        grants = enumerate(reservation.statuses())
        granted = [index for index, grant in grants if grant == self._native.GRANT_SLOTS]
        if not granted:
            time.sleep(_NO_ROOM_S)
            return
        while len(self._under_way) >= CALLS_UNDER_WAY:
            self._end_oldest()
        blocks = self._next_blocks(len(granted))
        save = self._client.save(reservation.ticket(granted), blocks, **self._order)
        reservation.abandon()
        self._under_way.append(blocks)
        self._begun.append((save, len(granted)))

    def _end_oldest(self) -> None:
        if aborted := self._client.fence(self._under_way.popleft(), WAIT_MS):
            raise CopyError(f"{aborted} pages of a save were not copied in {WAIT_MS} ms")

    def drain(self) -> None:
        """Also forgets all pages."""
        self._commit()
        self._forget()

    def _commit(self) -> None:
        while self._under_way:
            self._end_oldest()
        for save, pages in self._begun:
            _wait(lambda save=save, pages=pages: save.committed() == pages, f"{pages} pages are committed")
        self._begun = []

    def copied_bytes(self) -> int:
        return self._client.stats()["saved_bytes"]


class Restores(Saves):
    """Saves a chain of pages once, and restores it again and again."""

    def __init__(self, socket: str, regions: list[Any]) -> None:
        super().__init__(socket, regions)
        self._hashes = os.urandom(CALL_PAGES * self._native.HASH_BYTES)
        self._loads: deque[Any] = deque()
        _wait(self._is_saved, f"{CALL_PAGES} pages are saved", BEGINS_WITHIN_S)

    def _is_saved(self) -> bool:
        self._save(self._hashes)
        self._commit()
        query = self._query()
        query.release()
        return query.pages == CALL_PAGES

    def _query(self) -> Any:
        query = self._scheduler.query(self._hashes, deadline_ms=WAIT_MS)
        query.wait(WAIT_MS * 1000)
        return query

    def call(self) -> None:
        query = self._query()
        if query.pages != CALL_PAGES:
            raise CopyError(f"{query.pages} of {CALL_PAGES} pages were found: {query.miss_reason}")
        ticket = query.restore(0, CALL_PAGES)
        query.release()
        while len(self._loads) >= CALLS_UNDER_WAY:
            self._end_oldest_load()
        self._loads.append(self._client.restore(ticket, self._next_blocks(CALL_PAGES), **self._order))

    def _end_oldest_load(self) -> None:
        load = self._loads.popleft()
        if not load.wait(WAIT_MS):
            raise CopyError(f"a restore did not end in {WAIT_MS} ms")
        if failed := load.failed_blocks():
            raise CopyError(f"{len(failed)} of {CALL_PAGES} pages were not restored")

    def drain(self) -> None:
        while self._loads:
            self._end_oldest_load()

    def copied_bytes(self) -> int:
        return self._client.stats()["restored_bytes"]


def _wait(look: Callable[[], bool], what: str, within_s: float = WAIT_MS / 1000) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        if time.monotonic() > deadline:
            raise CopyError(f"waited {within_s:.0f} s in vain: {what}")
        time.sleep(_POLL_S)
