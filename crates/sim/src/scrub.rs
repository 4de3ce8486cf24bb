//! The check of memory, as the shell carries it out: late, and with a look at who owns what it reads.

use crate::content::checksum;
use crate::failure::{Checked, Checker, ensure};
use crate::heap::Happening;
use crate::plan::Plan;
use crate::world::World;
use orbitkv_core::{Event, SlotRef, SlotState};

/// Payload of the largest page, more or less: one slot at a time, or up to a dozen.
const PAGE_BYTES: u64 = 12_288;

impl World {
    /// Time for some pages, and the next time.
    pub(crate) fn scrub(&mut self) -> Checked {
        let pause = Plan::pause(&mut self.rng, self.plan.scrub_us);
        self.heap.push(self.now_us + pause, Happening::Scrub);
        let bytes = self.rng.below(12) * PAGE_BYTES;
        self.feed(Event::Scrub { bytes })
    }

    /// The core wants a slot checked.
    pub(crate) fn begin_scrub(&mut self, slot: SlotRef, crc: u64) {
        self.scrubs.insert(slot, crc);
        let at = self.now_us + self.rng.range(1, self.plan.scrub_slot_us);
        self.heap.push(at, Happening::ScrubEnds { slot });
    }

    /// The slot was read until now: it must be the same use of it, and bytes change only if they rot.
    pub(crate) fn scrub_ends(&mut self, slot: SlotRef) -> Checked {
        let Some(crc) = self.scrubs.remove(&slot) else {
            return Ok(());
        };
        let seen = self.core.slot(slot);
        let held = seen.is_some_and(|s| s.state == SlotState::Resident && s.scrubbing);
        ensure(held, Checker::Custody, || format!("a check of memory read {slot:?}, which is {seen:?}"))?;
        let good = self.memory.read(slot).is_some_and(|words| checksum(words) == crc);
        ensure(good || self.rotten.contains(&slot), Checker::Bytes, || {
            format!("bytes of {slot:?} changed while nobody wrote them")
        })?;
        self.feed(Event::Scrubbed { slot, good })
    }
}
