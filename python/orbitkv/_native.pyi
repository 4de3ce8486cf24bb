"""Native client of the OrbitKV cache manager (Rust, `crates/client` behind `crates/python`).

Nothing here blocks on the manager: calls encode a frame and hand it to a bounded queue; answers
arrive on a reader thread and are polled from process memory. Every wait takes a bound. The GIL is
released around all of them. A panic inside becomes `OrbitKVError` and breaks the session; it never
reaches the engine as a `BaseException`.

Hashes are passed as one `bytes` of 32 bytes a block (shorter engine hashes are padded with zeros at
the end by `pad_hashes`). Tickets are opaque `bytes` that travel in the engine's own metadata from
scheduler to worker.
"""

from typing import Any, Final

__version__: Final[str]
HASH_BYTES: Final[int]  # 32

# States of an operation, as returned by `Query.poll` and `Preparation.poll`.
PENDING: Final[int]  # no final state yet
READY: Final[int]  # of a query: pages are leased
MISS: Final[int]
PREPARED: Final[int]  # of a preparation: its pages are in memory, and leased until it is claimed or ends

# Grants of a reservation, as returned by `Reservation.statuses`.
GRANT_SLOTS: Final[int]
GRANT_EXISTS: Final[int]
GRANT_BUSY: Final[int]
GRANT_REFUSED: Final[int]

# Answers of `Load.order_layer`.
LAYER_COMPLETE: Final[int]  # the layer has landed; the stream was left alone
LAYER_ORDERED: Final[int]  # what comes on the stream from now on runs after the layer has landed
LAYER_FAILED: Final[int]  # the layer will not land, nor those after it
LAYER_TIMED_OUT: Final[int]  # its copies were not queued in time; they may be later

class OrbitKVError(Exception):
    """Anything that makes a call impossible; the engine goes on without the cache."""

def pad_hashes(hashes: list[bytes]) -> bytes:
    """Joins block hashes of 1 to 32 bytes each into one blob of 32 bytes each."""

def common_boundaries(sets: list[list[int]]) -> list[int]:
    """The tokens that are in every one of several ascending lists: where ranks that look up by themselves
    can all go on."""

def blake3_hex(data: bytes) -> str:
    """BLAKE3 of `data`, 64 hex digits; used for namespaces."""

class Registration:
    """What both sides of an instance tell the manager. Values are checked here.

    `groups` is a list of dicts with keys `group`, `page_bytes` (payload bytes of one shard of one
    page), `block_tokens`, `shard_count`, `rule`: what the group needs at a token boundary, "prefix" (every
    page up to it), "window:TOKENS" (the last ceil(TOKENS / block_tokens) pages) or "checkpoint" (exactly the
    last page). `hash_tokens` are the tokens that one hash of a request covers; 0: those of the smallest
    block. A page's hash is that of its last block. Raises OrbitKVError for rules that contradict each other.
    """

    def __init__(
        self,
        *,
        socket: str,
        engine: str,
        engine_version: str,
        model: str,
        instance: str,  # 32 hex digits, same for scheduler and workers
        namespace: str,  # 64 hex digits
        world_size: int,
        groups: list[dict[str, Any]],
        hash_tokens: int = 0,
    ) -> None: ...

class Layout:
    """KV memory of one worker: one region a layer, in the order in which layers run.

    Each region is `(address, block_stride_bytes, block_bytes, num_blocks)`: block `b` of that layer is
    `block_bytes` contiguous bytes at `address + b * block_stride_bytes`. A page's payload is the
    regions' blocks of one block id, concatenated in region order. The memory must outlive the worker
    client, or `WorkerClient.close` must have returned True. Addresses are those of the device that the worker
    client is given: of this process on "cpu", `CUdeviceptr` in the device's primary context on "cuda:N".
    """

    def __init__(self, regions: list[tuple[int, int, int, int]]) -> None: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def num_layers(self) -> int: ...

def gather_block(layout: Layout, block: int, *, device: str = "cpu") -> bytes:
    """Payload of one block through the copy engine's own address arithmetic (layout probe). No stream may be
    about to write the block."""

def scatter_block(layout: Layout, block: int, payload: bytes, *, device: str = "cpu") -> None:
    """The reverse of `gather_block`; complete on return. Only for scratch memory."""

