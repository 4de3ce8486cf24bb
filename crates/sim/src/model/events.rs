//! What an event must do, before and after the core has seen it.

use super::recovery::Required;
use super::{Model, Operation, Session};
use orbitkv_core::{
    Account, BlockHash, ClientId, Demand, Event, GroupId, Micros, Mode, OperationId, Phase, Recovery, Role,
    SaveRequest, SessionId, SessionSpec, SlotRef, Ticket,
};
use std::collections::BTreeSet;

/// What a query asks for.
struct Ask {
    wanted: Vec<(GroupId, BlockHash)>,
    shapes: Vec<(u16, u64)>,
    recovery: Option<Vec<(GroupId, u32)>>,
    /// All or nothing, and never cut short.
    rule: (bool, bool, bool),
    mode: Mode,
    deadline_ms: Option<u32>,
}

/// What the rules say to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    MustAccept,
    MustRefuse,
    /// Depends on limits that the model does not keep.
    Either,
}

/// The session whose request it is.
fn asker(event: &Event<'_>) -> Option<SessionId> {
    match *event {
        Event::Query { session, .. }
        | Event::Recover { session, .. }
        | Event::Candidates { session, .. }
        | Event::Restore { session, .. }
        | Event::Keep { session, .. }
        | Event::Release { session, .. }
        | Event::Cancel { session, .. }
        | Event::Reserve { session, .. }
        | Event::Attest { session, .. }
        | Event::CopyDone { session, .. }
        | Event::BadPage { session, .. }
        | Event::Commit { session, .. }
        | Event::Abort { session, .. }
        | Event::Fenced { session, .. }
        | Event::Forget { session, .. }
        | Event::Reset { session } => Some(session),
        _ => None,
    }
}

fn refuse_if(wrong: bool) -> Verdict {
    if wrong { Verdict::MustRefuse } else { Verdict::MustAccept }
}

impl Model {
    /// Whether the core must refuse the event.
    pub(crate) fn verdict(&self, event: &Event<'_>) -> Verdict {
        if asker(event).is_some_and(|session| self.open(session).is_none()) {
            return Verdict::MustRefuse;
        }
        match *event {
            // Epochs and seats are judged by what follows: only a newer epoch may close a session.
            Event::SessionOpened { .. } => Verdict::Either,
            Event::Query { session, operation, revision, demand } => {
                self.verdict_on_query(Ticket { session, operation, revision }, &self.prefix_ask(session, &demand))
            }
            Event::Recover { session, operation, revision, recovery } => {
                match self.recovery_ask(session, &recovery) {
                    Some(ask) => self.verdict_on_query(Ticket { session, operation, revision }, &ask),
                    None => Verdict::MustRefuse,
                }
            }
            Event::Candidates { session, start_tokens, .. } => {
                refuse_if(!start_tokens.is_multiple_of(self.boundary_tokens(session)))
            }
            Event::Reserve { session, operation, revision, request } => {
                self.verdict_on_reserve(Ticket { session, operation, revision }, &request)
            }
            Event::Restore { session, operation, revision, first, pages } => {
                self.verdict_on_restore(Ticket { session, operation, revision }, (first, pages))
            }
            Event::Release { session, operation, revision }
            | Event::Cancel { session, operation, revision } => {
                refuse_if(self.live(session, operation).is_some_and(|live| revision < live.revision))
            }
            Event::Commit { session, slot, hash, .. } => {
                let fill = self.fills.get(&slot).filter(|f| f.writer == session && !f.quarantined);
                let page = fill.and_then(|f| self.pages.get(&f.page));
                refuse_if(page.is_none_or(|p| p.key.hash != hash))
            }
            Event::Abort { session, slot } => {
                let fill = self.fills.get(&slot).filter(|f| !f.quarantined);
                let mine = fill.is_some_and(|f| {
                    let owner = self.pages.get(&f.page).map(|p| p.saver.0);
                    f.writer == session || owner == Some(session)
                });
                refuse_if(!mine)
            }
            Event::Fenced { session, scheduler } => {
                refuse_if(self.open(scheduler).is_some() && scheduler != session)
            }
            Event::Attest { .. }
            | Event::Keep { .. }
            | Event::CopyDone { .. }
            | Event::BadPage { .. }
            | Event::Forget { .. }
            | Event::Reset { .. }
            // Nobody can be refused for these.
            | Event::SessionClosed { .. }
            | Event::SessionGone { .. }
            | Event::DropUnleased
            | Event::Written { .. }
            | Event::ReadDone { .. }
            | Event::ReadOverdue { .. }
            | Event::ExtentLost { .. }
            | Event::ExtentMoved { .. }
            | Event::Found(_)
            | Event::FoundAll
            | Event::TierState { .. }
            | Event::Scrub { .. }
            | Event::Scrubbed { .. }
            | Event::SegmentReady { .. }
            | Event::SegmentFailed { .. }
            | Event::Tick => Verdict::MustAccept,
        }
    }

