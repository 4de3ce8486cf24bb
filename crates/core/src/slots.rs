//! Segments and their slots: fixed-size slabs, one class of slot to a segment.

use crate::slab::PageId;
use crate::{Micros, NamespaceId, SegmentId, SessionId, ShardId, SlotRef};
use std::collections::{BTreeMap, BTreeSet};

/// A segment that was never used belongs for this long to the class that it was grown for.
const FIRST_USE_MS: u64 = 1_000;

/// What a slot is used for. Reader custody is counted beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nobody's.
    Free,
    /// A read from a slower tier writes it.
    Reading,
    /// A client of that session may write it.
    Filling(SessionId),
    /// Holds the committed bytes of a shard.
    Resident,
    /// That session has ended, its process may still write.
    Quarantined(SessionId),
}

/// One slot.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) state: SlotState,
    /// Workers that may be copying out of it.
    pub(crate) readers: u32,
    /// A write to the slower tier reads it.
    pub(crate) writing: bool,
    /// The check of memory reads it.
    pub(crate) scrubbing: bool,
    pub(crate) page: Option<PageId>,
}

/// What distinguishes memory: a rank maps only its own shard, and slots of a segment have one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Class {
    pub(crate) namespace: NamespaceId,
    pub(crate) shard: ShardId,
    pub(crate) slot_bytes: u64,
}

/// One memory segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) class: Class,
    pub(crate) bytes: u64,
    pub(crate) ready: bool,
    ready_at: Micros,
    pub(crate) slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Segment {
    /// Whether no slot is in use.
    pub(crate) fn empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Whether it was grown for somebody who has not come back yet. Taking it away would make two
    /// savers grow and drop in turn, and neither would ever get a slot.
    pub(crate) fn awaits_use(&self, now: Micros) -> bool {
        let fresh = self.slots.iter().all(|slot| slot.generation == 0);
        fresh && now < self.ready_at.plus_ms(FIRST_USE_MS)
    }
}

/// What a class has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Segments that are on their way.
    pub(crate) growing: usize,
    /// Segments, those included.
    segments: usize,
    /// Slots of the others.
    pub(crate) slots: usize,
}

/// All segments.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    pub(crate) segments: BTreeMap<SegmentId, Segment>,
    /// Ready segments with a free slot.
    open: BTreeMap<Class, BTreeSet<SegmentId>>,
    tallies: BTreeMap<Class, Tally>,
    next: u32,
    /// Bytes of all segments, growing ones included.
    pub(crate) bytes: u64,
    /// Bytes of slots in use.
    pub(crate) used_bytes: u64,
}

impl Slots {
    /// Adds a segment that is not ready yet.
    pub(crate) fn grow(&mut self, class: Class, bytes: u64) -> SegmentId {
        let segment = SegmentId(self.next);
        self.next += 1;
        self.bytes += bytes;
        let tally = self.tallies.entry(class).or_default();
        tally.growing += 1;
        tally.segments += 1;
        self.segments.insert(
            segment,
            Segment {
                class,
                bytes,
                ready: false,
                ready_at: Micros::default(),
                slots: Vec::new(),
                free: Vec::new(),
            },
        );
        segment
    }

    /// Opens a segment for use. Returns its class, or `None` if it is not one that grows.
    pub(crate) fn ready(&mut self, id: SegmentId, now: Micros) -> Option<Class> {
        let segment = self.segments.get_mut(&id).filter(|s| !s.ready)?;
        segment.ready = true;
        segment.ready_at = now;
        let count = u32::try_from(segment.bytes / segment.class.slot_bytes).unwrap_or(u32::MAX);
        let fresh = Slot {
            generation: 0,
            state: SlotState::Free,
            readers: 0,
            writing: false,
            scrubbing: false,
            page: None,
        };
        segment.slots = vec![fresh; count as usize];
        segment.free = (0..count).rev().collect();
        let tally = self.tallies.entry(segment.class).or_default();
        tally.growing -= 1;
        tally.slots += segment.slots.len();
        self.open.entry(segment.class).or_default().insert(id);
        Some(segment.class)
    }

