"""Saves of the scheduler side: which full blocks were offered to the cache manager, and what became of them.

A page goes through: offered (slots were asked for) -> granted -> dispatched (its ticket travels to the
workers) -> ended. It is dispatched only when the step that computed its block has ended without a failed
restore: a block computed on top of missing KV is full, and wrong. Until dispatch nothing holds the block
back: if the engine gives it to someone else first, the page is copied at once (`urgent`) or given up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from orbitkv.engine.native import load_native
from orbitkv.vllm.metadata import SaveOrder
from orbitkv.vllm.run import Run, stretches

# Pages offered and not dispatched, in total and of one request. Over them a block is offered in a later step.
MAX_OPEN_PAGES = 16384
MAX_OPEN_PAGES_PER_REQUEST = 4096
# "Busy" says that memory is on its way, or that too much is being saved at once. Both mostly pass within
# milliseconds, so the first try comes soon and each later one after twice as long, 0.6 s in all.
MAX_BUSY_RETRIES = 7
BUSY_RETRY_S = 0.005


@dataclass
class _Dispatched:
    blocks: list[int]
    hashes: list[bytes]
    ranks_left: int


class SaveBook:
    """All pages between the first offer and the end of their copies. Bounded by the limits above."""

    def __init__(self, client: Any, *, world_size: int) -> None:
        self._client = client
        self._world_size = world_size
        self._native = load_native()
        # Offered by the next step.
        self._postponed: list[Run] = []
        # Reserved, and not all dispatched or given up.
        self._runs: list[Run] = []
        # To be reserved again.
        self._busy: list[Run] = []
        # A page of a run is open while its block leads to the run.
        self._open: dict[int, Run] = {}
        self._open_by_request: Counter[str] = Counter()
        # Of open pages and of those being copied.
        self._hashes: set[bytes] = set()
        self._dispatched: dict[int, _Dispatched] = {}
        self._reading: dict[int, int] = {}  # block id to save id
        self._next_save_id = 1
        self.counters: Counter[str] = Counter()

    @property
    def has_work(self) -> bool:
        """A page waits for an answer, a second try, a dispatch, or the end of its copy."""
        return bool(self._postponed or self._runs or self._busy or self._dispatched)

    @property
    def open_pages(self) -> int:
        """Pages offered and not yet dispatched."""
        return len(self._open)

    def room(self, request_id: str) -> int:
        """How many more pages of a request may be offered now."""
        total, of_request = len(self._open), self._open_by_request[request_id]
        for run in self._postponed:
            total += len(run.blocks)
            of_request += len(run.blocks) if run.request_id == request_id else 0
        return max(0, min(MAX_OPEN_PAGES - total, MAX_OPEN_PAGES_PER_REQUEST - of_request))

    def postpone(self, run: Run) -> None:
        """Leaves the offer to the next step, so that this one begins earlier."""
        self._postponed.append(run)

    def offer_postponed(self) -> None:
        """Offers what earlier steps have left."""
        postponed, self._postponed = self._postponed, []
        for run in postponed:
            self.offer(run)

    def offer(self, run: Run) -> None:
        """Asks for slots. Pages that are on their way already, for whichever request, are left out."""
        known_hashes, known_blocks = self._hashes, self._open.keys()
        if known_hashes.isdisjoint(run.hashes) and known_blocks.isdisjoint(run.blocks):
            self._reserve(run)
            return
        unknown = [
            index
            for index, (block_hash, block) in enumerate(zip(run.hashes, run.blocks, strict=True))
            if block_hash not in known_hashes and block not in known_blocks
        ]
        for begin, end in stretches(unknown):
            self._reserve(run.part(begin, end))

    def _reserve(self, run: Run) -> None:
        pad = self._native.pad_hashes
        parent = pad([run.parent]) if run.parent is not None else None
        run.reservation = self._client.reserve(pad(run.hashes), parent=parent, first_depth=run.first, group=0)
        self._hashes.update(run.hashes)
        self._hold(run)
        self._runs.append(run)

    def _hold(self, run: Run) -> None:
        """All of its pages are open from now on."""
        self._open.update(dict.fromkeys(run.blocks, run))
        run.open = len(run.blocks)
        self._open_by_request[run.request_id] += run.open

    def _let_go(self, run: Run, indices: Sequence[int]) -> None:
        """Pages that were open are not any more; their hashes stay known."""
        for index in indices:
            self._open.pop(run.blocks[index], None)
        run.open -= len(indices)
        left = self._open_by_request[run.request_id] - len(indices)
        if left > 0:
            self._open_by_request[run.request_id] = left
        else:
            del self._open_by_request[run.request_id]

    def _close(self, run: Run, indices: Sequence[int]) -> None:
        """Open pages are present already, refused or given up."""
        self._let_go(run, indices)
        if len(indices) == len(run.hashes):
            self._hashes.difference_update(run.hashes)
        else:
            self._hashes.difference_update([run.hashes[index] for index in indices])

    def _open_of(self, run: Run) -> Sequence[int]:
        """Indices of the run's open pages."""
        if run.open == len(run.blocks):
            return range(run.open)
        return [index for index, block in enumerate(run.blocks) if self._open.get(block) is run]

    def collect_answers(self) -> None:
        """Takes in what the manager has answered so far, and asks again where it said "busy" a while ago."""
        now = time.monotonic()
        for run in self._runs:
            if not run.is_answered and run.reservation.poll():
                run.is_answered = True
                self._take_answer(run, now)
        if self._busy:
            due = [run for run in self._busy if run.retry_at <= now]
            self._busy = [run for run in self._busy if run.retry_at > now]
            for run in due:
                indices = self._open_of(run)
                self._close(run, indices)
                # A page belongs to one reservation for good: asking again makes a new one.
                for begin, end in stretches(indices):
                    self._reserve(run.part(begin, end))

    def _take_answer(self, run: Run, now: float) -> None:
        native = self._native
        statuses = run.reservation.statuses()
        if len(statuses) != len(run.blocks):
            statuses = [native.GRANT_REFUSED] * len(run.blocks)
        indices = self._open_of(run)
        if statuses.count(native.GRANT_EXISTS) == len(statuses):
            self.counters["exists"] += len(indices)
            self._close(run, indices)
            return
        by_status: dict[int, list[int]] = {}
        for index in indices:
            by_status.setdefault(statuses[index], []).append(index)
        run.granted = by_status.pop(native.GRANT_SLOTS, [])
        if run.retries < MAX_BUSY_RETRIES:
            self._try_again(run, by_status.pop(native.GRANT_BUSY, []), now)
        for status, closed in by_status.items():
            self.counters["exists" if status == native.GRANT_EXISTS else "refused"] += len(closed)
            self._close(run, closed)

    def _try_again(self, run: Run, indices: list[int], now: float) -> None:
        """Keeps pages open for which there was no room."""
        self._let_go(run, indices)
        for begin, end in stretches(indices):
            busy = run.part(begin, end)
            busy.retry_at = now + BUSY_RETRY_S * 2**run.retries
            busy.retries = run.retries + 1
            self._hold(busy)
            self._busy.append(busy)

    def dispatch(self, ended_step: int, fresh: set[int]) -> tuple[list[SaveOrder], list[int]]:
        """Orders for the workers, and the blocks to fence.

        `ended_step` is the last step whose forward pass is known to have ended well; `fresh` are the blocks
        that the engine has given away in this step.
        """
        orders: list[SaveOrder] = []
        for run in self._runs:
            if run.granted and run.step <= ended_step:
                orders.extend(self._order_granted(run, fresh))
        for run in {self._open[block] for block in fresh & self._open.keys()}:
            overtaken = [index for index in self._open_of(run) if run.blocks[index] in fresh]
            self.counters["overtaken"] += len(overtaken)
            self._close(run, overtaken)
        if fresh and self._postponed:
            self._overtake_postponed(fresh)
        fences: list[int] = []
        if fresh and self._reading:
            ordered = {block for order in orders if order.urgent for block in order.blocks}
            reading = fresh & self._reading.keys()
            fences = sorted(reading - ordered)
            for block in reading:
                # From the fence on no save reads it.
                del self._reading[block]
        self._sweep()
        return orders, fences

    def _overtake_postponed(self, fresh: set[int]) -> None:
        kept = []
        for run in self._postponed:
            left = [index for index, block in enumerate(run.blocks) if block not in fresh]
            self.counters["overtaken"] += len(run.blocks) - len(left)
            kept += [run.part(begin, end) for begin, end in stretches(left)]
        self._postponed = kept

    def _order_granted(self, run: Run, fresh: set[int]) -> Iterable[SaveOrder]:
        """Orders for what was granted, urgent ones first."""
        # Some may have been overtaken since.
        ready = [index for index in run.granted if self._open.get(run.blocks[index]) is run]
        run.granted = []
        urgent = [index for index in ready if run.blocks[index] in fresh]
        if urgent:
            ready = [index for index in ready if run.blocks[index] not in fresh]
        for indices, is_urgent in ((urgent, True), (ready, False)):
            if indices and (order := self._order(run, indices, is_urgent)) is not None:
                yield order

    def _order(self, run: Run, indices: list[int], is_urgent: bool) -> SaveOrder | None:
        try:
            ticket = run.reservation.ticket(indices)
        except self._native.OrbitKVError:
            # The manager that granted the slots is gone, and they with it.
            self.counters["refused"] += len(indices)
            self._close(run, indices)
            return None
        save_id = self._next_save_id
        self._next_save_id += 1
        blocks = [run.blocks[index] for index in indices]
        hashes = [run.hashes[index] for index in indices]
        self._dispatched[save_id] = _Dispatched(blocks, hashes, self._world_size)
        self._let_go(run, indices)
        self._reading.update(dict.fromkeys(blocks, save_id))
        self.counters["dispatched"] += len(indices)
        return SaveOrder(save_id, ticket, blocks, is_urgent)

    def save_ended(self, save_id: int, ranks: int) -> None:
        """So many ranks have ended a save."""
        entry = self._dispatched.get(save_id)
        if entry is None:
            return
        entry.ranks_left -= ranks
        if entry.ranks_left > 0:
            return
        del self._dispatched[save_id]
        self._hashes.difference_update(entry.hashes)
        for block in entry.blocks:
            if self._reading.get(block) == save_id:
                del self._reading[block]

    def drop_since(self, step: int) -> dict[str, int]:
        """Gives up pages computed in `step` or later: by request, the position of the first one."""
        late = [run for run in self._postponed if run.step >= step]
        self._postponed = [run for run in self._postponed if run.step < step]
        pages = [(run, 0, len(run.blocks)) for run in late]
        for run in (*self._runs, *self._busy):
            if run.step >= step and run.open:
                indices = self._open_of(run)
                pages.append((run, indices[0], len(indices)))
                self._close(run, indices)
        dropped: dict[str, int] = {}
        for run, index, count in pages:
            first = run.first + index
            dropped[run.request_id] = min(first, dropped.get(run.request_id, first))
            self.counters["dropped"] += count
        self._sweep()
        return dropped

    def drop_open(self) -> None:
        """Gives up every page that is not dispatched."""
        self.drop_since(0)

    def forget_dispatched(self) -> None:
        """The workers were told to end all saves."""
        for entry in self._dispatched.values():
            self._hashes.difference_update(entry.hashes)
        self._dispatched.clear()
        self._reading.clear()

    def _sweep(self) -> None:
        """Drops runs without a page that still needs its slot, and gives the manager back what is left."""
        for run in self._runs:
            if not run.open:
                run.reservation.abandon()
        self._runs = [run for run in self._runs if run.open]
        self._busy = [run for run in self._busy if run.open]
