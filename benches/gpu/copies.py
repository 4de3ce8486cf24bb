"""Copies beside an engine that belong to none of its requests: its steps differ by nothing else.

They run in the process of the engine's core, where the connector's copies run too: one thread restores, one
saves. The functions are for `Engine.rpc`; between `open_copies` and `close_copies` they can begin and
end many times."""

from __future__ import annotations

import threading
import time
from typing import Any

from benches.gpu.copy_ways import BEGINS_WITHIN_S, CopyError, CopyWay, Restores, Saves

# Copies run for so long before anything is measured beside them.
LEAD_S = 0.2
REGISTERED_FOR_S = 0.5
_open: list[_Copies] = []


def open_copies(worker: Any, socket: str, engine_blocks: int) -> dict[str, Any]:
    """Connects both ways to the manager on `socket`, and copies until the pool's memory is there and
    registered with the device. `engine_blocks` is how many blocks the engine's KV has. As `end_copies`."""
    copies = _Copies()
    _open.append(copies)
    regions = _regions(worker, engine_blocks)
    for name, way in (("restored", Restores), ("saved", Saves)):
        copies.ways[name] = way(socket, regions)
    copies.warm_up()
    return copies.end()


def begin_copies(worker: Any) -> None:
    """Copies both ways from now on; returns when they are well under way."""
    _open[-1].begin()
    time.sleep(LEAD_S)


def end_copies(worker: Any) -> dict[str, Any]:
    """Ends what `begin_copies` began: `seconds`, `restored_bytes`, `saved_bytes`. Raises what one way
    failed with."""
    return _open[-1].end()


def close_copies(worker: Any) -> None:
    """Gives back what `open_copies` took, also where that failed half-way."""
    while _open:
        _open.pop().close()


class _Copies:
    """A thread for each way, while they run."""

    def __init__(self) -> None:
        self.ways: dict[str, CopyWay] = {}
        self._threads: list[threading.Thread] = []
        self._must_end = threading.Event()
        self._failures: list[BaseException] = []
        self._begun, self._bytes = 0.0, {}

    def begin(self) -> None:
        self._must_end.clear()
        self._failures = []
        self._bytes = self._copied_bytes()
        self._threads = [
            threading.Thread(target=self._run, args=(way,), name=f"copies-{name}", daemon=True)
            for name, way in self.ways.items()
        ]
        self._begun = time.perf_counter()
        for thread in self._threads:
            thread.start()

    def warm_up(self) -> None:
        """Begins, and returns when the pool has not grown for a while."""
        self.begin()
        begun = registered_since = time.perf_counter()
        while (now := time.perf_counter()) - registered_since < REGISTERED_FOR_S and not self._failures:
            if not all(way.is_registered() for way in self.ways.values()):
                registered_since = now
            if now - begun > BEGINS_WITHIN_S:
                raise CopyError(f"the pool was not registered with the device in {BEGINS_WITHIN_S:.0f} s")
            time.sleep(0.02)

    def end(self) -> dict[str, Any]:
        seconds = time.perf_counter() - self._begun
        copied = self._copied_bytes()
        self._join()
        if self._failures:
            raise self._failures[0]
        result = {f"{name}_bytes": copied[name] - before for name, before in self._bytes.items()}
        return {"seconds": seconds, **result}

    def close(self) -> None:
        self._join()
        for way in self.ways.values():
            way.close()

    def _join(self) -> None:
        self._must_end.set()
        for thread in self._threads:
            thread.join()

    def _copied_bytes(self) -> dict[str, int]:
        return {name: way.copied_bytes() for name, way in self.ways.items()}

    def _run(self, way: CopyWay) -> None:
        try:
            while not self._must_end.is_set():
                way.call()
            way.drain()
        except BaseException as failure:  # noqa: BLE001 - whoever ends the copies wants to know
            self._failures.append(failure)


def _regions(worker: Any, engine_blocks: int) -> list[Any]:
    """The engine's KV, layer by layer."""
    from orbitkv.engine.regions import dense_bytes, region_of

    regions = []
    for index, tensor in enumerate(worker.model_runner.kv_caches):
        block_bytes = dense_bytes(tensor[0]) * (tensor.shape[0] // engine_blocks)
        regions.append(region_of(f"layers.{index}", tensor, engine_blocks, block_bytes))
    return regions
