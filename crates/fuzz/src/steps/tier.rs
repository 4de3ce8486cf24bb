//! A slower tier without bytes, and the check of memory: what is under way, and which extents there are.

use super::cast::{GROUP, hash};
use crate::bytes::Bytes;
use orbitkv_core::{
    Effect, Event, ExtentId, FoundShard, NamespaceDigest, SegmentId, ShardId, SlotRef, StoredName,
    StoredShard,
};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct Tier {
    /// Begun and not ended, the oldest first.
    writes: Vec<(SlotRef, StoredName)>,
    reads: Vec<SlotRef>,
    /// Slots that the check of memory reads.
    scrubs: Vec<SlotRef>,
    extents: BTreeMap<ExtentId, StoredName>,
    /// Dropped by the tier itself; the core may not have heard of it when it gives them up.
    lost: BTreeSet<ExtentId>,
    last_extent: u64,
}

impl Tier {
    /// Does what the core wants, and checks that it may want it.
    pub(super) fn carry_out(&mut self, effect: &Effect) {
        match *effect {
            Effect::Write { slot, shard } => {
                assert!(!self.uses(slot), "{slot:?} is written twice at once");
                self.writes.push((slot, shard.name));
            }
            Effect::Read { slot, extent, name, .. } => {
                assert!(
                    !self.uses(slot) && !self.scrubs_place_of(slot),
                    "a read fills {slot:?}, which is in use"
                );
                assert_eq!(self.extents.get(&extent), Some(&name), "{extent:?} is read, and is not there");
                self.reads.push(slot);
            }
            Effect::Erase { extent } => {
                let known = self.extents.remove(&extent).is_some() || self.lost.remove(&extent);
                assert!(known, "{extent:?} is erased twice");
            }
            Effect::Scrub { slot, .. } => {
                assert!(!self.reads.contains(&slot), "{slot:?} is checked while it is filled");
                assert!(!self.scrubs_place_of(slot), "{slot:?} is checked twice at once");
                self.scrubs.push(slot);
            }
            Effect::DropSegment { segment } => {
                let scrubbed = self.scrubs.iter().any(|slot| slot.segment == segment);
                let used = scrubbed || self.busy(|slot| slot.segment == segment);
                assert!(!used, "{segment:?} is dropped while in use");
            }
            _ => {}
        }
    }

    /// Whether a slot is being copied from or to, whatever its generation.
    fn uses(&self, slot: SlotRef) -> bool {
        self.busy(|other| place(other) == place(slot))
    }

    /// Whether an earlier generation of a slot is still being copied from or to.
    pub(super) fn uses_an_older(&self, slot: SlotRef) -> bool {
        let older = |other: SlotRef| place(other) == place(slot) && other != slot;
        self.busy(older) || self.scrubs.iter().any(|other| older(*other))
    }

    fn scrubs_place_of(&self, slot: SlotRef) -> bool {
        self.scrubs.iter().any(|other| place(*other) == place(slot))
    }

    fn busy(&self, is: impl Fn(SlotRef) -> bool) -> bool {
        self.writes.iter().map(|(slot, _)| slot).chain(&self.reads).any(|slot| is(*slot))
    }

    /// A write ends. Low bits: which, counted from the oldest; bit 7: it failed.
    pub(super) fn end_write(&mut self, choice: u8) -> Option<Event<'static>> {
        let (slot, name) = take(&mut self.writes, choice)?;
        let works = choice & 128 == 0;
        if works {
            self.last_extent += 1;
            self.extents.insert(ExtentId(self.last_extent), name);
        }
        Some(Event::Written { slot, extent: works.then_some(ExtentId(self.last_extent)) })
    }

    /// As [`Tier::end_write`], for a read.
    pub(super) fn end_read(&mut self, choice: u8) -> Option<Event<'static>> {
        let slot = take(&mut self.reads, choice)?;
        Some(Event::ReadDone { slot, good: choice & 128 == 0 })
    }

    /// As [`Tier::end_write`], for the check of a slot.
    pub(super) fn end_scrub(&mut self, choice: u8) -> Option<Event<'static>> {
        let slot = take(&mut self.scrubs, choice)?;
        Some(Event::Scrubbed { slot, good: choice & 128 == 0 })
    }

    /// A read is not waited for any more, and goes on. Low bits: which, counted from the oldest.
    pub(super) fn take_long(&self, choice: u8) -> Option<Event<'static>> {
        let nth = usize::from(choice & 127) % self.reads.len().max(1);
        self.reads.get(nth).map(|&slot| Event::ReadOverdue { slot })
    }

    /// The tier drops an extent by itself.
    pub(super) fn lose(&mut self, choice: u8) -> Option<Event<'static>> {
        let nth = usize::from(choice) % self.extents.len().max(1);
        let (&extent, &name) = self.extents.iter().nth(nth)?;
        self.extents.remove(&extent);
        self.lost.insert(extent);
        Some(Event::ExtentLost { name, extent })
    }

    /// The end of something that is not under way: a slot named by nobody, or long ended.
    pub(super) fn stray(&self, slot: SlotRef, bytes: &mut Bytes<'_>) -> Option<Event<'static>> {
        let choice = bytes.u8();
        let good = choice & 128 == 0;
        let event = match choice & 1 {
            0 => Event::Written { slot, extent: None },
            _ => Event::ReadDone { slot, good },
        };
        (!self.uses(slot)).then_some(event)
    }

    /// Pages that have an extent, each by the name of its first shard.
    pub(super) fn pages(&self) -> BTreeSet<StoredName> {
        self.extents.values().map(|name| StoredName { shard: ShardId(0), ..*name }).collect()
    }

    /// A shard that an earlier run has left. Bits of `choice`: 0 to 3 the page, 4 and 5 the shard, 6 whether the
    /// page has two shards or one, 7 the namespace.
    pub(super) fn find(&mut self, choice: u8) -> FoundShard {
        let (shard, shards) = (ShardId(u16::from(choice >> 4 & 3)), 1 + u16::from(choice >> 6 & 1));
        let namespace = NamespaceDigest([if choice & 128 == 0 { 0 } else { 4 }; 32]);
        let name = StoredName { namespace, group: GROUP, hash: hash(choice & 15), shard };
        self.last_extent += 1;
        let extent = ExtentId(self.last_extent);
        self.extents.insert(extent, name);
        let (parent, depth) = ((choice & 15).checked_sub(1).map(hash), u32::from(choice & 15));
        let shard = StoredShard { name, shards, parent, depth, payload_bytes: 4096, crc: 42 };
        FoundShard { shard, extent }
    }

    /// The tier moves an extent.
    pub(super) fn relocate(&mut self, choice: u8) -> Option<Event<'static>> {
        let nth = usize::from(choice) % self.extents.len().max(1);
        let (&from, &name) = self.extents.iter().nth(nth)?;
        self.extents.remove(&from);
        self.lost.insert(from);
        self.last_extent += 1;
        let to = ExtentId(self.last_extent);
        self.extents.insert(to, name);
        Some(Event::ExtentMoved { name, from, to })
    }
}

fn place(slot: SlotRef) -> (SegmentId, u32) {
    (slot.segment, slot.index)
}

fn take<T>(list: &mut Vec<T>, choice: u8) -> Option<T> {
    let nth = usize::from(choice & 127) % list.len().max(1);
    (nth < list.len()).then(|| list.remove(nth))
}
