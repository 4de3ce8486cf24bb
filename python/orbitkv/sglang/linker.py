"""The linker: SGLang's tree cache on one side, the native client on the other.

Runs in the scheduler thread of each rank. No call waits for the manager, except `forget`, `reset` and
`close`, within limits.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinker

from orbitkv.engine.ahead import choose_mode
from orbitkv.engine.device import KVDevice
from orbitkv.engine.native import load_native
from orbitkv.engine.reset import reset
from orbitkv.engine.trace import NoTrace, open_trace
from orbitkv.sglang.asker import NativeAsker
from orbitkv.sglang.counter import LayerCounter, LoadBatch, LoadFailedError
from orbitkv.sglang.demands import Demands, Verdict
from orbitkv.sglang.layout import Blocks
from orbitkv.sglang.log import logger, once, warn_once
from orbitkv.sglang.metrics import Metrics
from orbitkv.sglang.namespace import hash_bytes
from orbitkv.sglang.reserver import NativeReserver
from orbitkv.sglang.saves import SaveOrder, Saves
from orbitkv.sglang.traces import DemandTrace, LoadTrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.mem_cache.hicache_storage import PoolTransfer

    from orbitkv.engine.selftest import Scratch
    from orbitkv.engine.settings import Settings
    from orbitkv.sglang.ranks import Ranks

# How much longer than its deadline an answer is waited for: at the deadline the manager answers with what is
# ready.
ANSWER_GRACE_S = 0.05
# How long a flush lets saves finish, and then waits for copies to stop.
DRAIN_LIMIT_S = 1.0
# When it is said that there is no manager.
ABSENCE_S = 5.0
STOP_SLICE_MS = 100
# Memory that copies of a lost device may touch until the process ends.
_NEVER_FREED: list[Any] = []


T = TypeVar("T")


@dataclass(frozen=True)
class StepWord:
    """What the leader tells all ranks in a step."""

    verdicts: list[Verdict]
    orders: list[SaveOrder]


@dataclass
class _QueuedLoad:
    rid: str
    pinned: Any
    pages: list[int]
    places: Blocks

    @property
    def blocks(self) -> list[int]:
        """Where the pages go."""
        return self.places.numbers()


class _NothingPinned:
    """In place of pages that could not be pinned."""

    pages = 0

    def poll(self) -> bool:
        return True

    def release(self) -> None:
        return None


def _open_traces(settings: Settings, ranks: Ranks, page_bytes: int, *, asks: bool) -> tuple[NoTrace, NoTrace]:
    """Of what the leader asks for, and of what this rank restores."""
    loaded = open_trace(settings, once, page_bytes=page_bytes, side="worker", rank=ranks.rank)
    if not asks:
        return NoTrace(), loaded
    return open_trace(settings, once, page_bytes=page_bytes * ranks.size, side="scheduler"), loaded


def _settled(pinned: Any) -> int:
    """Pages that can be restored, -1 while that is not known."""
    return pinned.pages if pinned.poll() else -1


class OrbitKVLinker(UnifiedCacheLinker):
    """One rank's part."""

    def __init__(
        self,
        scheduler: Any,
        worker: Any,
        ranks: Ranks,
        settings: Settings,
        *,
        device: KVDevice,
        forward_stream: Any,
        scratch: Scratch | None,
        page_tokens: int,
        page_bytes: int,
        num_layers: int,
        pool_pages: int,
    ) -> None:
        self._scheduler = scheduler
        self._worker = worker
        self._ranks = ranks
        self._device = device
        self._forward_stream = forward_stream
        self._scratch = scratch
        self._page_tokens = page_tokens
        self._native = load_native()
        asked, loaded = _open_traces(settings, ranks, page_bytes, asks=scheduler is not None)
        self._traces = (asked, loaded)
        self.demands = Demands(
            NativeAsker(scheduler) if scheduler is not None else None,
            self._pin,
            deadline_ms=settings.lookup_deadline_ms,
            grace_s=ANSWER_GRACE_S if settings.lookup_deadline_ms > 0 else 0.0,
            mode=choose_mode(settings, logger, world_size=ranks.size),
            trace=DemandTrace(asked),
        )
        self.saves = Saves(
            NativeReserver(scheduler) if scheduler is not None else None, self._copy, pool_pages=pool_pages
        )
        self.layer_done_counter = LayerCounter(
            num_layers, device, slice_ms=settings.layer_wait_ms, trace=LoadTrace(loaded)
        )
        self._queued: list[_QueuedLoad] = []
        self._loading: deque[tuple[int, LoadBatch]] = deque()
        self._stop_reason: str | None = None
        self._is_healthy = True
        self._absence_at: float | None = time.monotonic() + ABSENCE_S
        self._said = ""
        # Calls of `lookup`; the tree makes none for a request of which the device has all.
        self.lookups = 0
        # Of the node that is about to be offloaded: the hash of the page before it, and how many there are.
        self.place: tuple[bytes | None, int] = (None, 0)
        self.counters: Counter[str] = Counter()
        self._metrics = Metrics(ranks.rank)

    # Gate -------------------------------------------------------------------------------------------------

    def gate(self, rid: str) -> None:
        """A request has been queued, and its lookup made."""
        if self._stop_reason is None:
            self._guard(lambda: self.demands.gate(rid, time.monotonic()), None)

    def may_start(self, rid: str) -> bool:
        """The engine has room for a waiting request: whether it may start."""
        if self._stop_reason is not None:
            return True
        return self._guard(lambda: self.demands.may_start(rid, time.monotonic()), True)

    def release(self, rid: str) -> None:
        """The request wants nothing from the manager any more; idempotent."""
        self._guard(lambda: self.demands.release(rid), None)

    def step(self) -> None:
        """Once a scheduler step, on all ranks: takes in what the manager and the copies have come to."""
        word = self._guard(self._collect, None)
        word, are_healthy = self._ranks.exchange(word, is_healthy=self._is_healthy)
        if word is not None:
            self.demands.apply(word.verdicts)
            self.saves.apply(word.orders)
        if not are_healthy:
            self.stop("an internal error; the log of a rank names it")
        self._settle()
        self._guard(self._say_trouble, None)
        self._guard(self._say_absence, None)
        self._guard(lambda: self._metrics.take(self._worker.stats()), None)

    def _guard(self, call: Callable[[], T], otherwise: T) -> T:
        """An error of ours must not become the engine's. The ranks stop together, at the next step."""
        try:
            return call()
        except Exception:  # noqa: BLE001 - see above
            self._is_healthy = False
            logger.exception("OrbitKV failed")
            return otherwise

    def _collect(self) -> StepWord | None:
        if not self._ranks.is_leader or not (len(self.demands) or len(self.saves)):
            return None
        now = time.monotonic()
        word = StepWord(self.demands.collect(now), self.saves.collect(now))
        return word if word.verdicts or word.orders else None

    def _pin(self, ticket: bytes) -> Any:
        return self._guard(lambda: self._worker.pin(ticket), _NothingPinned())

    def _settle(self) -> None:
        unsettled = self.demands.unsettled()
        known = [self._guard(lambda pin=demand.pinned: _settled(pin), 0) for demand in unsettled]
        for demand, pages in zip(unsettled, self._ranks.least(known), strict=True):
            if pages >= 0:
                self.demands.settle(demand, pages)

    def _say_trouble(self) -> None:
        verdict = self._worker.self_test
        trouble = verdict if verdict.startswith("failed") else self._worker.trouble
        if trouble != self._said:
            self._said = trouble
            if trouble:
                logger.warning("OrbitKV: %s", trouble)

    def _say_absence(self) -> None:
        """One line if there is no manager some seconds after the start; one that comes later is used."""
        if self._absence_at is None or time.monotonic() < self._absence_at:
            return
        self._absence_at = None
        if self._scheduler is not None and not self._scheduler.connected:
            logger.warning("OrbitKV: serving without the cache for now: %s", self._scheduler.status)

    def stop(self, reason: str) -> None:
        """From now on nothing is restored or saved; what has begun ends."""
        if self._stop_reason is not None:
            return
        self._stop_reason = reason
        logger.warning("OrbitKV off, serving without it: %s", reason)
        self._end_all()

    def forget(self) -> bool:
        """Has the manager forget every page of the namespace. What waits for pages computes them, and what is
        being saved is not stored; pages that are on their way to the device arrive, as was promised. False if
        the manager has not confirmed it in time."""
        self._end_all()
        return self._scheduler is None or self._guard(lambda: reset(self._scheduler, logger) is None, False)

    def _end_all(self) -> None:
        self._guard(self.demands.release_all, None)
        self._guard(lambda: self._worker.fence(self.saves.blocks, 0), 0)
        self.saves.end_all()

    # Loads ------------------------------------------------------------------------------------------------

    def lookup(self, rid: str, transfers: list[PoolTransfer]) -> list[int]:
        """Prefix lengths in pages that can be restored without fail; none while that is not known."""
        self.lookups += 1
        if self._stop_reason is not None or not self._is_healthy:
            return []
        promised = self._guard(lambda: self.demands.promised(rid, transfers[0].keys), 0)
        return list(range(1, promised + 1))

    def load(self, rid: str, transfers: list[PoolTransfer]) -> bool:
        """Queues what was promised. False, which ends the engine, only for what was not."""
        transfer = transfers[0]
        try:
            pinned, pages = self.demands.take(rid, transfer.keys)
        except LookupError:
            logger.exception("OrbitKV: the engine asks for pages that were not promised")
            return False
        places = Blocks(transfer.device_indices, self._page_tokens)
        self._queued.append(_QueuedLoad(rid, pinned, pages, places))
        return True

    def start_layer_wise_loading(self) -> int:
        """Starts what is queued, after all that may still use the pages. The index of its batch, or -1.
        Raises `LoadFailedError` on a device that is lost."""
        if not self._queued:
            return -1
        queued, self._queued = self._queued, []
        order = self._order()
        try:
            loads = [load.pinned.restore(load.pages, load.blocks, **order) for load in queued]
        except self._native.OrbitKVError as error:
            raise LoadFailedError(f"a restore could not begin; restart the engine: {error}") from error
        batch = LoadBatch([load.rid for load in queued], loads, [len(load.pages) for load in queued])
        index = self.layer_done_counter.add(batch)
        self._loading.append((index, batch))
        self.counters["loads"] += len(loads)
        self.counters["load_pages"] += sum(len(load.pages) for load in queued)
        return index

    def _order(self) -> dict[str, int]:
        """Arguments that let a copy come after all that the engine has launched, on either of its streams."""
        if not self._device.has_streams:
            return {}
        self._forward_stream.wait_stream(torch.cuda.current_stream())
        return {"stream": self._forward_stream.cuda_stream}

    def cancel_queued_load(self, rid: str) -> bool:
        """Never: the tree has the pages already, and other requests may share them."""
        return False

    def num_completed_loads(self) -> int:
        """Batches that have landed, from the oldest on."""
        count = 0
        for _, batch in self._loading:
            if not batch.has_ended():
                break
            count += 1
        return count

    def pop_completed_load(self) -> list[str]:
        """Requests of the oldest batch."""
        index, batch = self._loading.popleft()
        self.layer_done_counter.forget(index)
        return batch.rids

    # Saves ------------------------------------------------------------------------------------------------

    def offload(self, transfers: list[PoolTransfer]) -> bool:
        """Takes the pages of a node to be saved; False leaves it to a later insert."""
        transfer = transfers[0]
        if self._stop_reason is not None or not transfer.keys:
            return False
        parent, depth = self.place
        hashes = [hash_bytes(key) for key in transfer.keys]
        return self.saves.offer(hashes, Blocks(transfer.device_indices, self._page_tokens), parent, depth)

    def _copy(self, ticket: bytes, blocks: list[int]) -> Any:
        try:
            return self._worker.save(ticket, blocks, **self._order())
        except self._native.OrbitKVError as error:
            warn_once("save", "OrbitKV: a save could not begin: %s", error)
            return None

    def num_completed_offloads(self) -> int:
        """Offloads that are done, from the oldest on."""
        return self.saves.completed()

    def pop_completed_offload(self) -> bool:
        """Whether the oldest is stored."""
        return self.saves.pop()

    # End --------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Nothing of the pool is read or written on return. Saves get a moment to finish, as a flush mostly
        follows the requests that made them."""
        self.demands.release_all()
        deadline = time.monotonic() + DRAIN_LIMIT_S
        while self._ranks.least([int(self._may_drain(deadline))])[0]:
            self.step()
            time.sleep(0.001)
        self._quiesce()

    def _may_drain(self, deadline: float) -> bool:
        return self.saves.completed() < len(self.saves) and time.monotonic() < deadline

    def _quiesce(self) -> None:
        for _, batch in self._loading:
            for load in batch.loads:
                while not load.abort(STOP_SLICE_MS):
                    warn_once("abort", "OrbitKV: waiting for a restore to stop")
        for load in self._queued:
            load.pinned.release()
        self._queued.clear()
        while self._loading:
            self.layer_done_counter.forget(self._loading.popleft()[0])
        self._worker.fence(self.saves.blocks, 0)
        self.saves.give_up()

    def close(self) -> None:
        """Ends everything; idempotent."""
        self.demands.release_all()
        self._quiesce()
        if self._scheduler is not None:
            self._scheduler.close()
        if not self._worker.close():
            _NEVER_FREED.append(self._scratch)
        for trace in self._traces:
            trace.close()
