//! Coverage marks: each guard of the core sets one, and a simulation in which one is never hit fails.

macro_rules! marks {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// A place in the core that tests must reach.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Mark { $($(#[$doc])* $name,)+ }

        impl Mark {
            /// All marks.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
        }
    };
}

marks! {
    /// A query was admitted at once.
    AdmittedAtOnce,
    /// A query waited for budget and was admitted later.
    AdmittedLater,
    /// A demand larger than its budget was served what fits.
    Bypassed,
    /// A bypassed demand found no room at all.
    BypassedToNothing,
    /// A query was blocked by the budget of its own instance only.
    InstanceBudgetBlocked,
    /// A waiting query reached its deadline.
    DeadlineMiss,
    /// A waiting query reached the operation lifetime.
    LifetimeMiss,
    /// A ready lease was not handed out in time.
    LeaseExpired,
    /// A query came while the instance was not active.
    InactiveMiss,
    /// A limit on operations ended a query.
    LimitMiss,
    /// A recovery was asked for.
    RecoveryAsked,
    /// A question for candidates had none.
    NoCandidates,
    /// A question for candidates had some.
    CandidatesFound,
    /// A recovery was refused by the contract.
    RecoveryRefused,
    /// A page whose group needs no chain was saved.
    SavedUnchained,
    /// A page of an earlier run was found.
    Found,
    /// A page was found whose name is stored already.
    FoundAgain,
    /// A shard was found of what has been forgotten, or that cannot be.
    FoundForgotten,
    /// A page of an earlier run lacks a shard.
    FoundPartly,
    /// A page was written because a demand got it.
    WrittenOnUse,
    /// The slower tier moved a shard.
    ExtentMoved,
    /// The slower tier cannot be read, or not be written.
    TierImpaired,
    /// The same revision came again and was answered again.
    QueryReplayed,
    /// A higher revision replaced a live one.
    RevisionReplaced,
    /// A lower revision was refused.
    RevisionStale,
    /// An ended operation was refused.
    OperationRetired,
    /// Same revision, other parameters.
    ParametersChanged,
    /// A restore was cancelled while workers copied.
    CancelDuringCopy,
    /// A released restore waited for a worker.
    ReleaseBeforeDone,
    /// A scheduler's connection ended with a ready lease: its workers were presumed to have it.
    PresumedHandedOut,
    /// A part of a lease was handed out.
    PartHandedOut,
    /// A restore named pages that are not leased, a part of a recovery, or others than it had named before.
    RestoreRefused,
    /// A worker was done before the owner's restore was read.
    DoneBeforeRestore,
    /// A copy ended after its operation began to drain.
    DrainedByDone,
    /// A drain ended by the exit of a worker's process.
    DrainedByExit,
    /// A drain ended by attestation.
    DrainedByAttest,
    /// A drain ended by a worker's fence answer.
    DrainedByFence,
    /// Slots being written were quarantined at socket close.
    Quarantined,
    /// Quarantine ended by process exit.
    QuarantineExit,
    /// Quarantine ended by attestation.
    QuarantineAttest,
    /// A commit was refused because the slot had left the session's custody.
    CommitOutOfCustody,
    /// A commit completed a page that somebody else had sealed.
    DuplicateCommit,
    /// A commit came for a page that had been condemned.
    CommitCondemned,
    /// A page became visible.
    Sealed,
    /// One shard was committed, others were missing.
    PartlySealed,
    /// A reservation met a page that exists.
    ReserveExists,
    /// A reservation met a page that its own instance is saving.
    ReservePending,
    /// A reservation was repeated and answered again.
    ReserveReplayed,
    /// A reservation found no slot for the moment.
    ReserveBusy,
    /// A reservation found nothing to evict.
    ReserveRefused,
    /// The share for unsealed pages was used up.
    FillingCapped,
    /// A save was given back.
    SaveAborted,
    /// A leaf was evicted.
    Evicted,
    /// A parent became a leaf by the eviction of its last child.
    ParentBecameLeaf,
    /// A page was sealed after one that follows it.
    SealedAfterChild,
    /// A page of another class made room for a segment.
    SegmentReclaimed,
    /// A bad page was condemned.
    BadPage,
    /// The check of memory found a page as it should be.
    Scrubbed,
    /// The check of memory found a page that has changed.
    ScrubFoundBad,
    /// A page was forgotten while the check of memory read it.
    ForgottenWhileScrubbed,
    /// A leased page was condemned and kept until its lease ended.
    CondemnedWhileLeased,
    /// A namespace was reset.
    Reset,
    /// An older epoch of a client was closed by a newer one.
    EpochFenced,
    /// A stale epoch was refused.
    EpochStale,
    /// A seat was refused.
    SeatTaken,
    /// A worker was asked to fence a scheduler session.
    FenceAsked,
    /// A worker's fence answer ended reservations that it never wrote.
    FencedWrites,
    /// A segment could not be had.
    SegmentFailed,
    /// A page reached the slower tier.
    Written,
    /// A write to the slower tier failed.
    WriteFailed,
    /// Too many writes at once: a page was not written.
    WriteDropped,
    /// A page was forgotten while it was written.
    ForgottenWhileWritten,
    /// A demand reads from the slower tier.
    ReadBegun,
    /// A demand joined a read of another.
    ReadShared,
    /// A read failed, or its bytes did not match.
    ReadFailed,
    /// A read took so long that nobody waits for it any more.
    ReadOverdue,
    /// A page was forgotten while it was read.
    ForgottenWhileRead,
    /// A page was read that somebody had saved meanwhile.
    ReadTwice,
    /// A read waits for memory.
    ReadStarved,
    /// There is no memory for a read: the plan ends there.
    ReadRefused,
    /// The next batch of a demand was submitted.
    NextBatch,
    /// The limit of batches ended a plan.
    BatchLimit,
    /// A deadline ended reads, and the prefix that was there was answered.
    PrefixAtDeadline,
    /// A deadline ended reads before the first page was there.
    NothingAtDeadline,
    /// A demand stopped while pages were read for it.
    StoppedWhileReading,
    /// A read ended after the demand that paid for it had stopped.
    Landed,
    /// The slower tier dropped a page.
    ExtentLost,
    /// A preparation began.
    PreparationBegun,
    /// A warm-up began.
    WarmUpBegun,
    /// A range was larger than the speculative share.
    SpeculationTooLarge,
    /// Too many speculative operations.
    SpeculationLimit,
    /// Reading ahead gave way to demands.
    SpeculationYields,
    /// A preparation was claimed when it was complete.
    ClaimedPrepared,
    /// A preparation was claimed while it was read.
    ClaimedPreloading,
    /// The claim named other pages.
    ClaimMismatch,
    /// A page was forgotten between its preparation and the claim.
    ForgottenWhilePrepared,
    /// A preparation was kept by its owner.
    Kept,
    /// A preparation was not claimed in time.
    PreparationExpired,
    /// A page that was read ahead was restored.
    AheadRestored,
    /// A page that was read ahead left memory unused.
    AheadUnused,
    /// A strict demand missed because a part of it was not there.
    StrictMiss,
    /// A demand that waits for its full prefix outlived its deadline.
    WaitedForFullPrefix,
    /// A query left pages alone that would have had to be read.
    LeftStored,
}

/// A set of marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks(u128);

const _: () = assert!(Mark::ALL.len() <= 128);

impl Marks {
    pub(crate) fn hit(&mut self, mark: Mark) {
        self.0 |= 1 << mark as u8;
    }

    pub(crate) fn has(self, mark: Mark) -> bool {
        self.0 & (1 << mark as u8) != 0
    }
}
