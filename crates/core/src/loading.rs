//! A demand whose pages are being made resident.

use crate::slab::PageId;
use crate::{Micros, Ticket};
use smallvec::SmallVec;

/// A page of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planned {
    /// In the slower tier, and its read is not submitted.
    Stored,
    /// In DRAM, and of no more concern: nobody leases what is only warmed up.
    Passed,
    /// Leased. It was in DRAM, or a read brings it there.
    Leased { page: PageId, read: bool },
}

impl Planned {
    pub(crate) fn page(self) -> Option<PageId> {
        match self {
            Self::Stored | Self::Passed => None,
            Self::Leased { page, .. } => Some(page),
        }
    }
}

/// What an admitted demand still has to read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loading {
    /// Its pages in prefix order.
    pub(crate) plan: Vec<Planned>,
    /// Everything before is leased.
    pub(crate) next: usize,
    /// Leased pages that are being read.
    pub(crate) pending: usize,
    /// A page was cut off because there was no memory for it.
    pub(crate) refused: bool,
    /// Batches that were begun.
    pub(crate) batches: u32,
    /// When it was admitted.
    pub(crate) since: Micros,
}

/// A page that is being read from the slower tier.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// Shards whose read has not ended.
    pub(crate) pending: usize,
    pub(crate) failed: bool,
    /// It takes too long: nobody waits for it any more.
    pub(crate) overdue: bool,
    /// Begun ahead of demand.
    pub(crate) ahead: bool,
    /// For whom it was begun.
    pub(crate) ticket: Ticket,
    /// Demands that lease it.
    pub(crate) waiters: SmallVec<[Ticket; 2]>,
    /// Demands that have stopped, and what each pays until it has ended.
    pub(crate) lingerers: SmallVec<[(Ticket, u64); 1]>,
}