    /// Of a prefix any page or more may be handed out, a recovery only as a whole; once.
    fn verdict_on_restore(&self, ticket: Ticket, range: (u32, u32)) -> Verdict {
        let live = self.live(ticket.session, ticket.operation).filter(|live| *live == ticket);
        let op = live.and_then(|ticket| self.operations.get(&ticket));
        refuse_if(op.is_none_or(|op| {
            let nobody = op.phase == Phase::Ready && self.workers(op.instance).is_empty();
            let early = matches!(op.phase, Phase::Waiting | Phase::Preparing);
            let other = match op.phase {
                Phase::Ready if op.recovery.is_some() => range != (0, op.leased),
                Phase::Ready => range.1 == 0 || u64::from(range.0) + u64::from(range.1) > op.leased.into(),
                _ => range != op.range,
            };
            early || op.phase.speculative() || nobody || other
        }))
    }

    fn prefix_ask(&self, session: SessionId, demand: &Demand<'_>) -> Ask {
        let group = demand.group;
        let (shards, slot_bytes) = self.shape(session, group);
        Ask {
            wanted: demand.hashes.iter().map(|hash| (group, *hash)).collect(),
            shapes: vec![(shards, slot_bytes * u64::from(shards)); demand.hashes.len()],
            recovery: None,
            rule: (demand.strict, demand.wait_full_prefix, demand.memory_only),
            mode: demand.mode,
            deadline_ms: demand.deadline_ms,
        }
    }

    fn recovery_ask(&self, session: SessionId, recovery: &Recovery<'_>) -> Option<Ask> {
        let Required { pages: wanted, firsts } = self.required(session, recovery)?;
        let shape = |(group, _): &(GroupId, _)| {
            let (shards, slot_bytes) = self.shape(session, *group);
            (shards, slot_bytes * u64::from(shards))
        };
        Some(Ask {
            shapes: wanted.iter().map(shape).collect(),
            wanted,
            recovery: Some(firsts),
            rule: (true, false, false),
            mode: recovery.mode,
            deadline_ms: recovery.deadline_ms,
        })
    }

    fn verdict_on_query(&self, ticket: Ticket, ask: &Ask) -> Verdict {
        match self.live(ticket.session, ticket.operation) {
            Some(live) if ticket.revision == live.revision => {
                let fits = |op: &Operation| {
                    let same =
                        (&op.wanted, &op.recovery) == (&ask.wanted, &ask.recovery) && op.rule == ask.rule;
                    same && !(op.phase == Phase::Warming && ask.mode == Mode::Demand)
                };
                refuse_if(!self.operations.get(&live).is_some_and(fits))
            }
            Some(live) => refuse_if(ticket.revision < live.revision),
            None => refuse_if(self.used(ticket)),
        }
    }

    fn verdict_on_reserve(&self, ticket: Ticket, request: &SaveRequest<'_>) -> Verdict {
        match self.saves.get(&(ticket.session, ticket.operation)) {
            Some(save) => {
                let (group, parent, first_depth, hashes) = &save.request;
                let same = (*group, *parent, *first_depth)
                    == (request.group, request.parent, request.first_depth)
                    && hashes == request.hashes;
                refuse_if(!same || save.revision != ticket.revision)
            }
            None if self.used(ticket) => Verdict::MustRefuse,
            None => Verdict::Either,
        }
    }

    fn used(&self, ticket: Ticket) -> bool {
        self.sessions.get(&ticket.session).is_none_or(|s| ticket.operation.0 <= s.last_operation)
    }

