//! What the core wants done. The shell carries effects out in order.

use crate::{
    BlockHash, ExtentId, GroupId, NamespaceDigest, NamespaceId, OperationId, Refusal, Revision, SegmentId,
    SessionId, ShardId, SlotRef, StoredName, StoredShard, Ticket,
};

/// One shard of a leased or granted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePart {
    /// Where the bytes are, or go.
    pub slot: SlotRef,
    /// CRC-64/NVME of the payload; zero while the page is being saved.
    pub crc: u64,
}

/// Pages of one cache group in a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredRange {
    /// Which group.
    pub group: GroupId,
    /// Number of the first page, counted from the start of the sequence.
    pub first_page: u32,
    /// Pages in the range.
    pub pages: u32,
    /// Shards of each page.
    pub shards: u16,
}

/// Why a query has no pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissReason {
    /// The first page is not here.
    Absent,
    /// The instance is not active: a rank is missing or its self-test has not passed.
    Inactive,
    /// The deadline passed while the query waited for budget, or before its first page was read.
    Deadline,
    /// The operation lifetime passed.
    Lifetime,
    /// A limit on operations was reached.
    Limit,
    /// A lease was not handed out in time: its owner must release it, which ends it. Or a preparation was
    /// not claimed in time: it has ended.
    Expired,
    /// A range that is not read ahead because it is larger than its share, or because demands come first;
    /// or nothing of a demand fits now: into its budget, which is smaller than the demand, or into memory.
    Budget,
}

/// The pushed state of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    /// Waits for budget or for reads; a final state will follow.
    Waiting,
    /// The longest sealed prefix, leased. `parts` holds `pages × shards`, page-major.
    Ready {
        /// Pages in the prefix.
        pages: u32,
        /// Shards of each page.
        shards: u16,
        /// All parts.
        parts: Vec<PagePart>,
    },
    /// All pages of a recovery, leased. `parts` holds the pages of one range after those of another, each
    /// page-major.
    Recovered {
        /// A range for each cache group of the contract.
        ranges: Vec<RecoveredRange>,
        /// All parts.
        parts: Vec<PagePart>,
    },
    /// A preparation has these pages leased; a claim answers with their parts.
    Prepared {
        /// Pages in the prefix.
        pages: u32,
    },
    /// A warm-up has ended.
    Warmed {
        /// Pages that it brought into memory.
        pages: u32,
    },
    /// No pages.
    Miss(MissReason),
}

/// The answer for one page of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Write it: one part a shard.
    Slots(Vec<PagePart>),
    /// Already sealed, or being saved by the same instance.
    Exists,
    /// No slot now; asking again later may succeed.
    Busy,
    /// No slot: nothing can be evicted, or saving is off.
    Refused,
}

/// A page and its grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageGrant {
    /// Which page.
    pub hash: BlockHash,
    /// The answer.
    pub grant: Grant,
}

/// One output of [`crate::Core::step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tell the owner the state of its query.
    Operation {
        /// Owner.
        session: SessionId,
        /// Its operation.
        operation: OperationId,
        /// Its version.
        revision: Revision,
        /// The state.
        outcome: OperationOutcome,
    },
    /// Tell the owner what the slower tier had to do with its query. The final state follows at once.
    TierReads {
        /// Owner.
        session: SessionId,
        /// Its operation.
        operation: OperationId,
        /// Its version.
        revision: Revision,
        /// Pages of the answer that were read for it.
        pages: u32,
        /// Pages behind the answer that are stored: it did not want them read, or not for so long.
        left_pages: u32,
        /// How long it read, from its admission on.
        micros: u64,
    },
    /// Answer a question for candidates.
    Candidates {
        /// Who asked.
        session: SessionId,
        /// As the question was named.
        operation: OperationId,
        /// Its version.
        revision: Revision,
        /// Tokens at which a recovery could end, ascending. Nothing is read, leased or reserved for them.
        boundaries: Vec<u32>,
    },
    /// Answer a reservation.
    Granted {
        /// Owner.
        session: SessionId,
        /// Its operation.
        operation: OperationId,
        /// Its version.
        revision: Revision,
        /// One for each page, in order.
        grants: Vec<PageGrant>,
    },
    /// A request broke a rule and had no effect.
    Refused {
        /// Who asked.
        session: SessionId,
        /// About which operation, if any.
        operation: Option<(OperationId, Revision)>,
        /// The rule.
        refusal: Refusal,
    },
    /// Tell a scheduler whether hits and saves are on.
    InstanceState {
        /// The scheduler.
        session: SessionId,
        /// On when every rank is connected and attested.
        active: bool,
    },
    /// Ask a worker for [`crate::Event::Fenced`].
    Fence {
        /// The worker.
        session: SessionId,
        /// The ended scheduler session.
        scheduler: SessionId,
    },
    /// A newer epoch of the same client replaced this session: close it.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// Create, map and populate a segment; answer with `SegmentReady` or `SegmentFailed`.
    GrowSegment {
        /// Its number.
        segment: SegmentId,
        /// Whose pages go there.
        namespace: NamespaceId,
        /// Which shard.
        shard: ShardId,
        /// Bytes from slot to slot.
        slot_bytes: u64,
        /// Bytes in all.
        bytes: u64,
    },
    /// Give a session the segment's descriptor.
    ShareSegment {
        /// The segment.
        segment: SegmentId,
        /// A worker of its shard.
        session: SessionId,
    },
    /// Copy a slot to the slower tier; answer with `Written`. The slot is not reused before.
    Write {
        /// What to read.
        slot: SlotRef,
        /// Whose bytes, behind the slot's header.
        shard: StoredShard,
    },
    /// Fill a slot from the slower tier and check it; answer with `ReadDone`. The slot is not reused before.
    Read {
        /// Where to.
        slot: SlotRef,
        /// Where from.
        extent: ExtentId,
        /// What must be there.
        name: StoredName,
        /// Bytes of the payload, behind the slot's header.
        payload_bytes: u32,
        /// CRC-64/NVME that the payload must have.
        crc: u64,
        /// For whom first: reads of different demands should take turns.
        ticket: Ticket,
        /// Whether a request waits for it; reads ahead of demand should let those pass.
        urgent: bool,
    },
    /// Compare the bytes of a slot with their checksum; answer with `Scrubbed`. The slot is not reused before.
    Scrub {
        /// What to read.
        slot: SlotRef,
        /// Bytes of the payload, behind the slot's header.
        payload_bytes: u32,
        /// CRC-64/NVME that the payload must have.
        crc: u64,
    },
    /// What was read ahead under this ticket has been claimed: its reads that have not begun are urgent now.
    Hasten {
        /// The ticket that its reads were submitted under.
        ticket: Ticket,
    },
    /// Nothing of this namespace that is in the slower tier now may ever be found again.
    ForgetNamespace {
        /// Which.
        namespace: NamespaceDigest,
    },
    /// The bytes there are not needed any more.
    Erase {
        /// Where.
        extent: ExtentId,
    },
    /// Nobody is in custody of any slot: give the memory back.
    DropSegment {
        /// The segment.
        segment: SegmentId,
    },
}
