//! The check of memory, between the core and its thread.

use super::Server;
use crate::scrub::Scrubber;
use orbitkv_core::{Event, SlotRef, SlotView};

/// So many changed pages are logged one by one.
const LOGGED: u64 = 10;

impl Server {
    /// Begins a round if it is time.
    pub(super) fn scrub(&mut self) {
        let now = self.clock.now();
        let due = self.scrubber.as_ref().filter(|scrubber| scrubber.due().is_some_and(|at| at <= now));
        let Some(bytes) = due.map(Scrubber::round_bytes) else { return };
        self.feed(Event::Scrub { bytes });
        if self.scrubber.as_mut().is_some_and(|scrubber| !scrubber.begin(now)) {
            tracing::error!("the thread that checks memory has ended: nothing is checked any more");
        }
    }

    /// Has a slot read with the round that begins.
    pub(super) fn scrub_slot(&mut self, slot: SlotRef, payload_bytes: u32, crc: u64) {
        let place = self.place(slot, payload_bytes);
        if let Some(scrubber) = &mut self.scrubber {
            scrubber.add(slot, place, crc);
        }
    }

    /// Tells the core what has been read.
    pub(super) fn take_scrubbed(&mut self) {
        while let Some((slot, good)) = self.scrubber.as_mut().and_then(Scrubber::next_done) {
            let seen = self.core.slot(slot).filter(|_| !good);
            let before = self.core.counters().scrub.bad_pages;
            self.feed(Event::Scrubbed { slot, good });
            let bad = self.core.counters().scrub.bad_pages;
            if let Some(seen) = seen.filter(|_| bad > before) {
                self.say_changed(slot, &seen, bad);
            }
        }
    }

    fn say_changed(&self, SlotRef { segment, index, .. }: SlotRef, seen: &SlotView, count: u64) {
        let Some(key) = seen.key.filter(|_| count <= LOGGED) else { return };
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        tracing::error!(
            namespace = self.core.namespace(key.namespace).map(|digest| hex(&digest.0)),
            group = key.group.0,
            hash = hex(&key.hash.0),
            segment = segment.0,
            slot = index,
            "a page in memory has changed since it was saved: it is forgotten. If this comes again, test the memory \
             of this host"
        );
        if count == LOGGED {
            tracing::error!("more changed pages are counted alone: orbitkv_scrub_bad_pages_total");
        }
    }
}
