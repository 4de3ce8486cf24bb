"""The layer counter: what the KV pool asks before a layer of it is read.

On a CPU the forward pass waits for the copies of that layer; on a CUDA device its stream does, and the host
goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orbitkv.engine.device import KVDevice
from orbitkv.engine.native import load_native
from orbitkv.sglang.layout import last_region
from orbitkv.sglang.log import warn_once
from orbitkv.sglang.traces import LoadTrace

# A load is a copy between mapped memory. One that has not ended by then has a device that is lost or stuck.
LOAD_LIMIT_S = 60.0


class LoadFailedError(RuntimeError):
    """Pages that were promised did not arrive. The tree names them as computed, and requests may share them
    already: the engine must not go on with them."""


@dataclass(eq=False)
class LoadBatch:
    """Loads of one forward pass, and of how many pages each is. Layers before `layers_waited` have been
    waited for."""

    rids: list[str]
    loads: list[Any]
    pages: list[int] = field(default_factory=list)
    is_traced: bool = False
    layers_waited: int = 0
    begun: float = field(default_factory=time.monotonic)

    def has_ended(self) -> bool:
        """Whether all bytes are there. Raises `LoadFailedError` if some will never be."""
        if not all(load.poll() for load in self.loads):
            return False
        self.check()
        return True

    def check(self) -> None:
        """Raises for pages that did not land. Valid when the loads have ended."""
        if failed := [block for load in self.loads for block in load.failed_blocks()]:
            raise LoadFailedError(
                f"{len(failed)} pages of requests {self.rids} were promised and did not land; "
                "restart the engine"
            )


class LayerCounter:
    """Knows the load batches by the index that the scheduler sends along with a forward pass."""

    def __init__(
        self, num_layers: int, device: KVDevice, *, slice_ms: int, trace: LoadTrace | None = None
    ) -> None:
        self._num_layers = num_layers
        self._device = device
        self._slice_ms = max(slice_ms, 1)
        self._trace = trace or LoadTrace()
        self._batches: dict[int, LoadBatch] = {}
        self._current: LoadBatch | None = None
        self._next_index = 0

    def add(self, batch: LoadBatch) -> int:
        """The index under which the next forward pass finds it."""
        index = self._next_index
        self._next_index += 1
        self._batches[index] = batch
        self._trace.submitted(batch)
        return index

    def forget(self, index: int) -> None:
        """The batch has ended."""
        batch = self._batches.pop(index, None)
        if batch is not None:
            self._trace.looked(batch)
        if batch is self._current:
            self._current = None

    # SGLang's side ----------------------------------------------------------------------------------------

    def set_consumer(self, index: int) -> None:
        """The coming forward pass reads what this batch loads; -1: nothing."""
        self._current = self._batches.get(index)

    def wait_until(self, layer: int) -> None:
        """Returns when what the engine does next sees this layer of the batch, counted from the first of this
        rank. Raises `LoadFailedError` if it never will."""
        batch = self._current
        if batch is None or layer < batch.layers_waited:
            return
        wait = self._order if self._device.has_streams else self._await
        for load in batch.loads:
            self._until_done(batch, lambda load=load: wait(load, layer))
        self._trace.waited(batch)
        batch.layers_waited = layer + 1

    def _until_done(self, batch: LoadBatch, wait: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LOAD_LIMIT_S
        while not wait():
            if time.monotonic() > deadline:
                raise LoadFailedError(
                    f"a load of requests {batch.rids} has not ended in {LOAD_LIMIT_S:.0f} s; "
                    "restart the engine"
                )
            warn_once("slow-load", "OrbitKV: a forward pass has waited %d ms for a restore", self._slice_ms)

    def _await(self, load: Any, layer: int) -> bool:
        if load.wait_layer(last_region(layer), self._slice_ms):
            return True
        if load.poll():
            LoadBatch([], [load]).check()
            return True
        return False

    def _order(self, load: Any, layer: int) -> bool:
        native = load_native()
        try:
            answer = load.order_layer(last_region(layer), self._device.stream(), self._slice_ms)
        except native.OrbitKVError as error:
            raise LoadFailedError(f"a restore cannot be waited for; restart the engine: {error}") from error
        if answer == native.LAYER_FAILED:
            raise LoadFailedError("the copies of a restore failed on the device; restart the engine")
        return answer != native.LAYER_TIMED_OUT
