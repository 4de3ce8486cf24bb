//! Who may write into a slot, and how that ends: by commit, by giving back, or by evidence.

use super::Core;
use crate::page::{Page, Saver};
use crate::slab::PageId;
use crate::slots::SlotState;
use crate::{Mark, Plant, SessionId, SlotRef};

impl Core {
    /// Writer custody of a slot ends.
    pub(super) fn end_fill(&mut self, id: PageId, at: SlotRef, state: SlotState) {
        let Some(slot) = self.slots.get_mut(at) else {
            return;
        };
        let (SlotState::Filling(writer) | SlotState::Quarantined(writer)) = slot.state else {
            return;
        };
        slot.state = state;
        if let Some(segment) = self.slots.segments.get(&at.segment) {
            self.filling_bytes -= segment.class.slot_bytes;
        }
        if let Some(worker) = self.sessions.get_mut(&writer) {
            worker.writing -= 1;
        }
        if let Some(saver) = self.index.pages.get(id).and_then(Page::saver) {
            self.close_save_slot(saver);
        }
        self.forget_idle_session(writer);
    }

    fn close_save_slot(&mut self, saver: Saver) {
        let place = (saver.session, saver.operation);
        let Some(save) = self.saves.get_mut(&place) else {
            return;
        };
        save.open_slots -= 1;
        if save.open_slots == 0 {
            self.saves.remove(&place);
            if let Some(session) = self.sessions.get_mut(&saver.session) {
                session.saves -= 1;
            }
            self.forget_idle_session(saver.session);
        }
    }

    /// The worker's connection ended: what it was writing can never be committed, but may still change.
    pub(super) fn quarantine(&mut self, session: SessionId) {
        for at in self.written_by(session, None) {
            let Some(id) = self.slots.get(at).and_then(|s| s.page) else {
                continue;
            };
            self.mark(Mark::Quarantined);
            self.counters.quarantined_slots += 1;
            if let Some(slot) = self.slots.get_mut(at) {
                slot.state = SlotState::Quarantined(session);
            }
            self.condemn(id);
            if self.planted(Plant::FreeAtSocketClose) {
                self.end_fill(id, at, SlotState::Resident);
                self.free_condemned(id);
            }
        }
    }

    /// The worker writes nothing any more: at all, or for the saves of one owner.
    pub(super) fn end_writing(&mut self, worker: SessionId, owner: Option<SessionId>, mark: Mark) {
        for at in self.written_by(worker, owner) {
            let Some(id) = self.slots.get(at).and_then(|s| s.page) else {
                continue;
            };
            self.mark(mark);
            self.condemn(id);
            self.end_fill(id, at, SlotState::Resident);
            self.free_condemned(id);
        }
    }

    /// Slots in a worker's write custody.
    fn written_by(&self, worker: SessionId, owner: Option<SessionId>) -> Vec<SlotRef> {
        if self.sessions.get(&worker).is_none_or(|s| s.writing == 0) {
            return Vec::new();
        }
        let written =
            |s: SlotState| matches!(s, SlotState::Filling(w) | SlotState::Quarantined(w) if w == worker);
        let owned = |id: Option<PageId>| {
            let saver = id.and_then(|id| self.index.pages.get(id)).and_then(Page::saver).map(|s| s.session);
            owner.is_none_or(|o| saver == Some(o))
        };
        let used = self.slots.used();
        used.filter(|(_, s)| written(s.state) && owned(s.page)).map(|(at, _)| at).collect()
    }
}
