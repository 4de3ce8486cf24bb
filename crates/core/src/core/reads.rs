//! Reads from the slower tier. They are shared by every demand that wants the page, and one that was
//! submitted goes on whatever becomes of them; its bytes stay charged until it has ended.

use super::Core;
use crate::instance::Shape;
use crate::ledger::Side;
use crate::loading::Reading;
use crate::page::{Origin, Page, PageState};
use crate::slab::PageId;
use crate::slots::{Class, SlotState};
use crate::stored::StoredPage;
use crate::{Effect, Mark, PageKey, PagePart, Phase, Plant, ShardId, SlotRef, StoredName, Ticket};
use smallvec::SmallVec;

impl Core {
    pub(super) fn join_read(&mut self, ticket: Ticket, at: usize, page: PageId) {
        self.take_lease(page);
        if let Some(reading) = self.reads.get_mut(&page) {
            reading.waiters.push(ticket);
        }
        self.place(ticket, at, Some((page, true)));
    }

    /// A demand waits for a page that was to be read some time.
    pub(super) fn hasten(&self, ticket: Ticket, page: PageId, effects: &mut Vec<Effect>) {
        let ahead = |ticket| self.operations.get(&ticket).is_some_and(|op| op.phase.speculative());
        let begun_for = self.reads.get(&page).filter(|reading| reading.ahead).map(|reading| reading.ticket);
        if let Some(begun_for) = begun_for.filter(|_| !ahead(ticket)) {
            let hasten = Effect::Hasten { ticket: begun_for };
            // Mostly the next pages are of the same one.
            if effects.last() != Some(&hasten) {
                effects.push(hasten);
            }
        }
    }

    /// Takes the slots of a stored page and has them filled.
    pub(super) fn begin_read(
        &mut self,
        ticket: Ticket,
        key: PageKey,
        shape: Shape,
        stored: &StoredPage,
        effects: &mut Vec<Effect>,
    ) -> Option<PageId> {
        let namespace = *self.digests.get(&key.namespace)?;
        // Evicting for one shard may have used the room of another.
        let class = |shard| Class { namespace: key.namespace, shard, slot_bytes: shape.slot_bytes };
        let shards = (0..shape.shards).map(ShardId);
        if shards.clone().any(|shard| self.slots.free_slots(class(shard), 1) == 0) {
            return None;
        }
        let chained = (stored.parent_hash(), stored.depth);
        let id = self.index.pages.insert(Page::new(key, PageState::Reading, chained, stored.payload_bytes()));
        self.mark(Mark::ReadBegun);
        let ahead = self.operations.get(&ticket).is_some_and(|op| op.phase.speculative());
        let mut parts: SmallVec<[PagePart; 1]> = SmallVec::new();
        for (shard, part) in shards.zip(&stored.parts) {
            let slot = self.slots.take(class(shard), id, SlotState::Reading)?;
            parts.push(PagePart { slot, crc: part.crc });
            let (extent, payload_bytes, crc) = (part.extent, stored.payload_bytes(), part.crc);
            let name = StoredName { namespace, group: key.group, hash: key.hash, shard };
            effects.push(Effect::Read { slot, extent, name, payload_bytes, crc, ticket, urgent: !ahead });
        }
        self.index.reading.insert(key, id);
        let parent = self.index.pages.get_mut(id).and_then(|page| {
            page.set_parts(&parts);
            page.parent()
        });
        if let Some(parent) = parent {
            self.link(parent);
        }
        let (waiters, lingerers) = Default::default();
        let pending = stored.parts.len();
        let (failed, overdue) = (false, false);
        self.reads.insert(id, Reading { pending, failed, overdue, ahead, ticket, waiters, lingerers });
        Some(id)
    }

    /// One shard has been read, or cannot be.
    pub(super) fn read_done(
        &mut self,
        at: SlotRef,
        good: bool,
        effects: &mut Vec<Effect>,
    ) -> Option<super::Outcome> {
        let slot = self.slots.get_mut(at).filter(|slot| slot.state == SlotState::Reading)?;
        slot.state = SlotState::Resident;
        let id = slot.page?;
        let good = good || self.planted(Plant::TrustReads);
        let reading = self.reads.get_mut(&id)?;
        reading.failed |= !good;
        reading.pending -= 1;
        if reading.pending == 0 {
            let reading = self.reads.remove(&id)?;
            self.end_read(id, &reading, effects);
        }
        None
    }

    /// A read is not waited for any more, by those who do and by those who come. It goes on, and is paid for.
    pub(super) fn read_overdue(&mut self, at: SlotRef, effects: &mut Vec<Effect>) -> Option<super::Outcome> {
        let id = self.slots.get(at).filter(|slot| slot.state == SlotState::Reading)?.page?;
        let reading = self.reads.get_mut(&id)?;
        reading.overdue = true;
        let waiters = reading.waiters.clone();
        self.mark(Mark::ReadOverdue);
        for ticket in waiters {
            self.stop_waiting_for(ticket, id, effects);
        }
        None
    }

    /// Whether a page that is being read may be waited for.
    pub(super) fn is_awaited(&self, page: PageId) -> bool {
        self.reads.get(&page).is_some_and(|reading| !reading.overdue)
    }

    fn end_read(&mut self, id: PageId, reading: &Reading, effects: &mut Vec<Effect>) {
        let Some(page) = self.index.pages.get(id) else {
            return;
        };
        let (key, condemned) = (page.key, page.state == PageState::Condemned);
        if condemned {
            self.mark(Mark::ForgottenWhileRead);
            self.free_condemned(id);
        } else if reading.failed {
            self.mark(Mark::ReadFailed);
            self.counters.failed_reads += 1;
            self.unstore(&key, effects);
            self.condemn(id);
        } else {
            self.counters.read_pages += 1;
            if reading.ahead {
                self.read_ahead(id);
            }
            self.admit_read(id, key);
        }
        let bad = condemned || reading.failed;
        for &(ticket, bytes) in &reading.lingerers {
            self.land(ticket, bytes);
        }
        for &ticket in &reading.waiters {
            self.page_ended(ticket, id, bad, effects);
        }
        self.reconsider(id);
        self.free_condemned(id);
    }

    fn read_ahead(&mut self, id: PageId) {
        let Some(page) = self.index.pages.get_mut(id) else {
            return;
        };
        let slots = page.parts().filter_map(|part| self.slots.segments.get(&part.slot.segment));
        let bytes = slots.map(|segment| segment.class.slot_bytes).sum();
        page.origin = Some(Box::new(Origin::Ahead { bytes }));
        self.counters.ahead_read_bytes += bytes;
    }

    /// The page is here. It becomes visible, unless somebody saved it meanwhile.
    fn admit_read(&mut self, id: PageId, key: PageKey) {
        self.index.reading.remove(&key);
        if self.index.sealed(&key).is_some() {
            self.mark(Mark::ReadTwice);
            self.spare(id);
        } else {
            self.publish(id);
        }
    }

    /// A read has ended that a demand paid for without waiting for it.
    fn land(&mut self, ticket: Ticket, bytes: u64) {
        let Some(op) = self.operations.get_mut(&ticket).filter(|op| op.lingering > 0) else {
            return;
        };
        op.lingering -= 1;
        op.lingering_bytes -= bytes;
        let (instance, reading) = (op.instance, op.reading);
        let over = op.phase == Phase::Draining && op.lingering == 0 && op.owing.is_empty();
        self.mark(Mark::Landed);
        self.ledger.transfer(Side::Held(instance, reading), Side::Free, bytes);
        self.wake = true;
        if over {
            self.finish(ticket);
        }
    }
}
