//! What happens to the core.

use crate::{
    BlockHash, ClientId, ExtentId, FoundShard, GroupId, OperationId, Revision, SegmentId, SessionId,
    SessionSpec, SlotRef, StoredName, Ticket,
};
use orbitkv_contract::GroupRange;

/// What a query is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A request needs the pages now. For a live preparation of the same pages it is the claim.
    #[default]
    Demand,
    /// A request will need them soon: they are leased for it until it claims them or stops asking.
    Prepare,
    /// Somebody may need them: they are brought into memory and left there.
    WarmUp,
}

/// A demand for the longest prefix of `hashes` that can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand<'a> {
    /// Cache group the hashes belong to.
    pub group: GroupId,
    /// Block hashes in prefix order.
    pub hashes: &'a [BlockHash],
    /// The wait for budget and reads ends this long after the event; `None` leaves the operation lifetime.
    pub deadline_ms: Option<u32>,
    /// What for.
    pub mode: Mode,
    /// All of it or nothing.
    pub strict: bool,
    /// Its producer is still writing: neither batches nor deadlines cut it short, only the operation lifetime.
    pub wait_full_prefix: bool,
    /// Nothing is read for it: the answer is what is in memory, and how much more is stored.
    pub memory_only: bool,
}

impl<'a> Demand<'a> {
    /// A dense foreground demand without a deadline.
    #[must_use]
    pub fn prefix(group: GroupId, hashes: &'a [BlockHash]) -> Self {
        Self {
            group,
            hashes,
            deadline_ms: None,
            mode: Mode::Demand,
            strict: false,
            wait_full_prefix: false,
            memory_only: false,
        }
    }
}

/// A demand for all that the engine needs to go on at a token boundary: pages of every cache group, as its
/// recovery contract says. All of it or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery<'a> {
    /// The engine holds what it needs up to here: a boundary.
    pub start_tokens: u32,
    /// Where it will go on: a later boundary.
    pub end_tokens: u32,
    /// Hashes of the sequence from its first token on, one every `hash_tokens` of the registration.
    pub hashes: &'a [BlockHash],
    /// Ranges that the engine has room for; must be those of the contract. Empty: whatever it says.
    pub ranges: &'a [GroupRange],
    /// As in [`Demand::deadline_ms`].
    pub deadline_ms: Option<u32>,
    /// What for.
    pub mode: Mode,
}

/// Pages that a client wants to save, in prefix order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveRequest<'a> {
    /// Cache group of the pages.
    pub group: GroupId,
    /// Hash of the block before the first one; `None` when the first page starts a prefix.
    pub parent: Option<BlockHash>,
    /// Depth of the first page in its chain, in pages.
    pub first_depth: u32,
    /// Block hashes in prefix order.
    pub hashes: &'a [BlockHash],
}

/// Why nobody of an ended session can touch pool bytes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The pidfd of its process fired.
    ProcessExit,
    /// The same process, connected again, attested that all copies of the old session ended.
    Attested,
}

