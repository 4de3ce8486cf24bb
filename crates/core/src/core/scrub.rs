//! The check of pages in memory: a walk over all slots that has their bytes read again, a few at a time.
//!
//! A slot that is being read for it is in custody: its page may be forgotten meanwhile, its memory is not reused.

use super::{Core, Outcome};
use crate::page::{Page, PageState};
use crate::slab::PageId;
use crate::slots::SlotState;
use crate::{Effect, Event, Mark, PagePart, Plant, SegmentId, SlotRef};
use hashbrown::HashMap;

/// Slots that are read at once.
const SLOTS: usize = 256;
/// Slots that one step looks at: others wait for the core as well.
const LOOKS: usize = 4096;

/// How far the walk has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Scrub {
    /// The next slot to look at: segment and index.
    next: (u32, u32),
    /// This walk has found a page.
    found: bool,
    /// Slots of each page that are being read.
    pub(super) pages: HashMap<PageId, u32>,
}

impl Core {
    /// Whether the page has a slot that is being read.
    pub(super) fn is_scrubbed(&self, id: PageId) -> bool {
        !self.scrub.pages.is_empty()
            && self.scrub.pages.contains_key(&id)
            && !self.planted(Plant::FreeScrubbed)
    }

    pub(super) fn scrub_told(&mut self, event: Event<'_>, effects: &mut Vec<Effect>) -> Option<Outcome> {
        match event {
            Event::Scrub { bytes } => self.scrub(bytes, effects),
            Event::Scrubbed { slot, good } => return self.scrubbed(slot, good),
            _ => {}
        }
        None
    }

    /// Has the next slots of the walk read: as many payload bytes as are asked for, or one slot.
    fn scrub(&mut self, bytes: u64, effects: &mut Vec<Effect>) {
        if !self.scrub.pages.is_empty() {
            return;
        }
        let (mut looks, mut slots, mut left_bytes) = (0, 0, bytes);
        while looks < LOOKS && slots < SLOTS {
            let Some((at, skipped)) = self.next_slot() else {
                self.counters.scrub.passes += u64::from(std::mem::take(&mut self.scrub.found));
                self.scrub.next = (0, 0);
                break;
            };
            looks += 1 + skipped;
            let Some((id, payload_bytes, crc)) = self.scrubbable(at) else {
                self.scrub.next = (at.segment.0, at.index + 1);
                continue;
            };
            if slots > 0 && u64::from(payload_bytes) > left_bytes {
                break;
            }
            left_bytes = left_bytes.saturating_sub(payload_bytes.into());
            slots += 1;
            self.scrub.next = (at.segment.0, at.index + 1);
            self.scrub.found = true;
            self.begin_scrub(at, id);
            effects.push(Effect::Scrub { slot: at, payload_bytes, crc });
        }
    }

    /// The next slot of the walk, whatever is in it, and the segments without one that lie before it.
    fn next_slot(&self) -> Option<(SlotRef, usize)> {
        let (first, from) = self.scrub.next;
        let segments = self.slots.segments.range(SegmentId(first)..).enumerate();
        for (skipped, (&segment, held)) in segments {
            let index = if segment.0 == first { from } else { 0 };
            if let Some(slot) = held.slots.get(index as usize) {
                return Some((SlotRef { segment, index, generation: slot.generation }, skipped));
            }
        }
        None
    }

    /// Page, payload and checksum of a slot that is worth a look: pages that nobody finds are not.
    fn scrubbable(&self, at: SlotRef) -> Option<(PageId, u32, u64)> {
        let slot = self.slots.get(at).filter(|slot| slot.state == SlotState::Resident)?;
        let id = slot.page?;
        let page = self.index.pages.get(id).filter(|page| page.state == PageState::Sealed)?;
        let PagePart { crc, .. } = page.parts().find(|part| part.slot == at)?;
        Some((id, page.payload_bytes, crc))
    }

    fn begin_scrub(&mut self, at: SlotRef, id: PageId) {
        self.withdraw(id);
        if let Some(slot) = self.slots.get_mut(at) {
            slot.scrubbing = true;
        }
        *self.scrub.pages.entry(id).or_default() += 1;
        self.reconsider(id);
    }

    /// A slot has been read. Bytes that have changed are never handed out again; what of the page is in the
    /// slower tier has a checksum of its own and stays.
    fn scrubbed(&mut self, at: SlotRef, good: bool) -> Option<Outcome> {
        let id = self.end_scrub(at)?;
        let page = self.index.pages.get(id)?;
        let (state, bytes) = (page.state, u64::from(page.payload_bytes));
        self.counters.scrub.pages += 1;
        self.counters.scrub.bytes += bytes;
        let sealed = state == PageState::Sealed;
        match (good, sealed) {
            (_, false) => self.mark(Mark::ForgottenWhileScrubbed),
            (true, true) => self.mark(Mark::Scrubbed),
            (false, true) if self.planted(Plant::TrustScrub) => {}
            (false, true) => {
                self.mark(Mark::ScrubFoundBad);
                self.counters.scrub.bad_pages += 1;
                self.condemn(id);
            }
        }
        self.reconsider(id);
        self.free_condemned(id);
        None
    }

    /// Nobody reads the slot for the walk any more. Its page, if somebody did.
    pub(super) fn end_scrub(&mut self, at: SlotRef) -> Option<PageId> {
        let slot = self.slots.get_mut(at).filter(|slot| slot.scrubbing)?;
        slot.scrubbing = false;
        let id = slot.page?;
        let left = self.scrub.pages.get_mut(&id)?;
        *left -= 1;
        if *left == 0 {
            self.scrub.pages.remove(&id);
        }
        Some(id)
    }

    /// The defect of freeing slots under the check: its books stay consistent, so that the checkers must find it.
    pub(super) fn abandon_scrub(&mut self, id: PageId) {
        let condemned = self.index.pages.get(id).filter(|page| page.state == PageState::Condemned);
        let going = condemned.filter(|_| !self.is_leased(id));
        let slots: Vec<SlotRef> = going.into_iter().flat_map(Page::parts).map(|p| p.slot).collect();
        for slot in slots {
            self.end_scrub(slot);
        }
    }
}
