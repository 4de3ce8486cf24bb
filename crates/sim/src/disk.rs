//! The slower tier: extents of words, written and read late, badly or not at all.

use crate::content::{STRIPES, Words, checksum};
use crate::failure::{Checked, Checker, ensure};
use crate::heap::Happening;
use crate::world::World;
use orbitkv_core::{Event, ExtentId, PageKey, SlotRef, SlotState, StoredName};
use std::collections::BTreeMap;

/// What a write or a read has to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    name: StoredName,
    extent: ExtentId,
    crc: u64,
}

/// One shard of a page on the disk.
#[derive(Clone, Copy, Debug)]
struct Extent {
    name: StoredName,
    words: Words,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    extents: BTreeMap<ExtentId, Extent>,
    next: u64,
    writes: BTreeMap<SlotRef, Job>,
    reads: BTreeMap<SlotRef, Job>,
}

impl Disk {
    pub(crate) fn idle(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.extents.len()
    }

    /// Something is there since before the beginning.
    pub(crate) fn leave(&mut self, name: StoredName, words: Words) -> ExtentId {
        self.next += 1;
        self.extents.insert(ExtentId(self.next), Extent { name, words });
        ExtentId(self.next)
    }

    pub(crate) fn has(&self, extent: ExtentId) -> bool {
        self.extents.contains_key(&extent)
    }

    /// Another place for the same words. Reads that were submitted still get them.
    fn relocate(&mut self, from: ExtentId) -> Option<ExtentId> {
        let Extent { name, words } = self.extents.remove(&from)?;
        let to = self.leave(name, words);
        self.reads.values_mut().filter(|job| job.extent == from).for_each(|job| job.extent = to);
        Some(to)
    }

    pub(crate) fn erase(&mut self, extent: ExtentId) {
        self.extents.remove(&extent);
    }
}

impl World {
    /// The core wants a slot written.
    pub(crate) fn begin_write(&mut self, slot: SlotRef, name: StoredName, crc: u64) {
        self.disk.next += 1;
        let extent = ExtentId(self.disk.next);
        self.disk.writes.insert(slot, Job { name, extent, crc });
        let at = self.now_us + self.rng.range(1, self.plan.disk_us);
        self.heap.push(at, Happening::Written { slot });
    }

    /// The core wants a slot filled.
    pub(crate) fn begin_read(&mut self, slot: SlotRef, name: StoredName, extent: ExtentId, crc: u64) {
        self.disk.reads.insert(slot, Job { name, extent, crc });
        let at = self.now_us + self.rng.range(1, self.plan.disk_us);
        self.heap.push(at, Happening::ReadEnds { slot });
    }

    /// The write ends: it read the slot until now.
    pub(crate) fn write_ends(&mut self, slot: SlotRef) -> Checked {
        let Some(job) = self.disk.writes.remove(&slot) else {
            return Ok(());
        };
        let seen = self.core.slot(slot);
        let held = seen.is_some_and(|s| s.state == SlotState::Resident && s.writing);
        ensure(held, Checker::Custody, || format!("a write read from {slot:?}, which is {seen:?}"))?;
        let words = self.memory.read(slot).copied().unwrap_or_default();
        let works = !self.rng.chance(self.plan.faults.disk);
        if works {
            self.disk.extents.insert(job.extent, Extent { name: job.name, words });
        }
        self.feed(Event::Written { slot, extent: works.then_some(job.extent) })
    }

    /// The read ends: good if the words have their checksum, whatever went wrong.
    pub(crate) fn read_ends(&mut self, slot: SlotRef) -> Checked {
        let Some(job) = self.disk.reads.remove(&slot) else {
            return Ok(());
        };
        let seen = self.core.slot(slot);
        let named = |key: PageKey| (key.group, key.hash) == (job.name.group, job.name.hash);
        let held = seen.is_some_and(|s| s.state == SlotState::Reading && s.key.is_some_and(named));
        ensure(held, Checker::Custody, || format!("a read wrote into {slot:?}, which is {seen:?}"))?;
        let words = self.disk.extents.get(&job.extent).map_or([0; STRIPES], |extent| extent.words);
        let torn = self.rng.chance(self.plan.faults.disk);
        let stripes = if torn { self.rng.index(STRIPES) } else { STRIPES };
        for (stripe, word) in words.iter().enumerate().take(stripes) {
            self.memory.write(slot, stripe, *word);
        }
        let good = !torn && checksum(&words) == job.crc;
        self.feed(Event::ReadDone { slot, good })
    }

    /// The tier says of a read that nobody should wait for it. It ends when it ends.
    fn read_takes_long(&mut self) -> Checked {
        let nth = self.rng.index(self.disk.reads.len().max(1));
        match self.disk.reads.keys().nth(nth).copied() {
            Some(slot) => self.feed(Event::ReadOverdue { slot }),
            None => Ok(()),
        }
    }

    /// A bit rots on the disk, or the tier drops an extent by itself.
    pub(crate) fn disk_rots(&mut self) -> Checked {
        if self.disk.extents.is_empty() {
            return Ok(());
        }
        let nth = self.rng.index(self.disk.extents.len());
        let Some((&extent, &Extent { name, .. })) = self.disk.extents.iter().nth(nth) else {
            return Ok(());
        };
        match self.rng.below(8) {
            0..=2 => {
                self.disk.erase(extent);
                return self.feed(Event::ExtentLost { name, extent });
            }
            3 => {
                let Some(to) = self.disk.relocate(extent) else {
                    return Ok(());
                };
                return self.feed(Event::ExtentMoved { name, from: extent, to });
            }
            4 => {
                let (reads, writes) = (self.rng.chance(60), self.rng.chance(40));
                return self.feed(Event::TierState { reads, writes });
            }
            5 => return self.read_takes_long(),
            _ => {}
        }
        if let Some(stored) = self.disk.extents.get_mut(&extent) {
            stored.words[0] ^= 1;
        }
        Ok(())
    }
}
