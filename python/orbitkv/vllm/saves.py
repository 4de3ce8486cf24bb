"""Saves of the scheduler side: which full blocks were offered to the cache manager, and what became of them.

A page goes through: offered (slots were asked for) -> granted -> dispatched (its ticket travels to the
workers) -> ended. It is dispatched only when the step that computed its block has ended without a failed
restore: a block computed on top of missing KV is full, and wrong. Until dispatch nothing holds the block
back: if the engine gives it to someone else first, the page is copied at once (`urgent`) or given up.
"""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from orbitkv.vllm.metadata import SaveOrder
from orbitkv.vllm.native import load_native

# Pages offered and not dispatched, in total and of one request. Over them a block is offered in a later step.
MAX_OPEN_PAGES = 16384
MAX_OPEN_PAGES_PER_REQUEST = 4096
# "Busy" says that memory is on its way, or that too much is being saved at once. Both mostly pass within
# milliseconds, so the first try comes soon and each later one after twice as long, 0.6 s in all.
MAX_BUSY_RETRIES = 7
BUSY_RETRY_S = 0.005


class PageState(enum.Enum):
    """Where an offered page is."""

    OFFERED = enum.auto()
    GRANTED = enum.auto()
    BUSY = enum.auto()
    CLOSED = enum.auto()  # dispatched, present already, refused or given up


@dataclass(eq=False)
class Page:
    """One full block to be saved. `position` counts blocks from the start of its request."""

    request_id: str
    position: int
    block_hash: bytes
    parent: bytes | None
    block: int
    step: int  # whose forward pass completes the block
    state: PageState = PageState.OFFERED
    retries: int = 0
    retry_at: float = 0.0  # on the monotonic clock


