//! Budget first: no page is leased before its bytes are reserved.

use super::Core;
use super::plan::TierReads;
use crate::instance::Shape;
use crate::ledger::{Account, Side};
use crate::operation::{Operation, Place};
use crate::slab::PageId;
use crate::{Effect, GroupId, InstanceId, Mark, Micros, MissReason, PageKey, Phase, Ticket, Trigger};
use std::collections::BTreeSet;

/// What the budgets say to a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    Now,
    /// Later; whether only the instance's own budget is in the way.
    Later {
        instance_only: bool,
    },
    Never,
}

/// What of a demand can be had.
pub(super) struct Hits {
    /// Its first pages, as far as they are in DRAM.
    pub(super) resident: Vec<PageId>,
    /// Pages in all, with those that must be read.
    pub(super) len: usize,
    /// Pages behind them that would have to be read, which it does not want.
    left: usize,
}

impl Core {
    /// First look at a new demand: answered now, or begun, or queued; in the end not after `until`.
    pub(super) fn admit_new(&mut self, ticket: Ticket, until: Micros, effects: &mut Vec<Effect>) {
        let Some(op) = self.operations.get(&ticket) else {
            return;
        };
        let (instance, asked) = (op.instance, op.asked());
        let hits = self.survey(op);
        let bytes = op.wanted.bytes(hits.len);
        if hits.len == 0 || self.falls_short(ticket, hits.len) {
            self.push_left(ticket, hits.left, effects);
            self.drop_operation(ticket);
            return self.push_miss(ticket, asked, MissReason::Absent, effects);
        }
        match self.fit(instance, bytes) {
            Fit::Now if self.queue.is_empty() => {
                self.mark(Mark::AdmittedAtOnce);
                self.admit(ticket, hits, effects);
                if self.operations.get(&ticket).is_some_and(|op| op.phase == Phase::Preparing) {
                    self.push_state(ticket, effects);
                }
            }
            Fit::Never => self.bypass(ticket, hits, asked, effects),
            Fit::Now | Fit::Later { .. } => self.enqueue(ticket, until),
        }
        // A lease has a time of its own.
        let waits = |op: &Operation| matches!(op.phase, Phase::Waiting | Phase::Preparing);
        if self.operations.get(&ticket).is_some_and(waits) {
            self.set_timer(ticket, until);
        }
    }

    /// The longest prefix that can be had: from DRAM, or by reads.
    pub(super) fn survey(&self, op: &Operation) -> Hits {
        let keys = || op.wanted.keys(op.namespace);
        // What fits an answer; a recovery was refused if it does not.
        let shards = op.wanted.spans.first().map_or(1, |span| usize::from(span.shards));
        let most = if op.wanted.recovery { usize::MAX } else { self.config.parts_per_answer / shards };
        let resident = self.index.prefix(op.namespace, op.wanted.groups(), most);
        let len = match self.stored.len() + self.reads.len() {
            0 => resident.len(),
            _ => {
                let rest = keys().take(most).skip(resident.len());
                resident.len() + rest.take_while(|key| self.obtainable(key)).count()
            }
        };
        // Nothing is read for it, nor waited for.
        let left = if op.memory_only { len - resident.len() } else { 0 };
        Hits { resident, len: len - left, left }
    }

    /// Tells a query that takes only what is in memory how much more there is.
    fn push_left(&mut self, ticket: Ticket, left_pages: usize, effects: &mut Vec<Effect>) {
        if left_pages > 0 {
            self.mark(Mark::LeftStored);
        }
        self.push_tier_reads(ticket, TierReads { left_pages, ..TierReads::default() }, effects);
    }

    /// Whether a page is in memory, or could be read.
    pub(super) fn obtainable(&self, key: &PageKey) -> bool {
        let readable = match self.index.reading.get(key) {
            Some(id) => self.is_awaited(*id),
            None => self.tier_reads && self.stored.contains(key),
        };
        readable || self.index.sealed(key).is_some()
    }

    /// Whether a strict demand would not get all it asks for.
    fn falls_short(&mut self, ticket: Ticket, len: usize) -> bool {
        let short = self.operations.get(&ticket).is_some_and(|op| op.strict && len < op.wanted.len());
        if short {
            self.mark(Mark::StrictMiss);
        }
        short
    }

