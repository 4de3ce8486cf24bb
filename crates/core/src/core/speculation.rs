//! Reads ahead of demand: owned preparations, which a request claims, and warm-ups, which nobody owns.
//!
//! Both live in a share of the budgets, and only while no demand waits. A range that does not fit is
//! skipped, never cut: half a range read ahead would make the demand behind it wait for the rest anyway.

use super::Core;
use crate::ledger::{Account, Side};
use crate::loading::{Loading, Planned};
use crate::operation::{Ask, Operation};
use crate::page::PageState;
use crate::slab::PageId;
use crate::{
    Effect, InstanceId, Mark, MissReason, Mode, OperationOutcome, Phase, Plant, Refusal, SessionId, Ticket,
    Trigger,
};

impl Core {
    /// Begins a preparation or a warm-up, or skips it.
    pub(super) fn speculate(
        &mut self,
        ticket: Ticket,
        mut op: Operation,
        mode: Mode,
        effects: &mut Vec<Effect>,
    ) {
        let warm = mode == Mode::WarmUp;
        let hits = self.survey(&op);
        let skipped = if self.speculations_full(ticket.session, warm) {
            self.mark(Mark::SpeculationLimit);
            Some(MissReason::Limit)
        } else if hits.len == 0
            || (op.strict && hits.len < op.wanted.len())
            || (warm && hits.resident.len() == hits.len)
        {
            Some(MissReason::Absent)
        } else {
            let resident = if warm { op.wanted.bytes(hits.resident.len()) } else { 0 };
            let bytes = op.wanted.bytes(hits.len) - resident;
            (!self.may_speculate(op.instance, bytes, warm)).then_some(MissReason::Budget)
        };
        if let Some(reason) = skipped {
            self.counters.skipped_speculations += 1;
            return self.push_outcome(ticket, OperationOutcome::Miss(reason), effects);
        }
        self.counters.speculations += 1;
        op.wanted.truncate(hits.len);
        let (phase, account, ttl_ms) = if warm {
            // What is resident already is neither leased nor counted as used.
            op.wanted.skip(hits.resident.len());
            self.mark(Mark::WarmUpBegun);
            (Phase::Warming, Account::Warming, self.config.warm_up_lifetime_ms)
        } else {
            self.mark(Mark::PreparationBegun);
            (Phase::Preloading, Account::Preloading, self.config.unclaimed_ttl_ms)
        };
        let len = op.wanted.len();
        let bytes = op.wanted.bytes(len);
        (op.phase, op.reading, op.charge) = (phase, account, Some((account, bytes)));
        self.ledger.transfer(Side::Free, Side::Held(op.instance, account), bytes);
        self.keep_operation(ticket, op);
        self.set_timer(ticket, self.now.plus_ms(ttl_ms));
        if warm {
            let loading = Loading { plan: vec![Planned::Stored; len], ..Loading::default() };
            if let Some(op) = self.operations.get_mut(&ticket) {
                op.loading = Some(Box::new(loading));
            }
            self.advance(ticket, effects);
        } else {
            self.begin_loading(ticket, len, effects);
        }
        if self.operations.get(&ticket).is_some_and(|op| op.loading.is_some()) {
            self.push_state(ticket, effects);
        }
    }

    /// Whether that session, or all of them, read ahead as much as they may.
    fn speculations_full(&self, session: SessionId, warm: bool) -> bool {
        let alike = |phase| (phase == Phase::Warming) == warm;
        let (mut all, mut own) = (0, 0);
        for (owner, phase) in self.operations.ahead() {
            all += 1;
            own += usize::from(owner == session && alike(phase));
        }
        let most = if warm { self.config.warm_ups_per_session } else { self.config.preparations_per_session };
        own >= most || all >= self.config.speculations
    }

