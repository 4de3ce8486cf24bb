"""In-memory stand-in for `orbitkv._native`: the same surface, one manager in this process, delays under
control.

Copies are real (by address, as the client does them), so that a wrong block id or layout shows up as wrong
bytes.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

HASH_BYTES = 32
PENDING, READY, MISS, PREPARED = 0, 1, 2, 3
LAYER_COMPLETE, LAYER_ORDERED, LAYER_FAILED, LAYER_TIMED_OUT = 0, 1, 2, 3
GRANT_SLOTS, GRANT_EXISTS, GRANT_BUSY, GRANT_REFUSED = 0, 1, 2, 3


class OrbitKVError(Exception):
    pass


def _leading(hashes: list[bytes], among: Container[bytes]) -> int:
    return next((at for at, page in enumerate(hashes) if page not in among), len(hashes))


@dataclass
class Manager:
    """The manager's state and the test's controls. `hold_*` keeps an answer or a copy from completing."""

    pages: dict[bytes, bytes] = field(default_factory=dict)
    # Pages in a tier that is slower by so much a page; what is read moves to `pages`.
    tier: dict[bytes, bytes] = field(default_factory=dict)
    read_us: int = 100
    copy_us: int = 1000
    timed_us: int = 100  # of that, what the copies took
    tier_counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("tier_reads", "tier_read_pages", "tier_read_us", "tier_left", "tier_left_pages"), 0
        )
    )
    filling: set[bytes] = field(default_factory=set)
    leases: int = 0
    operations: int = 0
    queries: list[Any] = field(default_factory=list)
    preparations: list[Any] = field(default_factory=list)
    warm_ups: list[list[bytes]] = field(default_factory=list)
    reservations: list[Any] = field(default_factory=list)
    loads: list[Any] = field(default_factory=list)
    saves: list[Any] = field(default_factory=list)
    fences: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    tickets: dict[bytes, list[bytes]] = field(default_factory=dict)
    is_up: bool = True
    reconnects: int = 0
    reset_answers: bool = True
    hold_queries: bool = False
    hold_preparations: bool = False
    hold_reservations: bool = False
    hold_loads: bool = False
    hold_saves: bool = False
    refuse: bool = False
    fail_blocks: set[int] = field(default_factory=set)
    raise_in: set[str] = field(default_factory=set)
    registrations: list[dict[str, Any]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    # Devices with streams: what was done on which, in order; and what is planned.
    stream_calls: list[tuple[str, int]] = field(default_factory=list)
    layer_answer: int = LAYER_ORDERED
    checks_end: bool = True
    copies_end: bool = True
    no_driver: bool = False

    def check(self, call: str) -> None:
        """Fails a call the test wants to fail, as a defect would (not as the client's own error)."""
        if call in self.raise_in:
            raise RuntimeError(f"planted in {call}")

    def to_tier(self) -> None:
        """Everything leaves memory for the slower tier."""
        self.tier |= self.pages
        self.pages.clear()

    def prefix(self, hashes: list[bytes], *, memory_only: bool = False) -> int:
        """Pages of the prefix that an answer has, after what reads it takes."""
        count = _leading(hashes, self.pages)
        more = _leading(hashes[count:], {*self.pages, *self.tier})
        if more == 0:
            return count
        if memory_only:
            self.tier_counts["tier_left"] += 1
            self.tier_counts["tier_left_pages"] += more
            return count
        read = [page for page in hashes[count : count + more] if page not in self.pages]
        self.tier_counts["tier_reads"] += 1
        self.tier_counts["tier_read_pages"] += len(read)
        self.tier_counts["tier_read_us"] += self.read_us * len(read)
        self.pages |= {page: self.tier[page] for page in read}
        return count + more

    def next_ids(self) -> tuple[int, int, int]:
        """Session, operation and revision of a new operation."""
        self.operations += 1
        return (7, self.operations, 1)

    def ticket(self, hashes: list[bytes]) -> bytes:
        name = b"ticket-%d" % len(self.tickets)
        self.tickets[name] = hashes
        return name


MANAGER = Manager()


def reset_manager() -> Manager:
    global MANAGER
    MANAGER = Manager()
    return MANAGER


def split(blob: bytes) -> list[bytes]:
    return [blob[at : at + HASH_BYTES] for at in range(0, len(blob), HASH_BYTES)]


def pad_hashes(hashes: list[bytes]) -> bytes:
    return b"".join(block_hash.ljust(HASH_BYTES, b"\0") for block_hash in hashes)


def blake3_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Registration:
    def __init__(self, **values: Any) -> None:
        self.values = values
        MANAGER.registrations.append(values)


class Layout:
    def __init__(self, regions: list[tuple[int, int, int, int]]) -> None:
        self.regions = regions

    @property
    def page_bytes(self) -> int:
        return sum(region[2] for region in self.regions)

    @property
    def num_layers(self) -> int:
        return len(self.regions)


def gather_block(layout: Layout, block: int, *, device: str = "cpu") -> bytes:
    return b"".join(
        ctypes.string_at(address + block * stride, size) for address, stride, size, _ in layout.regions
    )


def scatter_block(layout: Layout, block: int, payload: bytes, *, device: str = "cpu") -> None:
    at = 0
    for address, stride, size, _ in layout.regions:
        ctypes.memmove(address + block * stride, payload[at : at + size], size)
        at += size


class Query:
    def __init__(self, hashes: list[bytes], *, memory_only: bool = False) -> None:
        self.hashes = hashes
        self.memory_only = memory_only
        self.waits = 0
        self.released = False
        self.restored = False
        self.lost = False
        self.ids = MANAGER.next_ids()
        self._state = PENDING
        self.pages = 0

    def poll(self) -> int:
        if self._state == PENDING and not MANAGER.hold_queries and not self.released:
            self.pages = MANAGER.prefix(self.hashes, memory_only=self.memory_only)
            self._state = READY if self.pages else MISS
            MANAGER.leases += self._state == READY
        return self._state

    def wait(self, timeout_us: int) -> int:
        self.waits += 1
        return self.poll()

    @property
    def miss_reason(self) -> str:
        return "absent" if self._state == MISS else ""

    def restore(self, first: int, count: int) -> bytes:
        if self.lost or self._state != READY or self.restored or self.released:
            raise OrbitKVError("not ready")
        assert first >= 0
        assert first + count <= self.pages
        self.restored = True
        return MANAGER.ticket(self.hashes[first : first + count])

    def release(self) -> None:
        if not self.released:
            self.released = True
            MANAGER.leases -= self._state == READY


class Preparation:
    """Pages held for a request that has not asked yet. `lose` ends it as the manager would."""

    def __init__(self, hashes: list[bytes]) -> None:
        self.hashes = hashes
        self.ids = MANAGER.next_ids()
        self.polls = 0
        self.state = PENDING
        self.pages = 0
        self.miss_reason = ""
        self.claimed: Query | None = None
        self.cancelled = False

    def poll(self) -> int:
        assert not self.over, "polled after its end"
        self.polls += 1
        if self.state == PENDING and not MANAGER.hold_preparations:
            self.pages = MANAGER.prefix(self.hashes)
            self.state = PREPARED if self.pages else MISS
            self.miss_reason = "" if self.pages else "absent"
            MANAGER.leases += self.state == PREPARED
        return self.state

    @property
    def over(self) -> bool:
        return self.cancelled or self.claimed is not None

    def _let_go(self) -> None:
        MANAGER.leases -= self.state == PREPARED
        self.state = MISS

    def lose(self, reason: str) -> None:
        self._let_go()
        self.miss_reason = reason

    def claim(self, *, deadline_ms: int = 0) -> Query:
        MANAGER.check("claim")
        assert not self.over, "claimed after its end"
        is_live = self.state != MISS
        self._let_go()
        self.claimed = Query(self.hashes)
        if is_live:
            self.claimed.ids = self.ids
        self.claimed.deadline_ms = deadline_ms
        MANAGER.queries.append(self.claimed)
        return self.claimed

    def cancel(self) -> None:
        if not self.over:
            self.cancelled = True
            self._let_go()


class Reservation:
    def __init__(self, hashes: list[bytes], parent: bytes | None, first_depth: int) -> None:
        self.hashes, self.parent, self.first_depth = hashes, parent, first_depth
        self.answer: list[int] | None = None
        self.granted: set[int] = set()
        self.abandoned = False

    def poll(self) -> bool:
        if self.answer is None and not MANAGER.hold_reservations:
            self.answer = []
            for index, block_hash in enumerate(self.hashes):
                status = GRANT_SLOTS
                if MANAGER.refuse:
                    status = GRANT_REFUSED
                elif block_hash in MANAGER.pages:
                    status = GRANT_EXISTS
                elif block_hash in MANAGER.filling:
                    status = GRANT_BUSY
                else:
                    self.granted.add(index)
                    MANAGER.filling.add(block_hash)
                self.answer.append(status)
        return self.answer is not None

    def statuses(self) -> list[int]:
        return self.answer or []

    def ticket(self, indices: list[int]) -> bytes:
        assert set(indices) <= self.granted, "each granted page goes into one ticket"
        self.granted -= set(indices)
        return MANAGER.ticket([self.hashes[index] for index in indices])

    def abandon(self) -> None:
        self.abandoned = True
        for index in self.granted:
            MANAGER.filling.discard(self.hashes[index])
        self.granted = set()


class Reset:
    """Repeated until a manager has carried it out, as the client does."""

    def __init__(self) -> None:
        self._is_done = False

    def poll(self) -> bool:
        if not self._is_done and MANAGER.is_up and MANAGER.reset_answers:
            self._is_done = True
            MANAGER.pages.clear()
            MANAGER.tier.clear()
        return self._is_done

    def wait(self, timeout_us: int) -> bool:
        return self.poll()


class SchedulerClient:
    def __init__(self, registration: Registration) -> None:
        MANAGER.check("SchedulerClient")
        self.status = "connected"

    @property
    def active(self) -> bool:
        MANAGER.check("active")
        return MANAGER.is_up

    @property
    def connected(self) -> bool:
        return MANAGER.is_up

    def query(
        self,
        hashes: bytes,
        *,
        group: int = 0,
        deadline_ms: int = 0,
        strict: bool = False,
        wait_full_prefix: bool = False,
        memory_only: bool = False,
    ) -> Query:
        MANAGER.check("query")
        query = Query(split(hashes), memory_only=memory_only)
        query.deadline_ms = deadline_ms
        MANAGER.queries.append(query)
        return query

    def prepare_prefix(self, hashes: bytes, *, group: int = 0) -> Preparation:
        MANAGER.check("prepare_prefix")
        assert hashes, "nothing to prepare"
        preparation = Preparation(split(hashes))
        MANAGER.preparations.append(preparation)
        return preparation

    def warm_up(self, hashes: bytes, *, group: int = 0) -> bool:
        MANAGER.check("warm_up")
        assert hashes, "nothing to warm up"
        MANAGER.warm_ups.append(split(hashes))
        return True

    def reserve(
        self, hashes: bytes, *, parent: bytes | None, first_depth: int, group: int = 0
    ) -> Reservation:
        MANAGER.check("reserve")
        reservation = Reservation(split(hashes), parent, first_depth)
        MANAGER.reservations.append(reservation)
        return reservation

    def reset(self) -> Reset:
        return Reset()

    def stats(self) -> dict[str, int]:
        return {"reconnects": MANAGER.reconnects, **MANAGER.tier_counts}

    def close(self) -> None:
        MANAGER.closed.append("scheduler")


class Load:
    def __init__(self, hashes: list[bytes], blocks: list[int], layout: Layout) -> None:
        self.hashes, self.blocks, self.layout = hashes, blocks, layout
        self.is_over = False
        self.aborted = False
        self.failed: list[int] = []
        self.waits = 0

    def finish(self) -> None:
        if not self.is_over:
            self.is_over = True
            for block_hash, block in zip(self.hashes, self.blocks, strict=True):
                if block in MANAGER.fail_blocks or self.aborted:
                    self.failed = [*{*self.failed, block}]
                else:
                    scatter_block(self.layout, block, MANAGER.pages[block_hash])

    def poll(self) -> bool:
        MANAGER.check("load.poll")
        if not MANAGER.hold_loads:
            self.finish()
        return self.is_over

    def wait_layer(self, layer: int, timeout_ms: int) -> bool:
        self.waits += 1
        return self.poll() and not self.failed

    def wait(self, timeout_ms: int) -> bool:
        self.waits += 1
        return self.poll()

    def order_layer(self, layer: int, stream: int, timeout_ms: int) -> int:
        MANAGER.check("order_layer")
        MANAGER.stream_calls.append((f"layer {layer}", stream))
        return MANAGER.layer_answer

    def wait_checked(self, timeout_ms: int) -> bool:
        if MANAGER.checks_end:
            self.failed = [block for block in self.blocks if block in MANAGER.fail_blocks]
        return MANAGER.checks_end

    def abort(self, timeout_ms: int) -> bool:
        self.aborted = True
        self.finish()
        return True

    def failed_blocks(self) -> list[int]:
        assert self.is_over or MANAGER.checks_end
        return self.failed


class Save:
    def __init__(self, hashes: list[bytes], blocks: list[int], layout: Layout) -> None:
        self.hashes, self.blocks, self.layout = hashes, blocks, layout
        self.left = dict(zip(blocks, hashes, strict=True))

    def finish(self) -> None:
        for block, block_hash in self.left.items():
            MANAGER.pages[block_hash] = gather_block(self.layout, block)
            MANAGER.filling.discard(block_hash)
        self.left = {}

    def abort(self, blocks: set[int]) -> int:
        gone = [block for block in self.left if block in blocks]
        for block in gone:
            MANAGER.filling.discard(self.left.pop(block))
        return len(gone)

    def poll(self) -> bool:
        if not MANAGER.hold_saves:
            self.finish()
        return not self.left

    def committed(self) -> int:
        return len(self.blocks) - len(self.left)


class WorkerClient:
    self_test = "passed"
    trouble = ""
    method = "cpu"

    def __init__(
        self, registration: Registration, *, rank: int, layout: Layout, scratch: Layout, **settings: Any
    ) -> None:
        assert scratch.page_bytes == layout.page_bytes
        MANAGER.check("WorkerClient")
        self.rank = rank
        self.layout = layout
        self.settings = settings
        if MANAGER.no_driver:
            raise OrbitKVError("copy: the CUDA driver library libcuda.so.1 cannot be loaded")

    def _note(self, call: str, stream: int | None) -> None:
        if (self.settings["device"] == "cpu") != (stream is None):
            raise OrbitKVError("stream is missing, or of no use")
        if stream is not None:
            MANAGER.stream_calls.append((call, stream))

    def restore(self, ticket: bytes, blocks: list[int], *, stream: int | None = None) -> Load:
        MANAGER.check("restore")
        self._note("restore", stream)
        load = Load(MANAGER.tickets.pop(ticket), list(blocks), self.layout)
        MANAGER.loads.append(load)
        return load

    def save(self, ticket: bytes, blocks: list[int], *, stream: int | None = None) -> Save:
        MANAGER.check("save")
        self._note("save", stream)
        save = Save(MANAGER.tickets.pop(ticket), list(blocks), self.layout)
        MANAGER.saves.append(save)
        return save

    def stats(self) -> dict[str, int]:
        saved = sum(save.committed() for save in MANAGER.saves)
        ended = [load for load in MANAGER.loads if load.is_over]
        failed = sum(len(load.failed) for load in ended)
        restored = sum(len(load.blocks) for load in ended) - failed
        return {
            "saved_pages": saved,
            "saved_bytes": saved * self.layout.page_bytes,
            "save_us": 10 * saved,
            "aborted_pages": 0,
            "restored_pages": restored,
            "restored_bytes": restored * self.layout.page_bytes,
            "restore_us": MANAGER.copy_us * len(ended),
            "timed_bytes": restored * self.layout.page_bytes,
            "timed_us": MANAGER.timed_us * len(ended),
            "failed_pages": failed,
            "bad_pages": 0,
            "reconnects": MANAGER.reconnects,
        }

    def fence(self, blocks: list[int], timeout_ms: int) -> int:
        MANAGER.fences.append((tuple(blocks), timeout_ms))
        for save in MANAGER.saves:
            save.poll()
        return sum(save.abort(set(blocks)) for save in MANAGER.saves)

    def close(self) -> bool:
        MANAGER.closed.append("worker")
        for load in MANAGER.loads:
            load.abort(0)
        return MANAGER.copies_end
