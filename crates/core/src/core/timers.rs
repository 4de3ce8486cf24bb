//! What ends by itself.

use super::Core;
use crate::{Effect, Mark, Micros, MissReason, Phase, Plant, Ticket};

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

    fn end_by_time(&mut self, ticket: Ticket, effects: &mut Vec<Effect>) {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        op.expires_at = Micros(u64::MAX);
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
