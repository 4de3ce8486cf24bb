//! From a ready lease to its end.

use super::Core;
use crate::ledger::{Account, Side};
use crate::operation::{Handed, Operation, Owing};
use crate::page::Page;
use crate::{GroupId, InstanceId, Mark, Phase, Plant, Refusal, Role, SessionId, Ticket, Trigger};
use std::ops::Range;

/// Places of the pages that a restore names: any of a prefix, or all of a recovery.
fn check_handed(op: &Operation, handed: Handed) -> Result<Range<usize>, Refusal> {
    let (Handed { first, pages }, leased) = (handed, op.pages.len());
    let range = handed.within(leased).ok_or(Refusal::OutsideLease { first, pages, leased })?;
    if op.wanted.recovery && range.len() < leased {
        return Err(Refusal::PartOfRecovery { first, pages, leased });
    }
    Ok(range)
}

impl Core {
    /// The owner hands pages of its lease to the workers: from here on they may read, until each says it is
    /// done. Those pages alone count as restored; custody is of the whole lease, as its bytes are.
    pub(super) fn restore(&mut self, ticket: Ticket, handed: Handed) -> Result<(), Refusal> {
        let role = self.session(ticket.session)?.role;
        let Some(live) = self.live(ticket.session, ticket.operation) else {
            return Err(Refusal::UnknownOperation);
        };
        let Some(op) = self.operations.get(&live) else {
            return Err(Refusal::UnknownOperation);
        };
        if live != ticket {
            self.mark(Mark::RevisionStale);
            let (got, current) = (ticket.revision.0, live.revision.0);
            return Err(Refusal::StaleRevision { got, current });
        }
        match op.phase {
            Phase::Restoring if op.handed == handed => return Ok(()),
            Phase::Restoring => {
                self.mark(Mark::RestoreRefused);
                return Err(Refusal::ParametersChanged);
            }
            Phase::Ready => {}
            other => {
                return Err(Refusal::WrongPhase { phase: other.name(), what: "restore" });
            }
        }
        let range = check_handed(op, handed).inspect_err(|_| self.marks.hit(Mark::RestoreRefused))?;
        let mut owing: Vec<Owing> = match role {
            Role::Worker { rank } => vec![Owing { session: ticket.session, rank }],
            _ => self.workers_of(op.instance),
        };
        if owing.is_empty() {
            return Err(Refusal::NoWorker);
        }
        owing.retain(|owed| !op.early.contains(&owed.session));
        if op.wanted.group() != GroupId::PROBE {
            self.counters.restored_pages += u64::from(handed.pages);
        }
        if range.len() < op.pages.len() {
            self.marks.hit(Mark::PartHandedOut);
        }
        if let Some(op) = self.operations.get_mut(&ticket) {
            op.handed = handed;
        }
        self.count_ahead(ticket, range);
        self.hand_out(ticket, owing);
        Ok(())
    }

    /// Those of the pages that were read ahead are of use now.
    fn count_ahead(&mut self, ticket: Ticket, range: Range<usize>) {
        let Some(op) = self.operations.get(&ticket) else {
            return;
        };
        for id in op.pages.get(range).into_iter().flatten() {
            let page = self.index.pages.get_mut(*id);
            let bytes = page.map_or(0, Page::take_ahead_bytes);
            self.counters.ahead_restored_bytes += bytes;
            if bytes > 0 {
                self.marks.hit(Mark::AheadRestored);
            }
        }
    }

    /// A scheduler's connection ended with a ready lease: its `Restore` may have been lost with it, and a
    /// worker that got the ticket may be reading. So the workers owe an end of copy, or a fence.
    pub(super) fn presume_handed_out(&mut self, ticket: Ticket) {
        let Some(op) = self.operations.get(&ticket).filter(|op| op.phase == Phase::Ready) else {
            return;
        };
        let mut owing = self.workers_of(op.instance);
        owing.retain(|owed| !op.early.contains(&owed.session));
        if !owing.is_empty() {
            self.mark(Mark::PresumedHandedOut);
            self.hand_out(ticket, owing);
        }
    }

    fn workers_of(&self, instance: InstanceId) -> Vec<Owing> {
        let workers = self.instances.get(&instance).into_iter().flat_map(|i| &i.workers);
        workers.map(|(&rank, &session)| Owing { session, rank }).collect()
    }