    /// Whether so many bytes fit the speculative share and are in nobody's way.
    fn may_speculate(&mut self, instance: InstanceId, bytes: u64, warm: bool) -> bool {
        let (all, own) = (self.ledger.speculative_bytes(), self.ledger.instance_speculative_bytes(instance));
        let fits = all + bytes <= self.config.speculative_share(self.config.query_budget_bytes)
            && own + bytes <= self.config.speculative_share(self.config.query_instance_budget_bytes);
        if !fits && !self.planted(Plant::IgnoreShare) {
            self.mark(Mark::SpeculationTooLarge);
            return false;
        }
        let yields = !self.fits_now(instance, bytes) || (warm && self.demands_own_bytes());
        if yields {
            self.mark(Mark::SpeculationYields);
        }
        !yields
    }

    /// Whether any demand owns bytes, or waits for some.
    pub(super) fn demands_own_bytes(&self) -> bool {
        !self.queue.is_empty() || self.ledger.reserved_bytes() > self.ledger.speculative_bytes()
    }

    /// All pages of a preparation are leased and here, `read` of them by a read.
    pub(super) fn hold_prepared(
        &mut self,
        ticket: Ticket,
        pages: Vec<PageId>,
        read: usize,
        effects: &mut Vec<Effect>,
    ) {
        self.move_phase(ticket, Trigger::Lease);
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        let bytes = op.wanted.bytes(pages.len());
        let instance = op.instance;
        op.charge = Some((Account::Prepared, bytes));
        op.pages = pages;
        op.read = read;
        let (from, to) = (Side::Held(instance, op.reading), Side::Held(instance, Account::Prepared));
        self.ledger.transfer(from, to, bytes);
        self.push_state(ticket, effects);
    }

    /// The request that pages were prepared for has come. Bytes change their account and nothing is freed;
    /// from here on it is a demand like any other, and counts as a lookup.
    pub(super) fn claim(
        &mut self,
        ticket: Ticket,
        ask: &Ask,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let Some(op) = self.operations.get(&ticket) else {
            return Err(Refusal::UnknownOperation);
        };
        let phase = op.phase;
        if phase == Phase::Warming {
            return Err(Refusal::WrongPhase { phase: phase.name(), what: "claim" });
        }
        self.counters.claims += 1;
        let (expires_at, by_deadline) = self.end_of_wait(ask);
        let prepared = phase == Phase::Prepared;
        if prepared && self.forgotten_since(ticket) {
            self.stop(ticket);
            self.push_miss(ticket, ask.asked, MissReason::Absent, effects);
            return Ok(());
        }
        let Some(op) = self.operations.get_mut(&ticket) else {
            return Ok(());
        };
        let instance = op.instance;
        op.phase = op.phase.after(Trigger::Claim).unwrap_or(op.phase);
        op.by_deadline = by_deadline;
        let lingering = op.lingering_bytes;
        let reading = std::mem::replace(&mut op.reading, Account::Preparing);
        let (from, to) = if prepared {
            (Account::Prepared, Account::Ready)
        } else {
            (Account::Preloading, Account::Preparing)
        };
        let bytes = op.charge.map_or(0, |(_, bytes)| bytes);
        op.charge = op.charge.map(|(_, bytes)| (to, bytes));
        let (read, pages) = (op.read, op.pages.len());
        self.operations.claimed(&ticket);
        self.ledger.transfer(Side::Held(instance, from), Side::Held(instance, to), bytes);
        self.ledger.transfer(
            Side::Held(instance, reading),
            Side::Held(instance, Account::Preparing),
            lingering,
        );
        if prepared {
            self.mark(Mark::ClaimedPrepared);
            self.counters.answer(ask.asked.0, ask.asked.1, (pages - read, read));
            self.set_timer(ticket, self.now.plus_ms(self.config.lease_ttl_ms));
        } else {
            self.mark(Mark::ClaimedPreloading);
            self.set_timer(ticket, expires_at);
            effects.push(Effect::Hasten { ticket });
        }
        self.push_state(ticket, effects);
        if prepared {
            self.write_used(ticket, effects);
        }
        Ok(())
    }

