//! The slower tier: extents of words, written and read late, badly or not at all.

use crate::content::{STRIPES, Words, checksum};
use crate::failure::{Checked, Checker, ensure};
use crate::heap::Happening;
use crate::world::World;
use orbitkv_core::{Event, ExtentId, PageKey, SlotRef, SlotState};
use std::collections::BTreeMap;

/// What a write or a read has to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    key: PageKey,
    extent: ExtentId,
    crc: u64,
}

/// One shard of a page on the disk.
#[derive(Clone, Copy, Debug)]
struct Extent {
    key: PageKey,
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

    pub(crate) fn erase(&mut self, extent: ExtentId) {
        self.extents.remove(&extent);
    }
}

impl World {
    /// The core wants a slot written.
    pub(crate) fn begin_write(&mut self, slot: SlotRef, key: PageKey, crc: u64) {
        self.disk.next += 1;
        let extent = ExtentId(self.disk.next);
        self.disk.writes.insert(slot, Job { key, extent, crc });
        let at = self.now_us + self.rng.range(1, self.plan.disk_us);
        self.heap.push(at, Happening::Written { slot });
    }

    /// The core wants a slot filled.
    pub(crate) fn begin_read(&mut self, slot: SlotRef, extent: ExtentId, crc: u64) {
        let key = self.core.slot(slot).and_then(|seen| seen.key);
        if let Some(key) = key {
            self.disk.reads.insert(slot, Job { key, extent, crc });
        }
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
            self.disk.extents.insert(job.extent, Extent { key: job.key, words });
        }
        self.feed(Event::Written { slot, extent: works.then_some(job.extent) })
    }

    /// The read ends: good if the words have their checksum, whatever went wrong.
    pub(crate) fn read_ends(&mut self, slot: SlotRef) -> Checked {
        let Some(job) = self.disk.reads.remove(&slot) else {
            return Ok(());
        };
        let seen = self.core.slot(slot);
        let held = seen.is_some_and(|s| s.state == SlotState::Reading && s.key == Some(job.key));
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

    /// A bit rots on the disk, or the tier drops an extent by itself.
    pub(crate) fn disk_rots(&mut self) -> Checked {
        if self.disk.extents.is_empty() {
            return Ok(());
        }
        let nth = self.rng.index(self.disk.extents.len());
        let Some((&extent, &Extent { key, .. })) = self.disk.extents.iter().nth(nth) else {
            return Ok(());
        };
        if self.rng.chance(50) {
            self.disk.erase(extent);
            return self.feed(Event::ExtentLost { key, extent });
        }
        if let Some(stored) = self.disk.extents.get_mut(&extent) {
            stored.words[0] ^= 1;
        }
        Ok(())
    }
}
