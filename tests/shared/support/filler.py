"""Another client of the same manager, which only fills its pool."""

from __future__ import annotations

import os
from typing import Any

from support.manager import Manager
from support.wait import wait_until

BLOCKS = 16
HASH_BYTES = 32


class Filler:
    """An instance of its own, with a namespace of its own and pages of `page_bytes`."""

    def __init__(self, manager: Manager, page_bytes: int) -> None:
        import torch

        from orbitkv import _native as native

        self._native = native
        self._memory = torch.zeros((BLOCKS, page_bytes), dtype=torch.uint8)
        self._scratch = torch.zeros((2, page_bytes), dtype=torch.uint8)
        group = {
            "group": 0,
            "page_bytes": page_bytes,
            "block_tokens": 32,
            "shard_count": 1,
            "rule": "prefix",
        }
        registration = native.Registration(
            socket=str(manager.socket),
            engine="filler",
            engine_version="1",
            model="none",
            instance=os.urandom(16).hex(),
            namespace=os.urandom(32).hex(),
            world_size=1,
            groups=[group],
        )
        self._scheduler = native.SchedulerClient(registration)
        self._worker = native.WorkerClient(
            registration,
            rank=0,
            layout=self._layout(self._memory),
            scratch=self._layout(self._scratch),
            layout_probe_passed=True,
        )
        wait_until(lambda: self._scheduler.active, f"the filler is active: {self._scheduler.status}")

    def _layout(self, tensor: Any) -> Any:
        blocks, page_bytes = tensor.shape
        return self._native.Layout([(tensor.data_ptr(), page_bytes, page_bytes, blocks)])

    def fill(self, pages: int) -> int:
        """Saves so many new pages, one reservation of `BLOCKS` after the other; how many were committed."""
        committed = 0
        for first in range(0, pages, BLOCKS):
            count = min(BLOCKS, pages - first)
            hashes = os.urandom(count * HASH_BYTES)
            reservation = self._scheduler.reserve(hashes, parent=None, first_depth=0)
            wait_until(reservation.poll, "a reservation is answered")
            granted = [
                index
                for index, grant in enumerate(reservation.statuses())
                if grant == self._native.GRANT_SLOTS
            ]
            if granted:
                save = self._worker.save(reservation.ticket(granted), granted)
                wait_until(save.poll, "a save has ended")
                committed += len(granted)
            reservation.abandon()
        return committed

    def close(self) -> None:
        """Ends both sessions."""
        self._worker.close()
        self._scheduler.close()
