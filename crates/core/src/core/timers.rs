//! What ends by itself.

use super::Core;
use crate::{Effect, Mark, Micros, MissReason, Phase, Plant, Ticket};

/// Of an operation without a timer.
pub(super) const NEVER: Micros = Micros(u64::MAX);

impl Core {
    /// When [`Core::step`] next has something to do without an event, if ever.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Micros> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Ends every operation whose time has come.
    pub(super) fn expire(&mut self, effects: &mut Vec<Effect>) {
        while let Some(&(at, ticket)) = self.timers.first() {
            if at > self.now {
                break;
            }
            self.timers.pop_first();
            self.end_by_time(ticket, effects);
        }
    }

    /// An operation ends by itself at that time, and at no earlier one.
    pub(super) fn set_timer(&mut self, ticket: Ticket, at: Micros) {
        self.stop_timer(ticket);
        if let Some(op) = self.operations.get_mut(&ticket) {
            op.expires_at = at;
            self.timers.insert((at, ticket));
        }
    }

    /// It does not end by itself any more. Returns when it would have, if ever.
    pub(super) fn stop_timer(&mut self, ticket: Ticket) -> Option<Micros> {
        let op = self.operations.get_mut(&ticket)?;
        let at = std::mem::replace(&mut op.expires_at, NEVER);
        (at != NEVER).then(|| {
            self.timers.remove(&(at, ticket));
            at
        })
    }

    fn end_by_time(&mut self, ticket: Ticket, effects: &mut Vec<Effect>) {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        op.expires_at = NEVER;
        let (phase, by_deadline, asked) = (op.phase, op.by_deadline, op.asked());
        match phase {
            Phase::Waiting => {
                let (mark, reason) = if by_deadline {
                    (Mark::DeadlineMiss, MissReason::Deadline)
                } else {
                    (Mark::LifetimeMiss, MissReason::Lifetime)
                };
                self.mark(mark);
                self.counters.timed_out += 1;
                self.leave_queue(ticket);
                self.drop_operation(ticket);
                self.push_miss(ticket, asked, reason, effects);
                self.wake = true;
            }
            Phase::Ready => {
                // The owner may have handed it out just now, and a worker may be reading. So it is asked
                // for, not taken: it ends with the owner's release, or with the owner's session.
                op.revoked = true;
                self.mark(Mark::LeaseExpired);
                self.counters.expired_leases += 1;
                self.push_state(ticket, effects);
            }
            Phase::Warming | Phase::Preloading | Phase::Prepared => self.expire_speculation(ticket, effects),
            Phase::Preparing => {
                self.counters.timed_out += 1;
                let reason = if by_deadline { MissReason::Deadline } else { MissReason::Lifetime };
                self.answer(ticket, reason, effects);
                let ready = self.operations.get(&ticket).is_some_and(|op| op.phase == Phase::Ready);
                self.mark(if ready { Mark::PrefixAtDeadline } else { Mark::NothingAtDeadline });
            }
            Phase::Restoring if self.planted(Plant::ExpireDuringCopy) => self.finish(ticket),
            Phase::Restoring | Phase::Draining => {}
        }
    }
}
