"""An engine instance without an engine: one scheduler client and its workers over plain memory."""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
from pathlib import Path
from typing import Any

from support.wait import wait_until

from orbitkv import _native as native

HASH_BYTES = native.HASH_BYTES
POISON = 0x5A
LAYERS = 3
# Odd sizes on purpose: nothing in the copy path may assume a power of two.
LAYER_BYTES = 20_000
PAGE_BYTES = LAYERS * LAYER_BYTES


def chain(name: str, pages: int) -> bytes:
    """Hashes of a chain of pages, one blob. A longer chain of the same name begins with the shorter one."""
    return b"".join(hashlib.sha256(f"{name}/{index}".encode()).digest() for index in range(pages))


def content(name: str, index: int, rank: int = 0, page_bytes: int = PAGE_BYTES) -> bytes:
    """Payload of one shard of a page: as random as KV."""
    return random.Random(f"{name}/{index}/{rank}").randbytes(page_bytes)


class Memory:
    """KV memory of one worker: a buffer a layer, `blocks` blocks in each."""

    def __init__(self, blocks: int, layer_bytes: int) -> None:
        self._layer_bytes = layer_bytes
        self._layers = [ctypes.create_string_buffer(blocks * layer_bytes) for _ in range(LAYERS)]
        regions = [(ctypes.addressof(layer), layer_bytes, layer_bytes, blocks) for layer in self._layers]
        self.layout = native.Layout(regions)
        self.blocks = blocks

    def write(self, block: int, payload: bytes) -> None:
        """Fills a block of all layers with a page's payload."""
        size = self._layer_bytes
        assert len(payload) == LAYERS * size
        for index, layer in enumerate(self._layers):
            part = payload[index * size : (index + 1) * size]
            ctypes.memmove(ctypes.addressof(layer) + block * size, part, size)

    def read(self, block: int) -> bytes:
        """The payload in a block."""
        size = self._layer_bytes
        return b"".join(
            ctypes.string_at(ctypes.addressof(layer) + block * size, size) for layer in self._layers
        )

    def poison(self) -> None:
        """Fills every block with `POISON`."""
        for layer in self._layers:
            ctypes.memset(layer, POISON, len(layer))


