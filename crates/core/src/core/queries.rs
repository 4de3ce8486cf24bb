//! Foreground demands, from the request to the final state.

use super::Core;
use super::timers::NEVER;
use crate::instance::Shape;
use crate::ledger::Account;
use crate::operation::{Ask, Handed, Operation};
use crate::page::Page;
use crate::session::Session;
use crate::wanted::Wanted;
use crate::{
    Demand, Effect, GroupId, Mark, Micros, MissReason, Mode, OperationId, OperationOutcome, Phase, Plant,
    RecoveredRange, Refusal, Ticket,
};

impl Core {
    pub(super) fn query(
        &mut self,
        ticket: Ticket,
        demand: &Demand<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let session = self.session(ticket.session)?;
        self.check_owner(session, demand.group, "query")?;
        let shape = self.shape_of(session, demand.group)?;
        self.check_count(demand.hashes.len())?;
        let wanted = || Wanted::prefix(demand.group, shape, demand.hashes);
        self.ask(ticket, &Ask::from(demand), wanted, effects)
    }

    /// Begins a query, or answers the same one again.
    pub(super) fn ask(
        &mut self,
        ticket: Ticket,
        ask: &Ask,
        wanted: impl FnOnce() -> Wanted,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        if let Some(live) = self.live(ticket.session, ticket.operation) {
            if live.revision == ticket.revision {
                return self.repeat_query(ticket, ask, effects);
            }
            self.supersede(live, ticket)?;
        } else {
            self.claim_id(ticket)?;
        }
        self.begin_query(ticket, ask, wanted, effects);
        Ok(())
    }

    /// Probe operations belong to workers, all others to schedulers.
    pub(super) fn check_owner(
        &self,
        session: &Session,
        group: GroupId,
        what: &'static str,
    ) -> Result<(), Refusal> {
        let fits = match group {
            GroupId::PROBE => session.role.rank().is_some(),
            _ => session.role.schedules(),
        };
        if fits { Ok(()) } else { Err(Refusal::WrongRole { role: session.role.name(), what }) }
    }

    pub(super) fn shape_of(&self, session: &Session, group: GroupId) -> Result<Shape, Refusal> {
        let instance = self.instances.get(&session.instance).ok_or(Refusal::UnknownSession)?;
        instance.shape(group).ok_or(Refusal::UnknownGroup(group.0))
    }

    pub(super) fn check_count(&self, got: usize) -> Result<(), Refusal> {
        let max = self.config.hashes_per_request;
        if got == 0 || got > max { Err(Refusal::HashCount { got, max }) } else { Ok(()) }
    }

    /// The revision of an operation whose interest has not ended.
    pub(super) fn live(&self, session: crate::SessionId, operation: OperationId) -> Option<Ticket> {
        self.operations.live(session, operation)
    }

