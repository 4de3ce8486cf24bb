//! Which page goes when room is needed.

mod lru;

pub(crate) use lru::LeafLru;

use crate::NamespaceId;
use crate::slab::PageId;

/// Pages that compete for the same memory: one namespace, one slot size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pool {
    pub(crate) namespace: NamespaceId,
    pub(crate) slot_bytes: u64,
}

/// A candidate for eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) pool: Pool,
    pub(crate) page: PageId,
    pub(crate) last_use: u64,
}

/// Orders evictable pages. The core adds a page when it is sealed, has no lease and no resident child,
/// and takes it out as soon as one of these changes: a policy never sees a page that must stay.
pub(crate) trait Policy {
    /// The page may go.
    fn add(&mut self, victim: Victim);
    /// The page must stay, or is gone.
    fn remove(&mut self, victim: Victim);
    /// Whom to evict for room in `pool`.
    fn victim(&self, pool: Pool) -> Option<Victim>;
    /// The least valuable page outside `pool`.
    fn victim_elsewhere(&self, pool: Pool) -> Option<Victim>;
    /// Whether the page is a candidate.
    fn contains(&self, victim: Victim) -> bool;
    /// Number of candidates.
    fn len(&self) -> usize;
}
