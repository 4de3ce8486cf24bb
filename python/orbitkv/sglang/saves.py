"""Write-through: pages that the tree has inserted, on their way to the manager.

The tree locks a node while its pages are saved, and unlocks nodes in the order in which it handed them over.
So an offload that is done waits for those before it, and one that finds too much under way is refused at
once: its node stays unlocked, and is offered again when a request next inserts it.

An offload goes through: offered -> reserved (the leader asks for slots) -> copied (every rank copies its
shard, when the host knows which pages they are) -> done. Pages that the manager is too busy for are asked for
again a few times, later and later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

# Pages in offloads that are not done. What is locked for them cannot be evicted, so it is also a part of the
# pool.
MAX_PAGES = 8192
MAX_POOL_SHARE = 0.5
MAX_TRIES = 7
FIRST_RETRY_S = 0.005
# An offload without slots by then is given up: a manager that does not answer must not keep the tree locked.
ANSWER_LIMIT_S = 2.0


class Blocks(Protocol):
    """Pages of the pool, whose numbers the host may not know yet."""

    def are_known(self) -> bool:
        """Whether `numbers` returns at once."""

    def numbers(self) -> list[int]:
        """The numbers. Waits for them."""


class Reserver(Protocol):
    """The leader's side of the manager."""

    def reserve(self, offload: Offload, pages: range) -> Any:
        """Asks for slots for these pages of an offload."""

    def grants(self, reservation: Any, count: int) -> list[Grant] | None:
        """What became of each of `count` pages, or None while there is no answer."""

    def ticket(self, reservation: Any, places: list[int]) -> bytes | None:
        """Ticket for granted pages, by their place in the reservation; None if they are lost."""

    def abandon(self, reservation: Any) -> None:
        """Gives back every granted page without a ticket."""


@dataclass(frozen=True)
class Grant:
    """What the manager says of one page."""

    is_slot: bool = False
    is_stored: bool = False
    is_busy: bool = False


@dataclass(frozen=True)
class SaveOrder:
    """Leader to every rank: copy these pages of an offload, and whether any are left to be asked for. Without
    a ticket nothing is copied."""

    serial: int
    ticket: bytes | None
    pages: list[int]
    is_last: bool
    # Of the pages that end with this order, all are stored, or will be with the copy.
    is_stored: bool


@dataclass(eq=False)
class Offload:
    """Pages of one node. `parent` is the hash of the page before the first, `depth` how many there are before
    it."""

    serial: int
    hashes: list[bytes]
    blocks: Blocks
    parent: bytes | None
    depth: int
    # Leader: what is asked for, or will be again.
    waiting: range = range(0)
    reservation: Any = None
    tries: int = 0
    retry_at: float = 0.0
    give_up_at: float = 0.0
    # Every rank.
    copies: list[Any] = field(default_factory=list)
    is_answered: bool = False
    is_stored: bool = True

    def is_done(self) -> bool:
        """No page of it will be read any more."""
        return self.is_answered and all(copy.poll() for copy in self.copies)