    /// Operation ids only grow, so an id that is not live and not new has ended.
    pub(super) fn claim_id(&mut self, ticket: Ticket) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get_mut(&ticket.session) else {
            return Err(Refusal::UnknownSession);
        };
        if session.last_operation.is_some_and(|last| ticket.operation <= last) {
            self.mark(Mark::OperationRetired);
            return Err(Refusal::RetiredOperation);
        }
        session.last_operation = Some(ticket.operation);
        Ok(())
    }

    /// A higher revision replaces the live one and drains it; a lower one is stale.
    fn supersede(&mut self, live: Ticket, ticket: Ticket) -> Result<(), Refusal> {
        if ticket.revision < live.revision && !self.planted(Plant::AcceptStaleRevision) {
            self.mark(Mark::RevisionStale);
            let (got, current) = (ticket.revision.0, live.revision.0);
            return Err(Refusal::StaleRevision { got, current });
        }
        self.mark(Mark::RevisionReplaced);
        self.stop(live);
        Ok(())
    }

    /// The same request again, because a reply may have been lost: the same answer, no new charge. Or the
    /// claim of what was prepared.
    fn repeat_query(&mut self, ticket: Ticket, ask: &Ask, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let Some(op) = self.operations.get(&ticket) else {
            return Err(Refusal::UnknownOperation);
        };
        let unclaimed = op.phase.speculative();
        let claims_anything = unclaimed && self.planted(Plant::ClaimAnything);
        if op.digest != ask.digest && !claims_anything {
            self.mark(if unclaimed { Mark::ClaimMismatch } else { Mark::ParametersChanged });
            return Err(Refusal::ParametersChanged);
        }
        if unclaimed && ask.mode == Mode::Demand {
            return self.claim(ticket, ask, effects);
        }
        self.mark(Mark::QueryReplayed);
        if self.planted(Plant::DoubleCharge) {
            self.charge_again(ticket);
        }
        self.push_state(ticket, effects);
        Ok(())
    }

    fn begin_query(
        &mut self,
        ticket: Ticket,
        ask: &Ask,
        wanted: impl FnOnce() -> Wanted,
        effects: &mut Vec<Effect>,
    ) {
        let Ok(session) = self.session(ticket.session) else {
            return;
        };
        let (instance, used) = (session.instance, session.operations);
        let Some(known) = self.instances.get(&instance) else {
            return;
        };
        let (namespace, active) = (known.namespace, known.active);
        self.arrivals += 1;
        let ahead = ask.mode != Mode::Demand;
        if !active && ask.asked.0 != GroupId::PROBE {
            self.mark(Mark::InactiveMiss);
            return self.deny(ticket, ask.asked, ahead, MissReason::Inactive, effects);
        }
        if used >= self.config.operations_per_session || self.operations.len() >= self.config.operations {
            self.mark(Mark::LimitMiss);
            return self.deny(ticket, ask.asked, ahead, MissReason::Limit, effects);
        }
        let (expires_at, by_deadline) = self.end_of_wait(ask);
        let operation = Operation {
            instance,
            namespace,
            phase: Phase::Waiting,
            digest: ask.digest,
            wanted: wanted(),
            pages: Vec::new(),
            strict: ask.strict,
            wait_full_prefix: ask.wait_full_prefix,
            memory_only: ask.memory_only,
            read: 0,
            loading: None,
            reading: Account::Preparing,
            lingering: 0,
            lingering_bytes: 0,
            handed: Handed::default(),
            charge: None,
            expires_at: NEVER,
            arrival: self.arrivals,
            queued: None,
            by_deadline,
            revoked: false,
            owing: Vec::new(),
            early: Vec::new(),
        };
        if ahead {
            return self.speculate(ticket, operation, ask.mode, effects);
        }
        self.keep_operation(ticket, operation);
        self.admit_new(ticket, expires_at, effects);
    }

    pub(super) fn keep_operation(&mut self, ticket: Ticket, operation: Operation) {
        self.operations.insert(ticket, operation);
        if let Some(session) = self.sessions.get_mut(&ticket.session) {
            session.operations += 1;
        }
    }

    /// When a demand stops to wait, and whether a deadline of its own says so.
    pub(super) fn end_of_wait(&mut self, ask: &Ask) -> (Micros, bool) {
        let lifetime = self.now.plus_ms(self.config.operation_lifetime_ms);
        let timeout_ms = (self.config.read_timeout_ms > 0).then_some(self.config.read_timeout_ms);
        let asked_ms = ask.deadline_ms.map(u64::from).into_iter().chain(timeout_ms).min();
        let deadline = asked_ms.map(|ms| self.now.plus_ms(ms)).filter(|at| *at < lifetime);
        if ask.wait_full_prefix {
            if deadline.is_some() {
                self.mark(Mark::WaitedForFullPrefix);
            }
            return (lifetime, false);
        }
        (deadline.unwrap_or(lifetime), deadline.is_some())
    }

    /// A query that nothing is begun for. Only demands count as lookups.
    fn deny(
        &mut self,
        ticket: Ticket,
        asked: (GroupId, usize),
        ahead: bool,
        reason: MissReason,
        effects: &mut Vec<Effect>,
    ) {
        if ahead {
            self.counters.skipped_speculations += 1;
            return self.push_outcome(ticket, OperationOutcome::Miss(reason), effects);
        }
        self.push_miss(ticket, asked, reason, effects);
    }

    /// Final answer without pages, for a query that owns nothing.
    pub(super) fn push_miss(
        &mut self,
        ticket: Ticket,
        (group, asked): (GroupId, usize),
        reason: MissReason,
        effects: &mut Vec<Effect>,
    ) {
        self.counters.answer(group, asked, (0, 0));
        self.push_outcome(ticket, OperationOutcome::Miss(reason), effects);
    }

    #[allow(clippy::unused_self, reason = "a method like the others")]
    pub(super) fn push_outcome(&self, ticket: Ticket, state: OperationOutcome, effects: &mut Vec<Effect>) {
        effects.push(outcome(ticket, state));
    }

    /// Tells the owner where its query stands.
    pub(super) fn push_state(&self, ticket: Ticket, effects: &mut Vec<Effect>) {
        let Some(op) = self.operations.get(&ticket) else {
            return;
        };
        let state = match op.phase {
            Phase::Waiting | Phase::Preparing | Phase::Preloading | Phase::Warming => {
                OperationOutcome::Waiting
            }
            Phase::Prepared => {
                OperationOutcome::Prepared { pages: u32::try_from(op.pages.len()).unwrap_or(u32::MAX) }
            }
            Phase::Ready if op.revoked => OperationOutcome::Miss(MissReason::Expired),
            Phase::Ready | Phase::Restoring | Phase::Draining => {
                let pages = op.pages.iter().filter_map(|id| self.index.pages.get(*id));
                let shards = pages.clone().next().map_or(0, Page::shards);
                let mut parts = Vec::with_capacity(op.pages.len() * shards);
                pages.for_each(|page| page.append_parts(&mut parts));
                if op.wanted.recovery {
                    OperationOutcome::Recovered { ranges: recovered(&op.wanted), parts }
                } else {
                    OperationOutcome::Ready {
                        pages: u32::try_from(op.pages.len()).unwrap_or(u32::MAX),
                        shards: u16::try_from(shards).unwrap_or(u16::MAX),
                        parts,
                    }
                }
            }
        };
        effects.push(outcome(ticket, state));
    }

    /// As [`Core::cancel`]; workers may still be copying.
    pub(super) fn release(&mut self, ticket: Ticket) -> Result<(), Refusal> {
        let live = self.live(ticket.session, ticket.operation).and_then(|t| self.operations.get(&t));
        if live.is_some_and(|op| !op.owing.is_empty()) {
            self.mark(Mark::ReleaseBeforeDone);
        }
        self.cancel(ticket)
    }

    /// Interest ends, whatever the phase. Idempotent.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> Result<(), Refusal> {
        self.session(ticket.session)?;
        if let Some(live) = self.live(ticket.session, ticket.operation) {
            if ticket.revision < live.revision {
                self.mark(Mark::RevisionStale);
                let (got, current) = (ticket.revision.0, live.revision.0);
                return Err(Refusal::StaleRevision { got, current });
            }
            self.stop(live);
        }
        Ok(())
    }

    /// Ends interest. What workers still copy stays charged and leased until they are done.
    pub(super) fn stop(&mut self, ticket: Ticket) {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        if op.phase == Phase::Draining {
            return;
        }
        if op.loading.is_some() {
            return self.end_preparing(ticket);
        }
        let (copying, lingering) = (!op.owing.is_empty(), op.lingering > 0);
        op.phase = Phase::Draining;
        let queued = op.queued.is_some();
        self.stop_timer(ticket);
        if queued {
            self.leave_queue(ticket);
            self.wake = true;
        }
        if copying {
            self.mark(Mark::CancelDuringCopy);
        }
        if !(copying || lingering) || (copying && self.planted(Plant::FreeOnCancel)) {
            self.finish(ticket);
        }
    }
}

/// The ranges of a recovery. It is strict: all of its pages are leased, or none.
fn recovered(wanted: &Wanted) -> Vec<RecoveredRange> {
    let ranges = wanted.each_span().map(|(span, pages)| RecoveredRange {
        group: span.group,
        first_page: span.first_page,
        pages: u32::try_from(pages.len()).unwrap_or(u32::MAX),
        shards: span.shards,
    });
    ranges.collect()
}

/// The effect that carries a state.
fn outcome(ticket: Ticket, outcome: OperationOutcome) -> Effect {
    let Ticket { session, operation, revision } = ticket;
    Effect::Operation { session, operation, revision, outcome }
}