class SchedulerClient:
    """Owns queries and reservations of one engine instance. Connects and reconnects by itself."""

    def __init__(self, registration: Registration) -> None: ...
    @property
    def active(self) -> bool:
        """Every rank is connected to the same manager and its self-test passed (one atomic load)."""
    @property
    def connected(self) -> bool: ...
    @property
    def boot(self) -> str:
        """Identity of the manager's run, 32 hex digits; empty while not connected."""
    @property
    def status(self) -> str:
        """One line for people: connected or why not."""
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
        """Asks for the longest sealed prefix of `hashes`. Never blocks; when not connected or over a
        limit the query is a MISS at once. `deadline_ms` 0 means the operation lifetime. At the deadline
        the pages that are in memory by then are the answer; shortly after it the client itself turns a
        query without any answer into a MISS. With `strict` the answer is all pages of `hashes` or a MISS.
        With `wait_full_prefix` neither the deadline nor read limits cut the answer short: for pages that
        are still being saved. With `memory_only` nothing is read from a slower tier: the answer is the prefix
        that is in memory, and `stats` counts what more was stored (`tier_left`, `tier_left_pages`). Raises
        OrbitKVError for a group that is not registered."""
    def prepare_prefix(self, hashes: bytes, *, group: int = 0) -> Preparation:
        """Reads the longest stored prefix of `hashes` ahead, for one request that is expected to ask for
        exactly these hashes. Never blocks. A MISS at once when not connected ("disconnected"), without
        hashes ("absent"), or when 4 preparations of this client are unclaimed ("limit"). The manager skips
        one that is larger than a quarter of its budgets, or in the way of demands ("budget"). Counts as no
        lookup until it is claimed. Raises OrbitKVError for a group that is not registered."""
    def recovery(self, start_tokens: int, end_tokens: int, hashes: bytes) -> RecoveryDemand:
        """The demand for all that the engine needs to go on at `end_tokens` when it holds what it needs at
        `start_tokens`: pages of every cache group, as the registered rules say. `hashes` are those of the
        sequence from its first token on. Raises OrbitKVError for an empty span, for tokens at which not every
        group has a page that ends, and for more tokens than the hashes cover."""
    def candidates(self, start_tokens: int, hashes: bytes) -> Candidates:
        """Asks at which tokens after `start_tokens` a recovery could end now. Never blocks. Nothing is read
        or leased for it."""
    def read_recovery(self, demand: RecoveryDemand, *, deadline_ms: int = 0) -> Query:
        """Asks for all pages of a demand. Never blocks. READY with all of them, or a MISS: "refused" when
        its ranges are not those of the rules (`status` says which), "absent" when a page is not there any
        more."""
    def prepare_recovery(self, start_tokens: int, end_tokens: int, hashes: bytes) -> Preparation:
        """As `prepare_prefix`, for all pages of a recovery; raises as `recovery` does. Claimed by itself
        alone: neither a prefix query nor a recovery of another boundary gets its pages."""
    def warm_up(self, hashes: bytes, *, group: int = 0) -> bool:
        """Asks that pages be brought into memory, for nobody in particular: none is leased. Never blocks.
        True if the request was sent; False when not connected, without hashes, or when too many are under
        way. Fire and forget: the end only counts in `stats` (`warmed_pages`, `warm_ups_skipped`). Raises
        OrbitKVError for a group that is not registered."""
    def reserve(
        self, hashes: bytes, *, parent: bytes | None, first_depth: int, group: int = 0
    ) -> Reservation:
        """Asks for slots to save these pages into."""
    def reset(self) -> Reset:
        """Forgets every page of the namespace."""
    def stats(self) -> dict[str, int]:
        """Counters of this client: queries, hits, hits_pages, misses, deadline_misses, reserved_pages,
        granted_pages, refusals, reconnects; preparations (begun or tried), preparations_claimed (while
        alive), preparations_expired (nobody polled), preparations_skipped (a limit, a budget, absent);
        warm_ups (sent), warm_ups_skipped, warmed_pages (brought into memory by them); tier_reads (queries and
        preparations for which pages were to be read), tier_read_pages (of their answers), tier_read_us (from
        admission to answer, summed over them); tier_left (`memory_only` queries that left stored pages
        alone), tier_left_pages."""
    def close(self) -> None: ...