@dataclass(eq=False)
class _Batch:
    """Pages of one reservation, in its order."""

    reservation: Any
    pages: list[Page]
    is_answered: bool = False


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
        self._batches: list[_Batch] = []
        self._busy: list[Page] = []
        self._open_by_block: dict[int, Page] = {}
        self._open_by_request: Counter[str] = Counter()
        self._hashes: set[bytes] = set()
        self._dispatched: dict[int, _Dispatched] = {}
        self._reading: dict[int, int] = {}  # block id to save id
        self._next_save_id = 1
        self.counters: Counter[str] = Counter()

    @property
    def has_work(self) -> bool:
        """A page waits for an answer, a second try, a dispatch, or the end of its copy."""
        return bool(self._batches or self._busy or self._dispatched)

    @property
    def open_pages(self) -> int:
        """Pages offered and not yet dispatched."""
        return len(self._open_by_block)

    def room(self, request_id: str) -> int:
        """How many more pages of a request may be offered now."""
        total = MAX_OPEN_PAGES - len(self._open_by_block)
        return max(0, min(total, MAX_OPEN_PAGES_PER_REQUEST - self._open_by_request[request_id]))

    def offer(self, pages: Iterable[Page]) -> None:
        """Asks for slots. Pages that are on their way already, for whichever request, are left out."""
        run: list[Page] = []
        for page in pages:
            is_known = page.block_hash in self._hashes or page.block in self._open_by_block
            if run and (is_known or run[-1].block_hash != page.parent):
                self._reserve(run)
                run = []
            if not is_known:
                run.append(page)
        if run:
            self._reserve(run)

    def _reserve(self, run: list[Page]) -> None:
        blob = self._native.pad_hashes([page.block_hash for page in run])
        parent = self._native.pad_hashes([run[0].parent]) if run[0].parent is not None else None
        reservation = self._client.reserve(blob, parent=parent, first_depth=run[0].position, group=0)
        for page in run:
            page.state = PageState.OFFERED
            self._hashes.add(page.block_hash)
            self._open_by_block[page.block] = page
            self._open_by_request[page.request_id] += 1
        self._batches.append(_Batch(reservation, run))

    def collect_answers(self) -> None:
        """Takes in what the manager has answered so far, and asks again where it said "busy" a while ago."""
        now = time.monotonic()
        for batch in self._batches:
            if not batch.is_answered and batch.reservation.poll():
                batch.is_answered = True
                self._take_answer(batch, now)
        due = [page for page in self._busy if page.retry_at <= now]
        if due:
            self._busy = [page for page in self._busy if page.retry_at > now]
            for page in due:
                self._close(page)
            # A page belongs to one reservation for good: asking again makes a new one.
            self.offer(replace(page, state=PageState.OFFERED) for page in due)

    def _take_answer(self, batch: _Batch, now: float) -> None:
        statuses = batch.reservation.statuses()
        if len(statuses) != len(batch.pages):
            statuses = [self._native.GRANT_REFUSED] * len(batch.pages)
        for page, status in zip(batch.pages, statuses, strict=True):
            if page.state is not PageState.OFFERED:
                continue
            if status == self._native.GRANT_SLOTS:
                page.state = PageState.GRANTED
            elif status == self._native.GRANT_BUSY and page.retries < MAX_BUSY_RETRIES:
                page.state = PageState.BUSY
                page.retry_at = now + BUSY_RETRY_S * 2**page.retries
                page.retries += 1
                self._busy.append(page)
            else:
                self.counters["exists" if status == self._native.GRANT_EXISTS else "refused"] += 1
                self._close(page)

    def dispatch(self, ended_step: int, fresh: set[int]) -> tuple[list[SaveOrder], list[int]]:
        """Orders for the workers, and the blocks to fence.

        `ended_step` is the last step whose forward pass is known to have ended well; `fresh` are the blocks
        that the engine has given away in this step.
        """
        orders: list[SaveOrder] = []
        for batch in self._batches:
            if not batch.is_answered:
                continue
            ready = [
                index
                for index, page in enumerate(batch.pages)
                if page.state is PageState.GRANTED and page.step <= ended_step
            ]
            for is_urgent in (True, False):
                indices = [index for index in ready if (batch.pages[index].block in fresh) == is_urgent]
                if indices and (order := self._order(batch, indices, is_urgent)) is not None:
                    orders.append(order)
        for block in fresh & self._open_by_block.keys():
            self.counters["overtaken"] += 1
            self._close(self._open_by_block[block])
        ordered = {block for order in orders if order.urgent for block in order.blocks}
        fences = sorted(block for block in fresh if block in self._reading and block not in ordered)
        for block in fresh:
            # From the fence on no save reads it.
            self._reading.pop(block, None)
        self._sweep()
        return orders, fences

    def _order(self, batch: _Batch, indices: list[int], is_urgent: bool) -> SaveOrder | None:
        pages = [batch.pages[index] for index in indices]
        try:
            ticket = batch.reservation.ticket(indices)
        except self._native.OrbitKVError:
            # The manager that granted the slots is gone, and they with it.
            for page in pages:
                self.counters["refused"] += 1
                self._close(page)
            return None
        save_id = self._next_save_id
        self._next_save_id += 1
        blocks = [page.block for page in pages]
        hashes = [page.block_hash for page in pages]
        self._dispatched[save_id] = _Dispatched(blocks, hashes, self._world_size)
        for page in pages:
            self._close(page)
            self._hashes.add(page.block_hash)
            self._reading[page.block] = save_id
        self.counters["dispatched"] += len(pages)
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

    def drop_since(self, step: int) -> list[Page]:
        """Gives up pages computed in `step` or later; returns them."""
        dropped = [page for page in self._open_by_block.values() if page.step >= step]
        for page in dropped:
            self._close(page)
        self.counters["dropped"] += len(dropped)
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

    def _close(self, page: Page) -> None:
        page.state = PageState.CLOSED
        self._forget(page)

    def _forget(self, page: Page) -> None:
        if self._open_by_block.get(page.block) is page:
            del self._open_by_block[page.block]
            self._hashes.discard(page.block_hash)
            self._open_by_request[page.request_id] -= 1
            if self._open_by_request[page.request_id] <= 0:
                del self._open_by_request[page.request_id]

    def _sweep(self) -> None:
        """Drops batches without a page that still needs its slot, and gives the manager back what is left."""
        kept = []
        for batch in self._batches:
            if any(page.state in (PageState.OFFERED, PageState.GRANTED) for page in batch.pages):
                kept.append(batch)
            else:
                batch.reservation.abandon()
        self._batches = kept
        self._busy = [page for page in self._busy if page.state is PageState.BUSY]
