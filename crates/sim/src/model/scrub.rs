//! The check of memory: what it may read, and what its verdict means.

use super::Model;
use crate::failure::{Checked, Checker, ensure};
use orbitkv_core::{PagePart, SlotRef};

impl Model {
    /// Only committed pages are checked, with the checksum that they were committed with, one at a time each.
    pub(super) fn scrub_begins(&mut self, slot: SlotRef, crc: u64) -> Checked {
        let part = PagePart { slot, crc };
        let committed = self.complete.values().flatten().any(|parts| parts.contains(&part));
        ensure(committed, Checker::Bytes, || {
            format!("{slot:?} is checked, and nothing that can be found was committed to it")
        })?;
        let fresh = self.scrubs.insert(slot);
        ensure(fresh, Checker::Model, || format!("{slot:?} is checked twice at once"))
    }

    /// A page that has changed is not there any more, and what is being written of it must not be read.
    pub(super) fn scrub_ended(&mut self, slot: SlotRef, good: bool) {
        if !self.scrubs.remove(&slot) || good {
            return;
        }
        for commits in self.complete.values_mut() {
            commits.retain(|parts| parts.iter().all(|part| part.slot != slot));
        }
        self.tier.spoil_any(slot);
    }
}
