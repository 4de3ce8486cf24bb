//! Which tickets are taken, and the books of the copies that come of them.

use super::pinned::PinJob;
use super::segments::Segment;
use super::state::{Inner, MAX_LOADS, Origin};
use crate::ClientError;
use crate::link::Session;
use crate::ticket::{PagePart, Ticket};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Ended sessions that are said again. Of older ones the manager learns when the process ends, at the latest.
const MAX_SAID: usize = 64;

/// What becomes of a ticket.
pub(super) enum Admission {
    Accepted(Origin),
    /// Another run of the manager, an earlier session, a fenced scheduler, no connection, or a lost device.
    Stale,
    /// Too much is queued; the manager still counts on this worker.
    Full(Origin),
}

impl Admission {
    /// Whose a job made for the ticket is.
    pub(super) fn origin(&self, ticket: &Ticket, probe: bool) -> Origin {
        match self {
            Self::Accepted(origin) | Self::Full(origin) => *origin,
            Self::Stale => origin_of(ticket, 0, probe),
        }
    }
}

fn origin_of(ticket: &Ticket, session: u64, probe: bool) -> Origin {
    let Ticket { scheduler, operation, revision, .. } = *ticket;
    Origin { session, scheduler, operation, revision, probe }
}

impl Inner {
    pub(super) fn admit(
        &self,
        ticket: &Ticket,
        probe: bool,
        fits: bool,
        session: Option<Session>,
    ) -> Result<Admission, ClientError> {
        if self.stopping {
            return Err(ClientError::Closed);
        }
        let Some(session) = session.filter(|_| !self.lost) else { return Ok(Admission::Stale) };
        let fenced = !probe && ticket.scheduler <= self.fenced_through;
        if ticket.boot != session.boot || ticket.issued_us < session.welcomed_us || fenced {
            return Ok(Admission::Stale);
        }
        let origin = origin_of(ticket, session.number, probe);
        Ok(if fits { Admission::Accepted(origin) } else { Admission::Full(origin) })
    }

    /// The session of which restores are taken: the present one, or that which has just been lost.
    pub(super) fn of_restores(&self) -> Option<Session> {
        self.session.or_else(|| self.departed.as_ref().map(|departed| departed.session))
    }

    /// The segments of those parts, of that session.
    pub(super) fn memory_of(&self, parts: &[PagePart]) -> Vec<Option<Segment>> {
        let of_departed = self.departed.as_ref().filter(|_| self.session.is_none());
        let segments = of_departed.map_or(&self.segments, |departed| &departed.segments);
        parts.iter().map(|part| segments.get(&part.segment).cloned()).collect()
    }

    pub(super) fn is_void(&self, origin: Origin) -> bool {
        let present = self.session.is_some_and(|s| s.number == origin.session);
        !present || self.is_closed_to(origin)
    }

    /// Whatever its session.
    pub(super) fn is_closed_to(&self, origin: Origin) -> bool {
        let fenced = !origin.probe && origin.scheduler <= self.fenced_through;
        fenced || self.stopping || self.lost
    }

    /// As [`Inner::admit`], of a restore.
    pub(super) fn admit_load(&self, ticket: &Ticket, probe: bool) -> Result<Admission, ClientError> {
        self.admit(ticket, probe, self.live_loads < MAX_LOADS, self.of_restores())
    }

    pub(super) fn enter_load(&mut self, origin: Origin) {
        self.enter(origin);
        self.live_loads += 1;
    }

    pub(super) fn leave_load(&mut self, origin: Origin) {
        self.leave(origin);
        self.live_loads -= 1;
    }

    pub(super) fn forget_pin(&mut self, pin: &Arc<PinJob>) {
        self.pinned.retain(|other| !Arc::ptr_eq(other, pin));
    }

    pub(super) fn enter(&mut self, origin: Origin) {
        *self.live.entry(origin.session).or_default() += 1;
        if !origin.probe {
            *self.schedulers.entry(origin.scheduler).or_default() += 1;
        }
    }

    pub(super) fn leave(&mut self, origin: Origin) {
        let down = |map: &mut BTreeMap<u64, usize>, key| {
            if let Some(count) = map.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    map.remove(&key);
                }
            }
        };
        down(&mut self.live, origin.session);
        if !origin.probe {
            down(&mut self.schedulers, origin.scheduler);
        }
    }

    /// Whether a copy for that scheduler session, or an older one, runs or waits.
    pub(super) fn copies_for(&self, scheduler: u64) -> bool {
        self.schedulers.range(..=scheduler).next().is_some()
    }

    /// Earlier sessions whose copies have ended by now, no longer owed.
    pub(super) fn take_ended_sessions(&mut self) -> Vec<u64> {
        let ended: Vec<u64> =
            self.unattested.iter().filter(|s| !self.live.contains_key(s)).copied().collect();
        self.unattested.retain(|s| !ended.contains(s));
        ended
    }

    /// The end of a session's copies was said on the present connection, if that took the message.
    pub(super) fn attested(&mut self, earlier: u64, sent: bool) {
        if !sent {
            self.unattested.insert(earlier);
            return;
        }
        self.said.insert(earlier);
        if self.said.len() > MAX_SAID {
            self.said.pop_first();
        }
    }
}