    fn hand_out(&mut self, ticket: Ticket, owing: Vec<Owing>) {
        self.move_phase(ticket, Trigger::Hand);
        for owed in &owing {
            self.count_readers(ticket, *owed, 1);
            if let Some(session) = self.sessions.get_mut(&owed.session) {
                session.owing += 1;
            }
        }
        let expiry = self.stop_timer(ticket);
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        op.owing = owing;
        if let Some((_, bytes)) = op.charge {
            let from = Side::Held(op.instance, Account::Ready);
            self.ledger.transfer(from, Side::Held(op.instance, Account::Restoring), bytes);
            op.charge = Some((Account::Restoring, bytes));
        }
        if let Some(expiry) = expiry.filter(|_| self.planted(Plant::ExpireDuringCopy)) {
            self.timers.insert((expiry, ticket));
        }
    }

    /// Adds `by` to the reader count of the slots that a worker's rank copies from.
    fn count_readers(&mut self, ticket: Ticket, owed: Owing, by: i64) {
        let Some(op) = self.operations.get(&ticket) else {
            return;
        };
        for id in &op.pages {
            let Some(page) = self.index.pages.get(*id) else {
                continue;
            };
            let shard = usize::from(owed.rank) % page.shards();
            let Some(part) = page.part(shard) else {
                continue;
            };
            if let Some(slot) = self.slots.get_mut(part.slot) {
                slot.readers = slot.readers.saturating_add_signed(i32::try_from(by).unwrap_or(0));
            }
        }
    }

    /// A worker's part has ended. Unknown tickets are late answers and change nothing.
    pub(super) fn copy_done(&mut self, session: SessionId, ticket: Ticket) -> Result<(), Refusal> {
        let known = self.session(session)?;
        let (instance, copies) = (known.instance, known.role.rank().is_some());
        let Some(op) = self.operations.get_mut(&ticket) else {
            return Ok(());
        };
        if op.phase == Phase::Ready && op.instance == instance && copies {
            if !op.early.contains(&session) {
                op.early.push(session);
            }
            self.mark(Mark::DoneBeforeRestore);
            return Ok(());
        }
        let draining = op.phase == Phase::Draining;
        if self.settle(ticket, session) && draining {
            self.mark(Mark::DrainedByDone);
        }
        Ok(())
    }

    /// The worker owes this operation nothing any more. Returns whether it did.
    fn settle(&mut self, ticket: Ticket, worker: SessionId) -> bool {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return false;
        };
        let Some(place) = op.owing.iter().position(|o| o.session == worker) else {
            return false;
        };
        let owed = op.owing.swap_remove(place);
        let over = op.phase == Phase::Draining && op.owing.is_empty() && op.lingering == 0;
        self.count_readers(ticket, owed, -1);
        if let Some(session) = self.sessions.get_mut(&worker) {
            session.owing -= 1;
        }
        if over {
            self.finish(ticket);
        }
        true
    }

    /// A worker owes nothing any more: to anybody, or to the operations of one owner.
    pub(super) fn settle_owing(&mut self, worker: SessionId, owner: Option<SessionId>, mark: Mark) {
        for ticket in self.operations.tickets(owner) {
            let draining = self.operations.get(&ticket).is_some_and(|op| op.phase == Phase::Draining);
            if self.settle(ticket, worker) && draining {
                self.mark(mark);
            }
        }
    }

    /// The end: leases are dropped and bytes go back. Only with nobody copying.
    pub(super) fn finish(&mut self, ticket: Ticket) {
        while let Some(owed) = self.operations.get(&ticket).and_then(|op| op.owing.first().copied()) {
            // Reached only by planted defects; the bookkeeping stays consistent so that the checkers,
            // not an assertion, must find them.
            self.count_readers(ticket, owed, -1);
            if let Some(op) = self.operations.get_mut(&ticket) {
                op.owing.swap_remove(0);
            }
            if let Some(session) = self.sessions.get_mut(&owed.session) {
                session.owing -= 1;
            }
        }
        self.leave_queue(ticket);
        self.stop_timer(ticket);
        let Some(op) = self.operations.remove(&ticket) else {
            return;
        };
        if let Some((account, bytes)) = op.charge
            && !self.planted(Plant::LeakOnCancel)
        {
            self.ledger.transfer(Side::Held(op.instance, account), Side::Free, bytes);
            self.wake = true;
        }
        self.drop_leases(&op.pages);
        if let Some(session) = self.sessions.get_mut(&ticket.session) {
            session.operations -= 1;
        }
        self.forget_idle_session(ticket.session);
    }
}