    pub(super) fn shape_for(&self, op: &Operation, group: GroupId) -> Option<Shape> {
        self.instances.get(&op.instance)?.shape(group)
    }

    /// Whether bytes can be had now without overtaking anybody.
    pub(super) fn fits_now(&self, instance: InstanceId, bytes: u64) -> bool {
        self.queue.is_empty() && self.fit(instance, bytes) == Fit::Now
    }

    fn fit(&self, instance: InstanceId, bytes: u64) -> Fit {
        let own_limit = self.config.query_instance_budget_bytes;
        if bytes > own_limit || bytes > self.ledger.budget_bytes() {
            return Fit::Never;
        }
        let own = self.ledger.instance_bytes(instance) + bytes <= own_limit;
        let all = bytes <= self.ledger.free_bytes();
        if own && all { Fit::Now } else { Fit::Later { instance_only: all } }
    }

    /// A demand larger than its budget is answered at once with the prefix that fits.
    fn bypass(&mut self, ticket: Ticket, mut hits: Hits, asked: (GroupId, usize), effects: &mut Vec<Effect>) {
        self.counters.budget_bypasses += 1;
        self.mark(Mark::Bypassed);
        let Some(op) = self.operations.get(&ticket) else {
            return;
        };
        let own_limit = self.config.query_instance_budget_bytes;
        let own = own_limit.saturating_sub(self.ledger.instance_bytes(op.instance));
        let pages = op.wanted.fitting(own.min(self.ledger.free_bytes()));
        if pages == 0 || op.strict || !self.queue.is_empty() {
            self.mark(Mark::BypassedToNothing);
            self.drop_operation(ticket);
            return self.push_miss(ticket, asked, MissReason::Budget, effects);
        }
        hits.len = hits.len.min(pages);
        hits.resident.truncate(hits.len);
        self.admit(ticket, hits, effects);
    }

    fn enqueue(&mut self, ticket: Ticket, deadline: Micros) {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        let arrival = op.arrival;
        op.queued = Some(deadline);
        self.queue.insert((self.place_in_queue(deadline, arrival), ticket));
        // Those ahead may wait for the budget of their own instance only: then it is admitted in this step.
        self.wake = true;
        self.newcomer = Some(ticket);
    }

    /// Deadlines order what came together: a demand is overtaken at most by the rest of its turn.
    pub(super) fn place_in_queue(&self, deadline: Micros, arrival: u64) -> Place {
        Place { turn: arrival / self.config.arrivals_per_turn, deadline, arrival }
    }

    /// Tells who came in this step and must wait.
    pub(super) fn greet_newcomer(&mut self, effects: &mut Vec<Effect>) {
        let Some(ticket) = self.newcomer.take() else {
            return;
        };
        if self.operations.get(&ticket).is_some_and(|op| op.phase == Phase::Waiting) {
            self.counters.budget_waits += 1;
            self.waiting_since.insert(ticket, self.now);
            self.push_state(ticket, effects);
        }
    }

    /// Bytes came free: admits waiters in order. One that waits for its own instance's budget lets
    /// those of other instances pass; one that waits for the global budget lets nobody pass.
    pub(super) fn admit_waiting(&mut self, effects: &mut Vec<Effect>) {
        let mut blocked = BTreeSet::new();
        let waiting: Vec<Ticket> = self.queue.iter().map(|(_, ticket)| *ticket).collect();
        for ticket in waiting {
            let Some(op) = self.operations.get(&ticket) else {
                continue;
            };
            let (instance, asked) = (op.instance, op.asked());
            if blocked.contains(&instance) {
                continue;
            }
            let hits = self.survey(op);
            let bytes = op.wanted.bytes(hits.len);
            if hits.len == 0 || self.falls_short(ticket, hits.len) {
                self.push_left(ticket, hits.left, effects);
                self.leave_queue(ticket);
                self.drop_operation(ticket);
                self.push_miss(ticket, asked, MissReason::Absent, effects);
                continue;
            }
            match self.fit(instance, bytes) {
                Fit::Now => {
                    self.mark(Mark::AdmittedLater);
                    self.leave_queue(ticket);
                    self.admit(ticket, hits, effects);
                }
                Fit::Later { instance_only: true } => {
                    // Small demands behind it would keep its instance's budget used up for ever.
                    blocked.insert(instance);
                    self.mark(Mark::InstanceBudgetBlocked);
                }
                Fit::Later { instance_only: false } => break,
                Fit::Never => {
                    self.leave_queue(ticket);
                    self.bypass(ticket, hits, asked, effects);
                }
            }
        }
    }

