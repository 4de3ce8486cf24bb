//! Room for a slot: a free one, a new segment, the coldest leaf, or the segment of a colder class.

use super::Core;
use crate::policy::{Policy, Pool};
use crate::slab::PageId;
use crate::slots::{Class, Segment, SlotState};
use crate::{Effect, Mark, Plant, SegmentId};

/// Whether a slot can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// There is a free slot.
    Now,
    /// A segment is on its way.
    Soon,
    /// Everything is leased, in custody or being saved.
    No,
}

impl Core {
    /// Makes room for one slot of a class.
    pub(super) fn make_room(&mut self, class: Class, effects: &mut Vec<Effect>) -> Room {
        if self.slots.free_slots(class, 1) > 0 {
            return Room::Now;
        }
        if self.grow(class, effects) {
            return Room::Soon;
        }
        while self.reclaim_empty(class, effects) {
            if self.grow(class, effects) {
                return Room::Soon;
            }
        }
        let pool = Pool { namespace: class.namespace, slot_bytes: class.slot_bytes };
        if self.planted(Plant::EvictLeased) && self.evict_leased(pool) {
            return Room::Now;
        }
        loop {
            let own = self.policy.victim(pool);
            let other = self.policy.victim_elsewhere(pool);
            let colder = match (own, other) {
                (Some(own), Some(other)) => other.last_use < own.last_use,
                (None, other) => other.is_some(),
                (Some(_), None) => false,
            };
            if colder && self.reclaim(pool, effects) && self.grow(class, effects) {
                return Room::Soon;
            }
            let Some(victim) = own else { return Room::No };
            self.evict(victim.page);
            if self.slots.free_slots(class, 1) > 0 {
                return Room::Now;
            }
        }
    }

    fn evict(&mut self, page: PageId) {
        self.mark(Mark::Evicted);
        self.counters.evicted_pages += 1;
        self.condemn(page);
    }

    /// Drops a segment of another class in which nothing is left, as after a reset: no page of it can be
    /// a victim, so eviction alone would never give it back.
    fn reclaim_empty(&mut self, class: Class, effects: &mut Vec<Effect>) -> bool {
        if self.now < self.grow_after {
            return false;
        }
        // A page needs a slot of every shard. Shards of one pool take from each other only to get a first
        // segment at all: anything more would drop for one shard what was grown for another, for ever.
        let pooled = |c: Class| (c.namespace, c.slot_bytes) == (class.namespace, class.slot_bytes);
        let last = |c: Class| self.slots.segments.values().filter(|s| s.class == c).nth(1).is_none();
        let keeps = |c: Class| pooled(c) && (self.slots.has(class) || last(c));
        let unused = |s: &Segment| s.ready && s.empty() && !s.awaits_use(self.now);
        let mut all = self.slots.segments.iter();
        let found = all.find(|(_, s)| s.class != class && unused(s) && !keeps(s.class));
        let Some((&segment, _)) = found else {
            return false;
        };
        self.drop_segment(segment);
        effects.push(Effect::DropSegment { segment });
        self.mark(Mark::SegmentReclaimed);
        true
    }

    /// Empties the segment of the coldest page outside `pool`, if nothing in it must stay. Children that
    /// live elsewhere lose their parent; no lookup reaches them again, so they age out.
    fn reclaim(&mut self, pool: Pool, effects: &mut Vec<Effect>) -> bool {
        let Some(victim) = self.policy.victim_elsewhere(pool) else {
            return false;
        };
        let Some(page) = self.index.pages.get(victim.page) else {
            return false;
        };
        let segments: Vec<SegmentId> = page.parts().map(|p| p.slot.segment).collect();
        let Some(pages) = self.evictable_pages(&segments) else {
            return false;
        };
        for page in pages {
            self.evict(page);
        }
        let mut dropped = false;
        for segment in segments {
            if self.slots.segments.get(&segment).is_some_and(|s| s.ready && s.empty()) {
                self.drop_segment(segment);
                effects.push(Effect::DropSegment { segment });
                dropped = true;
            }
        }
        if dropped {
            self.mark(Mark::SegmentReclaimed);
        }
        dropped
    }

    /// The pages in these segments, or `None` if one of them must stay.
    fn evictable_pages(&self, segments: &[SegmentId]) -> Option<Vec<PageId>> {
        let mut pages = Vec::new();
        for segment in segments {
            let used = self.slots.segments.get(segment)?.slots.iter();
            for slot in used.filter(|s| s.state != SlotState::Free) {
                let id = slot.page?;
                let page = self.index.pages.get(id)?;
                let sealed = self.index.sealed(&page.key) == Some(id);
                let leased = self.index.pages.usage(id).is_none_or(|usage| usage.leases > 0);
                if !sealed || leased || page.writing || slot.readers > 0 || self.is_scrubbed(id) {
                    return None;
                }
                pages.push(id);
            }
        }
        pages.sort_unstable();
        pages.dedup();
        Some(pages)
    }

    /// The defect of evicting without a look at leases.
    fn evict_leased(&mut self, pool: Pool) -> bool {
        let leased =
            self.index.pages.iter().find(|(id, p)| {
                self.is_leased(*id) && self.as_victim(*id, p).is_some_and(|v| v.pool == pool)
            });
        let Some((id, page)) = leased.map(|(id, page)| (id, page.clone())) else {
            return false;
        };
        for part in page.parts() {
            self.end_scrub(part.slot);
            if let Some(slot) = self.slots.get_mut(part.slot) {
                (slot.readers, slot.writing) = (0, false);
                slot.state = SlotState::Resident;
            }
            self.slots.free(part.slot);
        }
        self.index.hide(id);
        self.index.pages.remove(id);
        true
    }
}
