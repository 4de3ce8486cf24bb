"""A client of OrbitKV that has an engine's pool grow, and saves nothing.

It reserves pages in the engine's own namespace: the engine's worker gets every segment that this takes, and
registers it with its device. The client itself has a few pages of plain memory and copies nothing but its
self-test. It is not in the engine's process: nothing that it does takes a lock there."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from typing import Any

from benches.gpu.process import Manager, ProcessError, wait_until

# Of a reservation: one request to the manager, and a segment more where there is no room for all of it.
PAGES = 16
SCRATCH_BLOCKS = 3
GROWS_WITHIN_S = 30.0
# While segments are on their way.
_PAUSE_S = 0.005


def pages_of(_worker: Any) -> dict[str, Any]:
    """What the connector's registration says of the engine's pages. For `Engine.rpc`."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    from orbitkv.vllm.namespace import namespace_digest, namespace_fields, page_bytes

    connector = get_kv_transfer_group()
    config, kv_cache = connector._vllm_config, connector._kv_cache_config
    return {
        "namespace": namespace_digest(namespace_fields(config, kv_cache, os.environ)),
        "page_bytes": page_bytes(kv_cache),
        "block_tokens": kv_cache.kv_cache_groups[0].kv_cache_spec.block_size,
    }


def registered(_worker: Any) -> dict[str, int]:
    """`registered_bytes` and `registering_bytes` of the engine's connector; nothing without a device. For
    `Engine.rpc`."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    stats = get_kv_transfer_group()._worker._client.stats()
    return {name: stats[name] for name in ("registered_bytes", "registering_bytes") if name in stats}


def is_registered(found: dict[str, int], until_bytes: int) -> bool:
    """Whether a connector that `registered` tells of has at least so much, and nothing on its way. Without a
    device there is nothing to wait for."""
    return not found or (not found["registering_bytes"] and found["registered_bytes"] >= until_bytes)


class Grower:
    """An instance of its own with the pages that `pages_of` tells, of an engine with one worker."""

    def __init__(self, manager: Manager, pages: dict[str, Any]) -> None:
        from orbitkv.engine.native import load_native

        self._manager = manager
        self._native = native = load_native()
        group = {name: pages[name] for name in ("page_bytes", "block_tokens")}
        registration = native.Registration(
            socket=str(manager.socket),
            engine="bench",
            engine_version="1",
            model="grower",
            instance=os.urandom(16).hex(),
            namespace=pages["namespace"],
            world_size=1,
            groups=[{**group, "group": 0, "shard_count": 1, "rule": "prefix"}],
        )
        # Held until the client is closed: it copies by address.
        self._memory = [mmap.mmap(-1, SCRATCH_BLOCKS * pages["page_bytes"]) for _ in range(2)]
        layout, scratch = (self._layout(memory, pages["page_bytes"]) for memory in self._memory)
        self._scheduler = native.SchedulerClient(registration)
        self._worker = native.WorkerClient(
            registration, rank=0, layout=layout, scratch=scratch, layout_probe_passed=True
        )
        try:
            wait_until(lambda: self._scheduler.active, "the client that has the pool grow is active")
        except ProcessError:
            self.close()
            raise

    def __enter__(self) -> Grower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _layout(self, memory: mmap.mmap, page_bytes: int) -> Any:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        return self._native.Layout([(address, page_bytes, page_bytes, SCRATCH_BLOCKS)])

    def grow(self, more_bytes: int) -> int:
        """Returns when the pool is larger by so much, the last segments being on their way; by how much it
        is. Its slots are free again. No more than half of a pool can be reserved, so one that is empty grows
        to a little more than half of its limit. Raises `ProcessError` if it does not grow in time."""
        before = self._pool_bytes()
        held: list[Any] = []
        deadline = time.monotonic() + GROWS_WITHIN_S
        try:
            while (grown := self._pool_bytes() - before) < more_bytes:
                if time.monotonic() > deadline:
                    what = f"{grown} bytes in {GROWS_WITHIN_S:.0f} s, not {more_bytes}"
                    raise ProcessError(f"the pool grew by {what}: raise its limit")
                held.append(self._reserve())
            return grown
        finally:
            for reservation in held:
                reservation.abandon()

    def _reserve(self) -> Any:
        """Reserves pages that nobody has. Where there is no room for all, the manager makes a segment."""
        hashes = os.urandom(PAGES * self._native.HASH_BYTES)
        reservation = self._scheduler.reserve(hashes, parent=None, first_depth=0)
        wait_until(reservation.poll, "a reservation is answered", every_s=0.001)
        if self._native.GRANT_SLOTS not in reservation.statuses():
            time.sleep(_PAUSE_S)
        return reservation

    def _pool_bytes(self) -> int:
        return self._manager.status()["pool"]["bytes"]

    def close(self) -> None:
        """Ends its sessions."""
        self._worker.close()
        self._scheduler.close()