class Query:
    def poll(self) -> int:
        """PENDING, READY or MISS: one atomic load."""
    def wait(self, timeout_us: int) -> int:
        """Waits at most that long for a final state."""
    @property
    def pages(self) -> int:
        """Pages of the leased prefix (0 unless READY)."""
    @property
    def sections(self) -> list[tuple[int, int, int]]:
        """Leased pages as `(group, first page, page after the last)`: one of a prefix, counted from its first
        hash, and one for each cache group of a recovery, in the order of its ticket; empty unless READY."""
    @property
    def ids(self) -> tuple[int, int, int]:
        """Its name on the manager: session, operation, revision. Zeros if it was never sent. A
        claim has those of its preparation, unless it had to ask anew."""
    @property
    def miss_reason(self) -> str:
        """absent, inactive, deadline, lifetime, limit, expired, budget, disconnected, refused, released;
        empty unless MISS."""
    def restore(self, first: int, count: int) -> bytes:
        """Hands pages `first .. first + count` of the lease to the workers: returns the ticket for
        `WorkerClient.restore`. At most once; a recovery as a whole. The lease then ends after `release` and
        when every worker's part has ended. Raises OrbitKVError when not READY (e.g. the connection was
        lost)."""
    def release(self) -> None:
        """Ends interest, in whatever state; idempotent. Running copies keep their custody."""

class RecoveryDemand:
    """Pages of every cache group for one token boundary. `ranges` are `(group, first page, page after the
    last)`, counted from the start of the sequence; the manager refuses any but those of the rules."""

    def __init__(
        self, *, start_tokens: int, end_tokens: int, hashes: bytes, ranges: list[tuple[int, int, int]]
    ) -> None: ...
    @property
    def start_tokens(self) -> int: ...
    @property
    def end_tokens(self) -> int: ...
    @property
    def ranges(self) -> list[tuple[int, int, int]]: ...

class Candidates:
    def poll(self) -> list[int] | None:
        """Tokens at which a recovery could end, ascending; None while there is no answer. An empty list
        without a manager, or when the manager refuses the question."""
    def wait(self, timeout_us: int) -> list[int] | None:
        """As `poll`, after a wait of at most `timeout_us` for the answer."""

class Preparation:
    """Pages that are read ahead until a request claims them. Only polls keep it: the client tells the
    manager of them at most every 250 ms, in one message for all preparations. After 900 ms without a poll
    the client lets go by itself (MISS, "expired")."""

    def poll(self) -> int:
        """PENDING, PREPARED or MISS: one atomic load, and one store that remembers the time of the poll."""
    @property
    def pages(self) -> int:
        """Pages in memory for it (0 unless PREPARED)."""
    @property
    def ids(self) -> tuple[int, int, int]:
        """Its name on the manager: session, operation, revision. Zeros if it was never sent."""
    @property
    def miss_reason(self) -> str:
        """As of a query; "expired": not polled in time; "released": claimed or cancelled. Empty unless
        MISS."""
    def claim(self, *, deadline_ms: int = 0) -> Query:
        """The request has come: its query, READY at once if all pages are in memory, else when they are.
        Never blocks. If the preparation has ended, for whatever reason, or the connection is a new one, this
        is an ordinary query for the same hashes. `deadline_ms` as in `SchedulerClient.query`, from now on.
        Afterwards the preparation is spent: it is a MISS ("released"), and another claim raises
        OrbitKVError."""
    def cancel(self) -> None:
        """Ends interest; idempotent; also on deletion. Does nothing to a query that claimed it."""

class Reservation:
    def poll(self) -> bool:
        """True when answered, or impossible."""
    def statuses(self) -> list[int]:
        """One GRANT_* a page; empty while not answered."""
    def ticket(self, indices: list[int]) -> bytes:
        """Ticket for `WorkerClient.save` for those pages; each page at most once."""
    def abandon(self) -> None:
        """Gives back every granted page that is in no ticket yet. Idempotent; also on deletion."""

class Reset:
    def poll(self) -> bool: ...
    def wait(self, timeout_us: int) -> bool: ...

