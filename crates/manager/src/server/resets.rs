//! Answers to resets: not before the slower tier has recorded them, or a manager that is killed at once would find
//! the pages again.

use super::Server;
use crate::outbox::Ids;
use crate::tier::Tier;
use orbitkv_core::{Event, Micros, SessionId};
use orbitkv_wire::ToClient;

/// How long a reset may take to be recorded before it is answered with an error.
const PATIENCE_MS: u64 = 10_000;
/// Resets that wait at most.
const MAX_WAITING: usize = 4096;

/// A reset that memory has carried out and the tier has not recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unrecorded {
    number: u64,
    connection: u64,
    ids: Ids,
    until: Micros,
}

impl Server {
    /// Carries a reset out, and answers it when it is recorded.
    pub(super) fn reset(&mut self, session: SessionId, connection: u64, ids: Ids) {
        let before = self.tier.as_ref().map(Tier::last_reset);
        if !self.feed(Event::Reset { session }) {
            return;
        }
        let number = self.tier.as_ref().map(Tier::last_reset).filter(|number| Some(*number) != before);
        let Some(number) = number else {
            return self.send(connection, ids, &ToClient::ResetDone, None);
        };
        let until = self.clock.now().plus_ms(PATIENCE_MS);
        let waiting = Unrecorded { number, connection, ids, until };
        if self.resets.len() >= MAX_WAITING {
            return self.not_recorded(waiting);
        }
        self.resets.push_back(waiting);
        // A thread that has ended has answered at once.
        self.waker.wake();
    }

    /// Devices record one reset after the other, so mostly it is the oldest.
    pub(super) fn reset_recorded(&mut self, number: u64, recorded: bool) {
        let Some(at) = self.resets.iter().position(|reset| reset.number == number) else { return };
        match self.resets.remove(at) {
            Some(reset) if recorded => self.send(reset.connection, reset.ids, &ToClient::ResetDone, None),
            Some(reset) => self.not_recorded(reset),
            None => {}
        }
    }

    fn not_recorded(&mut self, reset: Unrecorded) {
        let text = "the pages are forgotten, but the SSD cache has not recorded it: they may be found again after a \
                    restart; see `ssd` in the manager's /status";
        self.send(reset.connection, reset.ids, &ToClient::Refused { text }, None);
    }

    pub(super) fn resets_due(&self) -> Option<Micros> {
        self.resets.front().map(|reset| reset.until)
    }

    /// Answers those whose time is over.
    pub(super) fn expire_resets(&mut self, now: Micros) {
        while self.resets.front().is_some_and(|reset| reset.until <= now) {
            let overdue = self.resets.pop_front();
            overdue.into_iter().for_each(|reset| self.not_recorded(reset));
        }
    }
}