    /// The event was accepted: what it changes by itself. Answers are learned from the effects.
    pub(crate) fn accept(&mut self, now: Micros, event: &Event<'_>) {
        match *event {
            Event::SessionOpened { session, client, spec, .. } => self.opened(session, client, spec),
            Event::SessionClosed { session } => self.closed(session),
            Event::SessionGone { session, .. } => {
                self.closed(session);
                self.settle(session, None);
                self.end_fills(session, None);
                self.sessions.remove(&session);
            }
            Event::Fenced { session, scheduler } => {
                self.settle(session, Some(scheduler));
                self.end_fills(session, Some(scheduler));
            }
            Event::Query { session, operation, revision, demand } => {
                let ask = self.prefix_ask(session, &demand);
                self.asked(now, Ticket { session, operation, revision }, ask);
            }
            Event::Recover { session, operation, revision, recovery } => {
                if let Some(ask) = self.recovery_ask(session, &recovery) {
                    self.asked(now, Ticket { session, operation, revision }, ask);
                }
            }
            Event::Reserve { session, operation, .. } => self.use_number(session, operation),
            Event::Restore { session, operation, revision, first, pages } => {
                self.handed(Ticket { session, operation, revision }, (first, pages));
            }
            Event::Release { session, operation, .. } | Event::Cancel { session, operation, .. } => {
                if let Some(live) = self.live(session, operation) {
                    self.stop(live);
                }
            }
            Event::Keep { session, operation, revision } => {
                if let Some(op) = self.operations.get_mut(&Ticket { session, operation, revision }) {
                    op.kept_us = now.0;
                }
            }
            Event::CopyDone { session, ticket } => self.copy_done(session, ticket),
            Event::Commit { slot, crc, .. } => self.committed(slot, crc),
            Event::Abort { slot, .. } => self.aborted(slot),
            Event::BadPage { session, slot } => self.bad_page(session, slot),
            Event::Forget { session, group, hashes } => self.forget(session, group, hashes),
            Event::Reset { session } => self.reset(session),
            Event::Written { slot, extent } => self.written(slot, extent),
            Event::ReadDone { slot, good } => self.read_ended(slot, good),
            Event::ReadOverdue { slot } => self.read_overdue(slot),
            Event::ExtentLost { extent, .. } => self.extent_lost(extent),
            Event::ExtentMoved { from, to, .. } => self.tier.moved(from, to),
            Event::Found(found) => self.tier.found(found),
            Event::FoundAll => self.tier.found_all(),
            Event::TierState { reads, .. } => self.tier.set_readable(reads),
            Event::Scrubbed { slot, good } => self.scrub_ended(slot, good),
            // What of it stays is seen in the core.
            Event::DropUnleased
            | Event::Candidates { .. }
            | Event::Attest { .. }
            | Event::SegmentReady { .. }
            | Event::SegmentFailed { .. }
            | Event::Scrub { .. }
            | Event::Tick => {}
        }
    }

    fn opened(&mut self, session: SessionId, client: ClientId, spec: &SessionSpec) {
        let fresh = Session { client, spec: spec.clone(), open: true, last_operation: 0 };
        self.sessions.insert(session, fresh);
    }

    /// Interest ends; what is being written can never be committed any more.
    pub(super) fn closed(&mut self, session: SessionId) {
        let Some(known) = self.sessions.get_mut(&session).filter(|s| s.open) else {
            return;
        };
        known.open = false;
        let schedules = known.spec.role == Role::Scheduler;
        let own = self.operations.keys().filter(|t| t.session == session);
        for ticket in own.copied().collect::<Vec<_>>() {
            // What it did with a ready lease at the last moment is not known.
            if schedules {
                self.presume_handed(ticket);
            }
            self.stop(ticket);
        }
        self.quarantine(session);
    }

    pub(super) fn use_number(&mut self, session: SessionId, operation: OperationId) {
        if let Some(known) = self.sessions.get_mut(&session) {
            known.last_operation = known.last_operation.max(operation.0);
        }
    }

    /// A new query, or a new version of one. A repetition changes nothing.
    fn asked(&mut self, now: Micros, ticket: Ticket, ask: Ask) {
        self.use_number(ticket.session, ticket.operation);
        if let Some(live) = self.live(ticket.session, ticket.operation) {
            if live.revision == ticket.revision {
                return self.claim(live, ask.mode);
            }
            self.stop(live);
        }
        let Some(instance) = self.sessions.get(&ticket.session).map(|s| s.spec.instance) else {
            return;
        };
        let lifetime = self.config.operation_lifetime_ms;
        let timeout = Some(self.config.read_timeout_ms).filter(|ms| *ms > 0);
        let asked = ask.deadline_ms.map(u64::from);
        let cut = [asked, timeout].into_iter().flatten().filter(|_| !ask.rule.1);
        let wait_ms = cut.fold(lifetime, u64::min);
        self.arrivals += 1;
        let turn = self.arrivals / self.config.arrivals_per_turn;
        let operation = Operation {
            instance,
            phase: match ask.mode {
                Mode::Demand => Phase::Waiting,
                Mode::Prepare => Phase::Preloading,
                Mode::WarmUp => Phase::Warming,
            },
            rule: ask.rule,
            reading: match ask.mode {
                Mode::Demand => Account::Preparing,
                Mode::Prepare => Account::Preloading,
                Mode::WarmUp => Account::Warming,
            },
            unclaimed: ask.mode == Mode::Prepare,
            kept_us: now.0,
            learned: false,
            handed: false,
            wanted: ask.wanted,
            shapes: ask.shapes,
            recovery: ask.recovery,
            leased: 0,
            parts: Vec::new(),
            bytes: 0,
            lingering_bytes: 0,
            owing: BTreeSet::new(),
            range: (0, 0),
            early: BTreeSet::new(),
            place: (turn, now.plus_ms(wait_ms).0, self.arrivals),
        };
        self.operations.insert(ticket, operation);
        self.fresh = Some(ticket);
    }