    /// Takes a segment out.
    ///
    /// # Panics
    /// If a slot of it is in use.
    pub(crate) fn remove(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.remove(&id) else {
            return;
        };
        assert!(segment.empty(), "segment {id:?} is dropped with slots in use");
        self.bytes -= segment.bytes;
        if let Some(tally) = self.tallies.get_mut(&segment.class) {
            tally.growing -= usize::from(!segment.ready);
            tally.segments -= 1;
            tally.slots -= segment.slots.len();
            if tally.segments == 0 {
                self.tallies.remove(&segment.class);
            }
        }
        if let Some(open) = self.open.get_mut(&segment.class) {
            open.remove(&id);
        }
    }

    /// Whether the tallies say what the segments are.
    pub(crate) fn tallied(&self) -> bool {
        let mut counted: BTreeMap<Class, Tally> = BTreeMap::new();
        for segment in self.segments.values() {
            let tally = counted.entry(segment.class).or_default();
            tally.growing += usize::from(!segment.ready);
            tally.segments += 1;
            tally.slots += segment.slots.len();
        }
        counted == self.tallies
    }

    pub(crate) fn tally(&self, class: Class) -> Tally {
        self.tallies.get(&class).copied().unwrap_or_default()
    }

    /// Whether a class has any segment.
    pub(crate) fn has(&self, class: Class) -> bool {
        self.tallies.contains_key(&class)
    }

    /// Free slots in the open segments of a class, counted up to `most`.
    pub(crate) fn free_slots(&self, class: Class, most: usize) -> usize {
        let open = self.open.get(&class).into_iter().flatten();
        let mut count = 0;
        for id in open {
            count += self.segments.get(id).map_or(0, |s| s.free.len());
            if count >= most {
                break;
            }
        }
        count
    }

    /// Takes a free slot for `page`, in the state of whoever writes it.
    ///
    /// # Panics
    /// If a free slot has custody: that would be reuse under somebody's copy.
    pub(crate) fn take(&mut self, class: Class, page: PageId, state: SlotState) -> Option<SlotRef> {
        let open = self.open.get_mut(&class)?;
        let id = *open.first()?;
        let segment = self.segments.get_mut(&id)?;
        let index = segment.free.pop()?;
        if segment.free.is_empty() {
            open.remove(&id);
        }
        self.used_bytes += class.slot_bytes;
        let slot = &mut segment.slots[index as usize];
        assert_eq!((slot.state, slot.readers), (SlotState::Free, 0), "slot reused while in custody");
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = state;
        slot.page = Some(page);
        Some(SlotRef { segment: id, index, generation: slot.generation })
    }

    /// Gives a slot back.
    ///
    /// # Panics
    /// If somebody may still read or write it.
    pub(crate) fn free(&mut self, at: SlotRef) {
        let Some(segment) = self.segments.get_mut(&at.segment) else {
            return;
        };
        let slot = &mut segment.slots[at.index as usize];
        assert_eq!(slot.generation, at.generation, "stale slot freed");
        let touched = slot.readers > 0 || slot.writing || slot.scrubbing;
        assert!(!touched, "slot freed under a reader: {slot:?}");
        assert!(slot.state != SlotState::Free, "slot freed twice");
        slot.state = SlotState::Free;
        slot.page = None;
        segment.free.push(at.index);
        self.used_bytes -= segment.class.slot_bytes;
        self.open.entry(segment.class).or_default().insert(at.segment);
    }

    /// The slot, if it is still the same use of it.
    pub(crate) fn get(&self, at: SlotRef) -> Option<&Slot> {
        let slot = self.segments.get(&at.segment)?.slots.get(at.index as usize)?;
        (slot.generation == at.generation && slot.state != SlotState::Free).then_some(slot)
    }

    /// As [`Slots::get`].
    pub(crate) fn get_mut(&mut self, at: SlotRef) -> Option<&mut Slot> {
        let slot = self.segments.get_mut(&at.segment)?.slots.get_mut(at.index as usize)?;
        (slot.generation == at.generation && slot.state != SlotState::Free).then_some(slot)
    }

    /// Every slot in use.
    pub(crate) fn used(&self) -> impl Iterator<Item = (SlotRef, &Slot)> {
        self.segments.iter().flat_map(|(&segment, s)| {
            s.slots.iter().enumerate().filter(|(_, slot)| slot.state != SlotState::Free).map(
                move |(i, slot)| {
                    let index = u32::try_from(i).unwrap_or(u32::MAX);
                    (SlotRef { segment, index, generation: slot.generation }, slot)
                },
            )
        })
    }
}
