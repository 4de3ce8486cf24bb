//! The copy thread's part of pins: finds the memory of their pages, and compares checksums.

use super::chores::{Check, Checked};
use super::copier::Copier;
use super::pinned::PinJob;
use super::segments::Segment;
use super::summers::Summed;
use crate::hooks;
use crate::ticket::PagePart;
use std::sync::Arc;

impl Copier {
    /// Takes in what was pinned since, and what still waits for the descriptor of a segment.
    pub(super) fn look_at_pins(&mut self) {
        let mut later = Vec::new();
        loop {
            // Not in the loop's head: the lock would be held all through its body.
            let next = self.work.lock().pins.pop_front();
            let Some(pin) = next else { break };
            if !pin.is_wanted() {
                pin.keep_before(0);
                pin.settle();
            } else if !self.work.supply_pin(&pin) && self.awaits_segment(&pin.parts, pin.accepted) {
                later.push(pin);
            } else {
                self.map_pin(&pin);
            }
        }
        self.work.lock().pins.extend(later);
    }

    fn map_pin(&mut self, pin: &Arc<PinJob>) {
        let found = std::mem::take(&mut *pin.memory());
        let page_bytes = pin.layout.page_bytes();
        let mut segments: Vec<Segment> = Vec::with_capacity(found.len());
        for (page, (segment, part)) in found.into_iter().zip(&pin.parts).enumerate() {
            let place = segment.and_then(|s| Some((s.payload(part.index, page_bytes)?, s)));
            // A prefix is usable up to its first gap.
            let Some((offset, segment)) = place else { break };
            if hooks::count_down(hooks::FAIL_PAGE) {
                break;
            }
            if self.verifier.selects() {
                let source = Summed { region: Arc::clone(&segment.region), offset, bytes: page_bytes };
                self.chores.check(Check { of: Checked::Pin(Arc::clone(pin)), page, part: *part, source });
            }
            segments.push(segment);
        }
        pin.set_segments(segments);
        if !self.chores.checks(&Checked::Pin(Arc::clone(pin))) {
            pin.settle();
        }
    }

    pub(super) fn check_pin(&self, pin: &PinJob, page: usize, part: &PagePart, crc: Option<u64>) {
        // Let go meanwhile: its pages may be written by now, and be none the worse for it.
        if !pin.is_wanted() || !self.is_sound(pin.origin, part, crc) {
            pin.keep_before(page);
        }
    }
}