/// One input of [`crate::Core::step`]. Borrowed parts are copied only if they are kept.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A client connected and said who it is.
    SessionOpened {
        /// Fresh number given by the shell.
        session: SessionId,
        /// The client behind it.
        client: ClientId,
        /// Grows with every connection of this client; an older one is fenced.
        epoch: u32,
        /// Role, instance, namespace and groups.
        spec: &'a SessionSpec,
    },
    /// The connection ended. Interest ends; custody does not.
    SessionClosed {
        /// The session.
        session: SessionId,
    },
    /// Nobody of that session touches pool bytes any more.
    SessionGone {
        /// A closed session.
        session: SessionId,
        /// How that is known.
        evidence: Evidence,
    },
    /// A worker's verdict on its own layout and path probes.
    Attest {
        /// The worker.
        session: SessionId,
        /// Whether both probes passed.
        passed: bool,
    },
    /// A foreground demand.
    Query {
        /// Owner.
        session: SessionId,
        /// Its operation.
        operation: OperationId,
        /// Its version.
        revision: Revision,
        /// What is wanted.
        demand: Demand<'a>,
    },
    /// A demand for a boundary.
    Recover {
        /// Owner.
        session: SessionId,
        /// Its operation.
        operation: OperationId,
        /// Its version.
        revision: Revision,
        /// What is wanted.
        recovery: Recovery<'a>,
    },
    /// At which boundaries could a recovery end? Metadata alone: it begins nothing.
    Candidates {
        /// Who asks.
        session: SessionId,
        /// Name of the question; it may be that of the recovery that follows.
        operation: OperationId,
        /// Its version.
        revision: Revision,
        /// As in [`Recovery::start_tokens`].
        start_tokens: u32,
        /// As in [`Recovery::hashes`].
        hashes: &'a [BlockHash],
    },
    /// The owner hands pages of a ready lease to the workers. The whole lease stays as it is until its end.
    Restore {
        /// Owner.
        session: SessionId,
        /// Its operation.
        operation: OperationId,
        /// Its version.
        revision: Revision,
        /// The first of those pages, in the order of the lease.
        first: u32,
        /// How many: at least one, and all of a recovery.
        pages: u32,
    },
    /// The owner needs the lease no more.
    Release {
        /// Owner.
        session: SessionId,
        /// Its operation.
        operation: OperationId,
        /// Its version.
        revision: Revision,
    },
    /// The owner lost interest.
    Cancel {
        /// Owner.
        session: SessionId,
        /// Its operation.
        operation: OperationId,
        /// Its version.
        revision: Revision,
    },
    /// The owner still wants what it has prepared.
    Keep {
        /// Owner.
        session: SessionId,
        /// Its operation.
        operation: OperationId,
        /// Its version.
        revision: Revision,
    },
    /// A worker has finished, or given up with no copy running, its part of a restore.
    CopyDone {
        /// The worker.
        session: SessionId,
        /// The restore.
        ticket: Ticket,
    },
    /// A worker found bytes that do not match their checksum.
    BadPage {
        /// The worker.
        session: SessionId,
        /// Where.
        slot: SlotRef,
    },
    /// A client wants slots for pages it will save.
    Reserve {
        /// Owner.
        session: SessionId,
        /// Its operation.
        operation: OperationId,
        /// Its version.
        revision: Revision,
        /// Which pages.
        request: SaveRequest<'a>,
    },
    /// A worker has written its shard of a page.
    Commit {
        /// The worker.
        session: SessionId,
        /// The slot it wrote.
        slot: SlotRef,
        /// The page it believes it wrote; must be the one the slot was reserved for.
        hash: BlockHash,
        /// CRC-64/NVME of the payload.
        crc: u64,
    },
    /// A worker gives a slot back unwritten, with no copy running.
    Abort {
        /// The worker, or the owner of a reservation it never handed out.
        session: SessionId,
        /// The slot.
        slot: SlotRef,
    },
    /// A worker attests: no copy for that scheduler session runs, and none will start.
    Fenced {
        /// The worker.
        session: SessionId,
        /// The ended scheduler session.
        scheduler: SessionId,
    },
    /// Forget these pages of the session's namespace.
    Forget {
        /// Who asks.
        session: SessionId,
        /// Cache group.
        group: GroupId,
        /// Which pages.
        hashes: &'a [BlockHash],
    },
    /// Forget every page of the session's namespace.
    Reset {
        /// Who asks.
        session: SessionId,
    },
    /// Forget every page that is sealed and not leased, of all namespaces.
    DropUnleased,
    /// A segment asked for by [`crate::Effect::GrowSegment`] is mapped and populated.
    SegmentReady {
        /// The segment.
        segment: SegmentId,
    },
    /// That segment could not be had.
    SegmentFailed {
        /// The segment.
        segment: SegmentId,
    },
    /// A write asked for by [`crate::Effect::Write`] has ended.
    Written {
        /// The slot it read.
        slot: SlotRef,
        /// Where the bytes are now; `None` if they are not.
        extent: Option<ExtentId>,
    },
    /// A read asked for by [`crate::Effect::Read`] has ended; nothing writes into the slot any more.
    ReadDone {
        /// The slot it wrote.
        slot: SlotRef,
        /// Whether the bytes are there and have the checksum that was asked for.
        good: bool,
    },
    /// A read asked for by [`crate::Effect::Read`] takes so long that nobody should wait for it. It has not ended:
    /// its slot is written still, and [`Event::ReadDone`] comes when it is not.
    ReadOverdue {
        /// The slot it writes.
        slot: SlotRef,
    },
    /// The slower tier has dropped a shard of a page.
    ExtentLost {
        /// Which.
        name: StoredName,
        /// Where it was.
        extent: ExtentId,
    },
    /// The slower tier has moved a shard of a page. Reads of the old place that were submitted still end.
    ExtentMoved {
        /// Which.
        name: StoredName,
        /// Where it was.
        from: ExtentId,
        /// Where it is.
        to: ExtentId,
    },
    /// A shard of a page is in the slower tier since before this process began. Of two with one name the newer
    /// comes first.
    Found(&'a FoundShard),
    /// The slower tier has told of everything that it found.
    FoundAll,
    /// What the slower tier can do from now on. It begins with both.
    TierState {
        /// It can be read.
        reads: bool,
        /// It can be written.
        writes: bool,
    },
    /// Have the next pages in memory read again and compared with their checksums: about so many bytes of
    /// payload, or one slot. Nothing happens while an earlier round has not ended.
    Scrub {
        /// At most, if more than one slot is read.
        bytes: u64,
    },
    /// A check asked for by [`crate::Effect::Scrub`] has ended; nobody reads the slot for it any more.
    Scrubbed {
        /// The slot it read.
        slot: SlotRef,
        /// Whether the bytes have their checksum.
        good: bool,
    },
    /// Time has passed.
    Tick,
}