    pub(super) fn leave_queue(&mut self, ticket: Ticket) {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        let arrival = op.arrival;
        if let Some(deadline) = op.queued.take() {
            self.queue.remove(&(self.place_in_queue(deadline, arrival), ticket));
        }
        if let Some(since) = self.waiting_since.remove(&ticket) {
            self.budget_wait.observe_micros(self.now.0.saturating_sub(since.0));
        }
    }

    /// Reserves the bytes and leases the pages. Answers at once if all of them are in DRAM.
    fn admit(&mut self, ticket: Ticket, hits: Hits, effects: &mut Vec<Effect>) {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        let bytes = op.wanted.bytes(hits.len);
        let instance = op.instance;
        op.charge = Some((Account::Preparing, bytes));
        self.move_phase(ticket, Trigger::Admit);
        self.ledger.transfer(Side::Free, Side::Held(instance, Account::Preparing), bytes);
        if hits.resident.len() < hits.len {
            return self.begin_loading(ticket, hits.len, effects);
        }
        for page in hits.resident.iter().rev() {
            self.take_lease(*page);
        }
        self.push_left(ticket, hits.left, effects);
        self.hand_over(ticket, hits.resident, 0, effects);
    }

    /// All pages are leased and here, `read` of them by a read: answers.
    pub(super) fn hand_over(
        &mut self,
        ticket: Ticket,
        pages: Vec<PageId>,
        read: usize,
        effects: &mut Vec<Effect>,
    ) {
        self.move_phase(ticket, Trigger::Lease);
        let expires_at = self.now.plus_ms(self.config.lease_ttl_ms);
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        let bytes = op.wanted.bytes(pages.len());
        let (instance, (group, asked)) = (op.instance, op.asked());
        self.counters.answer(group, asked, (pages.len() - read, read));
        op.charge = Some((Account::Ready, bytes));
        op.pages = pages;
        op.wanted.hashes = Vec::new();
        self.set_timer(ticket, expires_at);
        let (from, to) = (Side::Held(instance, Account::Preparing), Side::Held(instance, Account::Ready));
        self.ledger.transfer(from, to, bytes);
        self.push_state(ticket, effects);
        self.write_used(ticket, effects);
    }

    /// Moves an operation on.
    ///
    /// # Panics
    /// If its phase does not allow the trigger: callers check, so this is a bug.
    pub(super) fn move_phase(&mut self, ticket: Ticket, trigger: Trigger) {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        let next: Option<Phase> = op.phase.after(trigger);
        assert!(next.is_some(), "{ticket:?} is {:?}, which does not allow {trigger:?}", op.phase);
        op.phase = next.unwrap_or(op.phase);
    }

    /// The defect of charging a repeated request again.
    pub(super) fn charge_again(&mut self, ticket: Ticket) {
        let Some(op) = self.operations.get(&ticket) else {
            return;
        };
        if let Some((account, bytes)) = op.charge
            && bytes <= self.ledger.free_bytes()
        {
            self.ledger.transfer(Side::Free, Side::Held(op.instance, account), bytes);
        }
    }

    /// Removes an operation that owns nothing.
    pub(super) fn drop_operation(&mut self, ticket: Ticket) {
        self.stop_timer(ticket);
        let Some(op) = self.operations.remove(&ticket) else {
            return;
        };
        assert!(op.charge.is_none() && op.pages.is_empty() && op.owing.is_empty());
        if let Some(session) = self.sessions.get_mut(&ticket.session) {
            session.operations -= 1;
        }
        self.forget_idle_session(ticket.session);
    }
}