class WorkerClient:
    """Copies pages between KV memory and the pool, on its own threads.

    `scratch` is a layout of the same page bytes over private memory (at least 2 blocks) that no
    request ever uses: at every attach the client saves, overwrites, restores and compares a page
    through it and tells the manager the verdict.
    """

    def __init__(
        self,
        registration: Registration,
        *,
        rank: int,
        layout: Layout,
        scratch: Layout,
        layout_probe_passed: bool,
        copy_threads: int = 2,  # in host memory
        verify_restore: str = "sample:16",  # off | sample:N | all
        more_layouts: dict[int, Layout] = ...,  # of further cache groups, by number; other memory
        device: str = "cpu",  # of all layouts: "cpu", or "cuda:N" as the process numbers its devices
        copy_method: str = "auto",  # on a device: auto | plain | rows | batch | kernel
    ) -> None:
        """Raises OrbitKVError where there is no driver or no such device."""
    @property
    def connected(self) -> bool: ...
    @property
    def method(self) -> str:
        """For people: where KV is, and how it is copied."""
    @property
    def trouble(self) -> str:
        """For people: what makes copies slower than they could be, or has ended them; empty while nothing
        does."""
    @property
    def self_test(self) -> str:
        """ "pending", "passed", or "failed: …"."""
    def restore(self, ticket: bytes, blocks: list[int], *, stream: int | None = None) -> Load:
        """Copies the ticket's pages into these engine blocks, in layer order, one group after the other.
        Never blocks. A ticket
        of an earlier manager run, or one whose segment does not arrive in time, fails its pages.

        On a CUDA device `stream` (`torch.cuda.Stream.cuda_stream`) is required, and the calling thread must
        be the one that feeds it: no byte moves before what is on it now has run."""
    def pin(self, ticket: bytes) -> Pinned:
        """Takes custody of a restore ticket's pages, maps them and compares their checksums as
        `verify_restore` says, before it is known which blocks they go to. Never blocks. For engines to which
        a restore must not fail once it was promised: neither the manager's end nor that of the connection
        takes the pages away. A ticket of an earlier manager run or connection pins nothing. Raises
        OrbitKVError for a ticket of several cache groups."""
    def save(self, ticket: bytes, blocks: list[int], *, stream: int | None = None) -> Save:
        """Copies these engine blocks into the ticket's pages, checksums and commits them. `stream` as in
        `restore`: it has what computes the blocks."""
    def fence(self, blocks: list[int], timeout_ms: int) -> int:
        """These blocks are about to be overwritten: waits at most that long for saves that read them
        to finish copying, aborts those that have not. On return no save reads them. Returns the
        number of pages aborted."""
    def stats(self) -> dict[str, int]:
        """saved_pages, saved_bytes, save_us, aborted_pages, restored_pages, restored_bytes, restore_us,
        timed_bytes and timed_us (of restores, without what their copies waited for), failed_pages,
        verified_pages, save_inflight_bytes, load_inflight_bytes, …; on a CUDA device also
        registered_bytes (of the pool, which the device reaches directly) and registering_bytes (which will
        follow)."""
    def close(self) -> bool:
        """Ends all copies and the session. True: nothing touches KV memory any more. False: copies of a
        device have not ended, because it is lost or stuck; KV memory is theirs until the process ends."""

class Pinned:
    """Pages of one restore ticket that can be restored; let go on deletion."""

    def poll(self) -> bool:
        """Whether `pages` is final."""
    @property
    def pages(self) -> int:
        """Leading pages of the ticket that can be restored; 0 before `poll`. Those behind the first one whose
        checksum is wrong are not counted; the manager has been told of it."""
    def restore(self, pages: list[int], blocks: list[int], *, stream: int | None = None) -> Load:
        """Copies these pages, counted from the ticket's first, into these engine blocks; the others are let
        go. Never blocks; `stream` as in `WorkerClient.restore`. The load fails only if the device is lost or
        the client closed. Raises OrbitKVError for pages beyond `pages`, for blocks that do not fit, and for
        the second call."""
    def release(self) -> None:
        """Lets the pages go; idempotent. Does nothing to a load."""

class Load:
    def poll(self) -> bool:
        """True when no byte of it moves any more: done, failed or aborted."""
    def wait_layer(self, layer: int, timeout_ms: int) -> bool:
        """Waits until regions 0 … `layer` of all pages have landed; False on timeout or failure."""
    def order_layer(self, layer: int, stream: int, timeout_ms: int) -> int:
        """CUDA devices: waits until the copies of regions 0 … `layer` of all pages are queued, then makes the
        stream come after them; never waits for the copies themselves. LAYER_COMPLETE, LAYER_ORDERED,
        LAYER_FAILED or LAYER_TIMED_OUT. Pages that failed alone do not count: `wait_checked` and
        `failed_blocks` tell."""
    def wait_checked(self, timeout_ms: int) -> bool:
        """Waits until every checksum that is compared has been. From then on `failed_blocks` is right for
        layers that a stream was ordered after, whether the copy has ended or not."""
    def wait(self, timeout_ms: int) -> bool:
        """Waits until `poll` would be True."""
    def abort(self, timeout_ms: int) -> bool:
        """Stops it; True when no byte moves any more."""
    def failed_blocks(self) -> list[int]:
        """Engine blocks whose page did not land, complete and verified. Valid once `poll` is True."""

class Save:
    def poll(self) -> bool:
        """True when the source blocks are not read any more."""
    def committed(self) -> int:
        """Pages committed so far."""