    /// A demand for what was prepared: from now on it is one like any other.
    fn claim(&mut self, ticket: Ticket, mode: Mode) {
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        if mode == Mode::Demand && op.unclaimed {
            op.unclaimed = false;
            op.reading = Account::Preparing;
            if op.phase == Phase::Preloading {
                op.phase = Phase::Preparing;
            }
        }
    }

    fn handed(&mut self, ticket: Ticket, range: (u32, u32)) {
        let workers = match self.sessions.get(&ticket.session) {
            Some(s) if matches!(s.spec.role, Role::Worker { .. }) => BTreeSet::from([ticket.session]),
            Some(s) => self.workers(s.spec.instance).into_values().collect(),
            None => BTreeSet::new(),
        };
        if let Some(op) = self.operations.get_mut(&ticket)
            && op.phase == Phase::Ready
        {
            op.phase = Phase::Restoring;
            op.handed = true;
            op.range = range;
            if op.wanted.first().is_some_and(|(group, _)| *group != GroupId::PROBE) {
                self.restored_pages += u64::from(range.1);
            }
            op.owing = workers.difference(&op.early).copied().collect();
        }
    }

    /// Every connected worker may have the ticket.
    fn presume_handed(&mut self, ticket: Ticket) {
        let Some(op) = self.operations.get(&ticket).filter(|op| op.phase == Phase::Ready) else {
            return;
        };
        let workers: BTreeSet<_> = self.workers(op.instance).into_values().collect();
        let owing: BTreeSet<_> = workers.difference(&op.early).copied().collect();
        if let Some(op) = self.operations.get_mut(&ticket) {
            op.handed = !owing.is_empty();
            op.owing = owing;
        }
    }

    /// Interest in the operation ends. It is over once nobody copies, and nothing is read, for it.
    pub(super) fn stop(&mut self, ticket: Ticket) {
        if let Some(op) = self.operations.get_mut(&ticket) {
            op.phase = Phase::Draining;
        }
    }

    fn copy_done(&mut self, worker: SessionId, ticket: Ticket) {
        let instance = self.sessions.get(&worker).map(|s| s.spec.instance);
        let Some(op) = self.operations.get_mut(&ticket) else {
            return;
        };
        op.owing.remove(&worker);
        if op.phase == Phase::Ready && instance == Some(op.instance) {
            op.early.insert(worker);
        }
    }

    /// The worker copies nothing any more, for anybody or for one owner.
    fn settle(&mut self, worker: SessionId, owner: Option<SessionId>) {
        let tickets: Vec<Ticket> = self.operations.keys().copied().collect();
        for ticket in tickets.into_iter().filter(|t| owner.is_none_or(|o| t.session == o)) {
            if let Some(op) = self.operations.get_mut(&ticket) {
                op.owing.remove(&worker);
            }
        }
    }

    fn forget(&mut self, session: SessionId, group: GroupId, hashes: &[BlockHash]) {
        for hash in hashes {
            if let Some(key) = self.key(session, group, *hash) {
                self.complete.remove(&key);
                self.tier.forget_page(key);
            }
        }
    }

    fn bad_page(&mut self, session: SessionId, slot: SlotRef) {
        let Some(namespace) = self.sessions.get(&session).map(|s| s.spec.namespace) else {
            return;
        };
        for (_, commits) in self.complete.iter_mut().filter(|(key, _)| key.namespace == namespace) {
            commits.retain(|parts| parts.iter().all(|p| p.slot != slot));
        }
        self.tier.spoil(namespace, slot);
    }
}
