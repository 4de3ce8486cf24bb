//! Planted defects: each is one line of the real core, switched on by the simulator to show that its
//! checkers would notice. Without the `plant` feature every switch is a constant `false`.

/// A defect that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plant {
    /// Slots being written by a client are freed when its socket closes.
    FreeAtSocketClose,
    /// A cancelled restore gives its pages back while a worker still copies.
    FreeOnCancel,
    /// A cancelled operation keeps its bytes charged for ever.
    LeakOnCancel,
    /// A lease runs out while a worker copies.
    ExpireDuringCopy,
    /// Eviction ignores leases.
    EvictLeased,
    /// A repeated query is charged again.
    DoubleCharge,
    /// A page is visible before all its shards are committed.
    PublishBeforeCommit,
    /// A lower revision replaces a higher one.
    AcceptStaleRevision,
    /// Bytes of pages that are still being read are given back when their demand stops.
    FreeReadingBytes,
    /// Pages are handed out while they are being read.
    HandOffUnread,
    /// A read counts as good whatever the disk said.
    TrustReads,
    /// Forgetting and reset do not reach the slower tier.
    KeepStored,
    /// Reads ahead of demand may own any share of the budgets.
    IgnoreShare,
    /// A preparation that nobody claims stays.
    KeepUnclaimed,
    /// A claim of other pages gets what was prepared.
    ClaimAnything,
    /// A recovery is answered with what is there of it.
    RecoverPartly,
    /// Quarantine survives the attestation of a reconnected client.
    KeepQuarantine,
    /// Slots are freed while the check of memory reads them.
    FreeScrubbed,
    /// A page that the check of memory found changed is kept.
    TrustScrub,
}

impl Plant {
    /// All of them, in order.
    pub const ALL: [Self; 19] = [
        Self::FreeAtSocketClose,
        Self::FreeOnCancel,
        Self::LeakOnCancel,
        Self::ExpireDuringCopy,
        Self::EvictLeased,
        Self::DoubleCharge,
        Self::PublishBeforeCommit,
        Self::AcceptStaleRevision,
        Self::FreeReadingBytes,
        Self::HandOffUnread,
        Self::TrustReads,
        Self::KeepStored,
        Self::IgnoreShare,
        Self::KeepUnclaimed,
        Self::ClaimAnything,
        Self::RecoverPartly,
        Self::KeepQuarantine,
        Self::FreeScrubbed,
        Self::TrustScrub,
    ];

    /// Command-line name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FreeAtSocketClose => "free-at-socket-close",
            Self::FreeOnCancel => "free-on-cancel",
            Self::LeakOnCancel => "leak-on-cancel",
            Self::ExpireDuringCopy => "expire-during-copy",
            Self::EvictLeased => "evict-leased",
            Self::DoubleCharge => "double-charge",
            Self::PublishBeforeCommit => "publish-before-commit",
            Self::AcceptStaleRevision => "accept-stale-revision",
            Self::FreeReadingBytes => "free-reading-bytes",
            Self::HandOffUnread => "hand-off-unread",
            Self::TrustReads => "trust-reads",
            Self::KeepStored => "keep-stored",
            Self::IgnoreShare => "ignore-share",
            Self::KeepUnclaimed => "keep-unclaimed",
            Self::ClaimAnything => "claim-anything",
            Self::RecoverPartly => "recover-partly",
            Self::KeepQuarantine => "keep-quarantine",
            Self::FreeScrubbed => "free-scrubbed",
            Self::TrustScrub => "trust-scrub",
        }
    }
}