class Saves:
    """Offloads of one rank. All ranks hold the same, in the same order."""

    def __init__(self, reserver: Reserver | None, copy: Any, *, pool_pages: int) -> None:
        self._reserver = reserver
        self._copy = copy
        self._max_pages = max(1, min(MAX_PAGES, int(pool_pages * MAX_POOL_SHARE)))
        self._offloads: deque[Offload] = deque()
        self._open_pages = 0
        self._next_serial = 1
        self.counters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._offloads)

    @property
    def blocks(self) -> list[int]:
        """Pages of the pool that may still be read."""
        read = (offload for offload in self._offloads if offload.copies)
        return [block for offload in read for block in offload.blocks.numbers()]

    def offer(self, hashes: list[bytes], blocks: Blocks, parent: bytes | None, depth: int) -> bool:
        """Takes an offload, unless too much is under way."""
        if self._open_pages and self._open_pages + len(hashes) > self._max_pages:
            self.counters["offloads_refused"] += 1
            return False
        offload = Offload(self._next_serial, hashes, blocks, parent, depth)
        self._next_serial += 1
        self._open_pages += len(hashes)
        self._offloads.append(offload)
        if self._reserver is not None:
            self._reserve(offload, range(len(hashes)))
        return True

    def _reserve(self, offload: Offload, pages: range) -> None:
        offload.waiting = pages
        offload.tries += 1
        offload.reservation = self._reserver.reserve(offload, pages)

    def collect(self, now: float) -> list[SaveOrder]:
        """Leader: what the manager has answered since the last call."""
        orders = []
        for offload in self._offloads:
            if offload.is_answered or not offload.blocks.are_known():
                continue
            offload.give_up_at = offload.give_up_at or now + ANSWER_LIMIT_S
            if offload.reservation is None and now >= offload.retry_at:
                self._reserve(offload, offload.waiting)
            grants = None
            if offload.reservation is not None:
                grants = self._reserver.grants(offload.reservation, len(offload.waiting))
            if grants is not None:
                orders.append(self._order(offload, grants, now))
            elif now >= offload.give_up_at:
                self._abandon(offload)
                self.counters["offloads_unanswered"] += 1
                orders.append(SaveOrder(offload.serial, None, [], is_last=True, is_stored=False))
        return orders

    def _abandon(self, offload: Offload) -> None:
        reservation, offload.reservation = offload.reservation, None
        if reservation is not None:
            self._reserver.abandon(reservation)

    def _order(self, offload: Offload, grants: list[Grant], now: float) -> SaveOrder:
        reservation, offload.reservation = offload.reservation, None
        slots = [place for place, grant in enumerate(grants) if grant.is_slot]
        ticket = self._reserver.ticket(reservation, slots) if slots else None
        self._reserver.abandon(reservation)
        is_busy = any(grant.is_busy for grant in grants)
        is_last = not is_busy or offload.tries >= MAX_TRIES
        is_refused = any(grant == Grant() for grant in grants)
        is_stored = not is_refused and (ticket is not None or not slots) and not (is_last and is_busy)
        self.counters["pages_stored_before"] += sum(grant.is_stored for grant in grants)
        pages = [offload.waiting[place] for place in slots] if ticket is not None else []
        if busy := [page for page, grant in zip(offload.waiting, grants, strict=True) if grant.is_busy]:
            # What lies between them is there, or on its way there: asking for it again costs nothing.
            offload.waiting = range(busy[0], busy[-1] + 1)
        offload.retry_at = now + FIRST_RETRY_S * 2 ** (offload.tries - 1)
        return SaveOrder(offload.serial, ticket, pages, is_last, is_stored)

    def apply(self, orders: Iterable[SaveOrder]) -> None:
        """Every rank: copies what the leader has slots for."""
        by_serial = {offload.serial: offload for offload in self._offloads}
        for order in orders:
            offload = by_serial.get(order.serial)
            if offload is None or offload.is_answered:
                continue
            offload.is_stored &= order.is_stored
            if order.ticket is not None:
                # Known to the leader, and so on this rank within moments.
                blocks = offload.blocks.numbers()
                copy = self._copy(order.ticket, [blocks[page] for page in order.pages])
                self.counters["pages_saved"] += len(order.pages)
                if copy is None:
                    offload.is_stored = False
                else:
                    offload.copies.append(copy)
            offload.is_answered = order.is_last

    def completed(self) -> int:
        """How many of the oldest offloads are done, without one between them that is not."""
        count = 0
        for offload in self._offloads:
            if not offload.is_done():
                break
            count += 1
        return count

    def pop(self) -> bool:
        """Takes away the oldest, which is done; whether all its pages are stored."""
        offload = self._offloads.popleft()
        self._open_pages -= len(offload.hashes)
        return offload.is_stored

    def end_all(self) -> None:
        """All offloads are done and not stored. Their copies, where some run, are the caller's to stop
        first."""
        for offload in self._offloads:
            self._abandon(offload)
            offload.copies = []
            offload.is_answered, offload.is_stored = True, False

    def give_up(self) -> None:
        """Forgets all offloads, as `end_all` ends them."""
        self.end_all()
        self._offloads.clear()
        self._open_pages = 0