class Instance:
    """`world_size` workers with one shard of each page. Two instances of one `namespace` share pages."""

    def __init__(
        self,
        socket: Path,
        *,
        namespace: str = "one",
        world_size: int = 1,
        blocks: int = 32,
        layer_bytes: int = LAYER_BYTES,
        verify_restore: str = "all",
    ) -> None:
        self._page_bytes = LAYERS * layer_bytes
        group = {
            "group": 0,
            "page_bytes": self._page_bytes,
            "block_tokens": 16,
            "shard_count": world_size,
            "rule": "prefix",
        }
        registration = native.Registration(
            socket=str(socket),
            engine="scripted",
            engine_version="1",
            model="none",
            instance=os.urandom(16).hex(),
            namespace=hashlib.sha256(namespace.encode()).hexdigest(),
            world_size=world_size,
            groups=[group],
        )
        self.scheduler = native.SchedulerClient(registration)
        self.memories = [Memory(blocks, layer_bytes) for _ in range(world_size)]
        self._scratches = [Memory(2, layer_bytes) for _ in range(world_size)]
        self.workers = [
            native.WorkerClient(
                registration,
                rank=rank,
                layout=self.memories[rank].layout,
                scratch=self._scratches[rank].layout,
                layout_probe_passed=True,
                verify_restore=verify_restore,
            )
            for rank in range(world_size)
        ]

    def wait_active(self) -> Instance:
        """Waits until hits and saves are on."""
        wait_until(lambda: self.scheduler.active, f"the instance is active: {self.scheduler.status}")
        return self

    def close(self) -> None:
        """Ends all sessions."""
        for worker in self.workers:
            worker.close()
        self.scheduler.close()

    # Saves --------------------------------------------------------------------------------------------------

    def write(self, name: str, pages: int, first: int = 0) -> None:
        """Computes the KV of a chain: page `i` into block `i` of every rank."""
        for rank, memory in enumerate(self.memories):
            for index in range(first, pages):
                memory.write(index, content(name, index, rank, self._page_bytes))

    def reserve(self, name: str, pages: int, first: int = 0) -> Any:
        """Asks for room for pages `first .. pages` of a chain; the answered reservation."""
        hashes = chain(name, pages)
        parent = hashes[(first - 1) * HASH_BYTES : first * HASH_BYTES] if first else None
        reservation = self.scheduler.reserve(hashes[first * HASH_BYTES :], parent=parent, first_depth=first)
        wait_until(reservation.poll, "a reservation is answered")
        return reservation

    def reserve_all(self, name: str, pages: int) -> Any:
        """A reservation in which every page got room; waits while a segment is being made."""

        def granted() -> Any:
            reservation = self.reserve(name, pages)
            return reservation if set(reservation.statuses()) == {native.GRANT_SLOTS} else None

        return wait_until(granted, f"room for {pages} pages of {name}")

    def begin_save(self, name: str, pages: int) -> list[Any]:
        """Starts the save of a whole chain; one save a rank."""
        reservation = self.reserve_all(name, pages)
        self.write(name, pages)
        blocks = list(range(pages))
        ticket = reservation.ticket(blocks)
        return [worker.save(ticket, blocks) for worker in self.workers]

    def save(self, name: str, pages: int) -> None:
        """Saves a whole chain and waits until it can be found."""
        saves = self.begin_save(name, pages)
        wait_until(lambda: all(save.committed() == pages for save in saves), f"{name} is committed")
        wait_until(lambda: self.found(name, pages) == pages, f"{name} is found")

    def save_what_fits(self, name: str, pages: int, first: int = 0) -> list[int]:
        """One reservation for pages `first .. pages`; saves what gets room. The manager's answers."""
        self.write(name, pages, first)
        reservation = self.reserve(name, pages, first)
        statuses = reservation.statuses()
        granted = [index for index, status in enumerate(statuses) if status == native.GRANT_SLOTS]
        if granted:
            ticket = reservation.ticket(granted)
            saves = [worker.save(ticket, [first + index for index in granted]) for worker in self.workers]
            wait_until(lambda: all(save.committed() == len(granted) for save in saves), "a save has ended")
        reservation.abandon()
        return statuses

    # Restores -----------------------------------------------------------------------------------------------

    def query(self, name: str, pages: int) -> Any:
        """Asks for a chain; the answered query."""
        query = self.scheduler.query(chain(name, pages), deadline_ms=10_000)
        wait_until(lambda: query.poll() != native.PENDING, "a query is answered")
        return query

    def found(self, name: str, pages: int) -> int:
        """Pages of a chain that could be restored now."""
        query = self.query(name, pages)
        count = query.pages
        query.release()
        return count

    def restore(self, query: Any, count: int, first_block: int = 0) -> list[int]:
        """Restores the first pages of a lease and releases it; blocks that failed on any rank."""
        blocks = list(range(first_block, first_block + count))
        ticket = query.restore(0, count)
        query.release()
        loads = [worker.restore(ticket, blocks) for worker in self.workers]
        wait_until(lambda: all(load.poll() for load in loads), "the restores have ended")
        return sorted({block for load in loads for block in load.failed_blocks()})

    def differing(self, name: str, pages: int, first_block: int = 0) -> list[int]:
        """Pages of a chain that are not in their block, on any rank, byte for byte."""
        return [
            index
            for index in range(pages)
            if any(
                memory.read(first_block + index) != content(name, index, rank, self._page_bytes)
                for rank, memory in enumerate(self.memories)
            )
        ]


class ScriptedChild:
    """For `Child`: an instance whose operations stay where they were begun."""

    def __init__(self, socket: Path) -> None:
        self._instance = Instance(socket).wait_active()
        self._open: list[Any] = []

    def begin_save(self, name: str, pages: int) -> None:
        """Starts the save of a chain."""
        self._open.append(self._instance.begin_save(name, pages))

    def begin_restore(self, name: str, pages: int) -> None:
        """Starts the restore of a chain."""
        query = self._instance.query(name, pages)
        ticket = query.restore(0, pages)
        loads = [worker.restore(ticket, list(range(pages))) for worker in self._instance.workers]
        self._open.append((query, loads))

    def save(self, name: str, pages: int) -> None:
        """Saves a chain to the end."""
        self._instance.wait_active().save(name, pages)

    def reconnects(self) -> int:
        """Connections of the scheduler after its first one."""
        return self._instance.scheduler.stats()["reconnects"]