    /// Gives back what was forgotten or found bad since it was prepared, and what is behind it. Returns
    /// whether nothing is left.
    fn forgotten_since(&mut self, ticket: Ticket) -> bool {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return true;
        };
        let here = |id: &PageId| {
            let state = self.index.pages.get(*id).map(|page| page.state);
            matches!(state, Some(PageState::Sealed | PageState::Spare))
        };
        let mut left = op.pages.iter().take_while(|id| here(id)).count();
        if op.strict && left < op.pages.len() {
            left = 0;
        }
        let gone = op.pages.split_off(left);
        if gone.is_empty() {
            return false;
        }
        let (instance, held) = (op.instance, op.wanted.bytes(left));
        let bytes = op.wanted.bytes(left + gone.len()) - held;
        op.read = op.read.min(left);
        op.charge = (left > 0).then_some((Account::Prepared, held));
        self.mark(Mark::ForgottenWhilePrepared);
        self.ledger.transfer(Side::Held(instance, Account::Prepared), Side::Free, bytes);
        self.wake = true;
        gone.into_iter().rev().for_each(|id| self.drop_lease(id));
        left == 0
    }

    /// The owner still wants what it prepared. Unknown and claimed operations are late words.
    pub(super) fn keep_prepared(&mut self, ticket: Ticket) -> Result<(), Refusal> {
        self.session(ticket.session)?;
        let waits = |op: &Operation| matches!(op.phase, Phase::Preloading | Phase::Prepared);
        if self.operations.get(&ticket).is_some_and(waits) {
            self.mark(Mark::Kept);
            self.set_timer(ticket, self.now.plus_ms(self.config.unclaimed_ttl_ms));
        }
        Ok(())
    }

    /// Nobody came for it in time.
    pub(super) fn expire_speculation(&mut self, ticket: Ticket, effects: &mut Vec<Effect>) {
        let Some(op) = self.operations.get(&ticket) else {
            return;
        };
        if op.phase == Phase::Warming {
            return self.end_warm_up(ticket, effects);
        }
        if self.planted(Plant::KeepUnclaimed) {
            return;
        }
        self.mark(Mark::PreparationExpired);
        self.counters.expired_preparations += 1;
        self.stop(ticket);
        self.push_outcome(ticket, OperationOutcome::Miss(MissReason::Expired), effects);
    }

    /// A warm-up has read what it could.
    pub(super) fn end_warm_up(&mut self, ticket: Ticket, effects: &mut Vec<Effect>) {
        let pages = self.operations.get(&ticket).map_or(0, |op| op.read);
        self.end_preparing(ticket);
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        self.push_outcome(ticket, OperationOutcome::Warmed { pages }, effects);
    }

    /// A page that is there already: leased, or passed by a warm-up.
    pub(super) fn place_resident(&mut self, ticket: Ticket, at: usize, page: PageId) {
        if self.operations.get(&ticket).is_some_and(|op| op.phase == Phase::Warming) {
            self.place(ticket, at, None);
            self.pass(ticket, at);
        } else {
            self.take_lease(page);
            self.place(ticket, at, Some((page, false)));
        }
    }

    /// A page of a warm-up is in memory: nobody owns it, and its bytes are given back.
    fn pass(&mut self, ticket: Ticket, at: usize) {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        let (instance, page_bytes) = (op.instance, op.wanted.page_bytes(at));
        let planned = op.loading.as_mut().and_then(|loading| loading.plan.get_mut(at));
        let before = planned.map(|planned| std::mem::replace(planned, Planned::Passed));
        if let Some((account, bytes)) = op.charge {
            op.charge = (bytes > page_bytes).then_some((account, bytes - page_bytes));
            self.ledger.transfer(Side::Held(instance, account), Side::Free, page_bytes);
            self.wake = true;
        }
        if let Some(page) = before.and_then(Planned::page) {
            self.drop_lease(page);
        }
    }

    pub(super) fn warmed(&mut self, ticket: Ticket, at: usize) {
        if let Some(op) = self.operations.get_mut(&ticket) {
            op.read += 1;
        }
        self.pass(ticket, at);
    }
}
