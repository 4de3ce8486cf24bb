//! Read-only looks, for metrics and checkers.

use super::{BUDGET_WAIT_BUCKETS, Core};
use crate::page::PageState;
use crate::slots::{Slot, SlotState};
use crate::{
    Config, Counters, Histogram, InstanceId, Ledger, Mark, Micros, NamespaceDigest, NamespaceId,
    OperationView, PageKey, Phase, SessionId, SlotRef, SlotView,
};

impl Core {
    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Counts since the start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How long the queries of [`Counters::budget_waits`] that wait no more have waited.
    #[must_use]
    pub fn budget_wait(&self) -> &Histogram<BUDGET_WAIT_BUCKETS> {
        &self.budget_wait
    }

    /// The books.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The latest time seen.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.now
    }

    /// Whether that guard was ever reached.
    #[must_use]
    pub fn marked(&self, mark: Mark) -> bool {
        self.marks.has(mark)
    }

    /// Bytes of all segments, growing ones included.
    #[must_use]
    pub fn pool_bytes(&self) -> u64 {
        self.slots.bytes
    }

    /// Bytes of slots in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.slots.used_bytes
    }

    /// Bytes granted to savers and not committed, quarantined ones included.
    #[must_use]
    pub fn filling_bytes(&self) -> u64 {
        self.filling_bytes
    }

    /// Bytes in quarantine.
    #[must_use]
    pub fn quarantined_bytes(&self) -> u64 {
        let segments = self.slots.segments.values();
        segments
            .map(|s| {
                let of = |s: &&Slot| matches!(s.state, SlotState::Quarantined(_));
                s.slots.iter().filter(of).count() as u64 * s.class.slot_bytes
            })
            .sum()
    }

    /// Segments, growing ones included.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.slots.segments.len()
    }

    /// Visible pages.
    #[must_use]
    pub fn sealed_pages(&self) -> usize {
        self.index.sealed_len()
    }

    /// Whether a page is visible.
    #[must_use]
    pub fn is_sealed(&self, key: &PageKey) -> bool {
        self.index.sealed(key).is_some()
    }

    /// Whose pages these are, for words to people.
    #[must_use]
    pub fn namespace(&self, id: NamespaceId) -> Option<NamespaceDigest> {
        self.digests.get(&id).copied()
    }

    /// Pages in the slower tier.
    #[must_use]
    pub fn stored_pages(&self) -> usize {
        self.stored.len()
    }

    /// Whether the page of a shard is in the slower tier.
    #[must_use]
    pub fn is_stored(&self, name: &crate::StoredName) -> bool {
        self.key_of(name).is_some_and(|key| self.stored.contains(&key))
    }

    /// Whether more may be found there that an earlier run has left.
    #[must_use]
    pub fn is_finding(&self) -> bool {
        self.finding.is_some()
    }

    /// Pages being written to the slower tier, and pages being read from it.
    #[must_use]
    pub fn tier_inflight(&self) -> (usize, usize) {
        (self.writes.len(), self.reads.len())
    }

    /// Pages of which the check of memory reads a slot.
    #[must_use]
    pub fn scrubbing_pages(&self) -> usize {
        self.scrub.pages.len()
    }

    /// Sessions open or not yet gone.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Whether a session is open, or closed with something still in its custody.
    #[must_use]
    pub fn knows_session(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Instances, with whether each is active and how many ranks are connected.
    pub fn instances(&self) -> impl Iterator<Item = (InstanceId, bool, usize)> + '_ {
        self.instances.iter().map(|(id, i)| (*id, i.active, i.workers.len()))
    }

    /// Every query that is not over.
    pub fn operations(&self) -> impl Iterator<Item = OperationView> + '_ {
        self.operations.iter().map(|(ticket, op)| OperationView {
            ticket,
            phase: op.phase,
            bytes: op.bytes(),
            lingering: op.lingering as usize,
            lingering_bytes: op.lingering_bytes,
            pages: op.pages.len(),
            owing: op.owing.len(),
        })
    }

    /// Queries in one phase.
    #[must_use]
    pub fn operations_in(&self, phase: Phase) -> usize {
        self.operations.iter().filter(|(_, op)| op.phase == phase).count()
    }

    /// Reservations with slots out.
    #[must_use]
    pub fn saves(&self) -> usize {
        self.saves.len()
    }

    /// Every slot in use.
    pub fn slots(&self) -> impl Iterator<Item = SlotView> + '_ {
        self.slots.used().map(|(at, slot)| self.slot_view(at, slot))
    }

    /// One slot, if it is in use and has not been reused since.
    #[must_use]
    pub fn slot(&self, at: SlotRef) -> Option<SlotView> {
        self.slots.get(at).map(|slot| self.slot_view(at, slot))
    }

    fn slot_view(&self, at: SlotRef, slot: &Slot) -> SlotView {
        let page = slot.page.and_then(|id| self.index.pages.get(id));
        let is = |state| page.is_some_and(|page| page.state == state);
        SlotView {
            slot: at,
            state: slot.state,
            readers: slot.readers,
            writing: slot.writing,
            scrubbing: slot.scrubbing,
            spare: is(PageState::Spare),
            leased: slot.page.and_then(|id| self.index.pages.usage(id)).is_some_and(|usage| usage.leases > 0),
            condemned: is(PageState::Condemned),
            key: page.map(|p| p.key),
        }
    }
}
