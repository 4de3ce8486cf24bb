//! The state machine: one struct, its parts split by noun.

mod admission;
mod audit;
mod eviction;
mod found;
mod leases;
mod memory;
mod pages;
mod plan;
mod queries;
mod reads;
mod recovery;
mod saves;
mod scrub;
mod sessions;
mod speculation;
mod tier;
mod timers;
mod views;
mod writers;

use crate::index::Index;
use crate::instance::Instance;
use crate::ledger::Ledger;
use crate::loading::Reading;
use crate::marks::Marks;
use crate::operation::{Handed, Place};
use crate::operations::Operations;
use crate::policy::LeafLru;
use crate::save::Save;
use crate::session::Session;
use crate::slab::PageId;
use crate::slots::Slots;
use crate::stored::Stored;
use crate::{
    ClientId, Config, ConfigError, Counters, Effect, Event, Histogram, InstanceId, Mark, Micros,
    NamespaceDigest, NamespaceId, OperationId, Plant, Refusal, Revision, SessionId, Ticket,
};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use tier::WriteBehind;

/// Buckets of [`Core::budget_wait`]: the last one ends above 60 s, an operation's default lifetime.
pub const BUDGET_WAIT_BUCKETS: usize = 23;

/// Everything the cache manager knows. See the crate documentation.
#[derive(Debug)]
pub struct Core {
    config: Config,
    now: Micros,
    sessions: BTreeMap<SessionId, Session>,
    clients: BTreeMap<ClientId, SessionId>,
    instances: BTreeMap<InstanceId, Instance>,
    namespaces: BTreeMap<NamespaceDigest, NamespaceId>,
    /// The same, the other way round.
    digests: BTreeMap<NamespaceId, NamespaceDigest>,
    next_namespace: u32,
    operations: Operations,
    saves: BTreeMap<(SessionId, OperationId), Save>,
    /// Waiting demands.
    queue: BTreeSet<(Place, Ticket)>,
    /// Queries that were begun or denied.
    arrivals: u64,
    /// Since when those of them wait that were told so.
    waiting_since: BTreeMap<Ticket, Micros>,
    /// How long operations waited in the queue, whatever ended it.
    budget_wait: Histogram<BUDGET_WAIT_BUCKETS>,
    /// Queued in this step.
    newcomer: Option<Ticket>,
    /// Operations that end by themselves.
    timers: BTreeSet<(Micros, Ticket)>,
    ledger: Ledger,
    index: Index,
    slots: Slots,
    policy: LeafLru,
    /// The index of the slower tier.
    stored: Stored,
    /// What an earlier run left there, until all of it is found.
    finding: Option<found::Finding>,
    /// Whether it can be read, and written.
    tier_reads: bool,
    tier_writes: bool,
    /// Pages being written to it.
    writes: HashMap<PageId, WriteBehind>,
    /// Pages being read from it.
    reads: HashMap<PageId, Reading>,
    /// The check of what is in memory.
    scrub: scrub::Scrub,
    /// Demands whose next read waits for memory.
    starved: BTreeSet<Ticket>,
    /// Bytes of slots that are granted and not committed.
    filling_bytes: u64,
    /// Grows with every use of a page.
    clock: u64,
    /// No growth before this time, after a failure.
    grow_after: Micros,
    /// Budget was freed in this step.
    wake: bool,
    counters: Counters,
    marks: Marks,
}

impl Core {
    /// An empty core.
    ///
    /// # Errors
    /// A configuration that contradicts itself.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            ledger: Ledger::new(config.query_budget_bytes),
            now: Micros::default(),
            sessions: BTreeMap::new(),
            clients: BTreeMap::new(),
            instances: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            digests: BTreeMap::new(),
            next_namespace: 0,
            operations: Operations::default(),
            saves: BTreeMap::new(),
            queue: BTreeSet::new(),
            arrivals: 0,
            waiting_since: BTreeMap::new(),
            budget_wait: Histogram::default(),
            newcomer: None,
            timers: BTreeSet::new(),
            index: Index::default(),
            slots: Slots::default(),
            policy: LeafLru::default(),
            stored: Stored::default(),
            finding: config.tier.then(found::Finding::default),
            tier_reads: true,
            tier_writes: true,
            writes: HashMap::new(),
            reads: HashMap::new(),
            scrub: scrub::Scrub::default(),
            starved: BTreeSet::new(),
            filling_bytes: 0,
            clock: 0,
            grow_after: Micros::default(),
            wake: false,
            counters: Counters::default(),
            marks: Marks::default(),
            config,
        })
    }

    /// Takes one event. Time never goes back: an earlier `now` counts as the latest one seen.
    /// Effects are appended in the order in which they must be carried out.
    pub fn step(&mut self, now: Micros, event: Event<'_>, effects: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        self.expire(effects);
        if let Some((session, operation, Err(refusal))) = self.dispatch(event, effects) {
            self.counters.refusals += 1;
            effects.push(Effect::Refused { session, operation, refusal });
        }
        while std::mem::take(&mut self.wake) {
            self.admit_waiting(effects);
        }
        self.greet_newcomer(effects);
    }

    /// Carries the event out. `None` for events that nobody can be refused for.
    fn dispatch(&mut self, event: Event<'_>, effects: &mut Vec<Effect>) -> Option<Outcome> {
        match event {
            Event::SessionOpened { session, client, epoch, spec } => {
                Some((session, None, self.open(session, client, epoch, spec, effects)))
            }
            Event::SessionClosed { session } => self.closed(session, effects),
            Event::SessionGone { session, evidence } => self.gone(session, evidence, effects),
            Event::DropUnleased => self.drop_unleased(),
            Event::SegmentReady { segment } => self.segment_ready(segment, effects),
            Event::SegmentFailed { segment } => self.segment_failed(segment, effects),
            Event::Written { slot, extent } => self.written(slot, extent, effects),
            Event::ReadDone { slot, good } => self.read_done(slot, good, effects),
            Event::ReadOverdue { slot } => self.read_overdue(slot, effects),
            Event::ExtentLost { .. }
            | Event::ExtentMoved { .. }
            | Event::Found(_)
            | Event::FoundAll
            | Event::TierState { .. } => self.tier_told(event, effects),
            Event::Scrub { .. } | Event::Scrubbed { .. } => self.scrub_told(event, effects),
            Event::Tick => None,
            Event::Query { session, operation, revision, .. }
            | Event::Recover { session, operation, revision, .. }
            | Event::Candidates { session, operation, revision, .. }
            | Event::Restore { session, operation, revision, .. }
            | Event::Keep { session, operation, revision }
            | Event::Release { session, operation, revision }
            | Event::Cancel { session, operation, revision }
            | Event::Reserve { session, operation, revision, .. } => {
                let result = self.own(Ticket { session, operation, revision }, event, effects);
                Some((session, Some((operation, revision)), result))
            }
            Event::Attest { session, .. }
            | Event::CopyDone { session, .. }
            | Event::BadPage { session, .. }
            | Event::Commit { session, .. }
            | Event::Abort { session, .. }
            | Event::Fenced { session, .. }
            | Event::Forget { session, .. }
            | Event::Reset { session } => Some((session, None, self.report(event, effects))),
        }
    }

    /// Requests about an operation of the session's own.
    fn own(&mut self, ticket: Ticket, event: Event<'_>, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        match event {
            Event::Query { demand, .. } => self.query(ticket, &demand, effects),
            Event::Recover { recovery, .. } => self.recover(ticket, &recovery, effects),
            Event::Candidates { start_tokens, hashes, .. } => {
                self.candidates(ticket, start_tokens, hashes, effects)
            }
            Event::Reserve { request, .. } => self.reserve(ticket, &request, effects),
            Event::Restore { first, pages, .. } => self.restore(ticket, Handed { first, pages }),
            Event::Keep { .. } => self.keep_prepared(ticket),
            Event::Release { .. } => self.release(ticket),
            _ => self.cancel(ticket),
        }
    }

    /// What a session says of itself, of its copies and of its namespace.
    fn report(&mut self, event: Event<'_>, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        match event {
            Event::Attest { session, passed } => self.attest(session, passed, effects),
            Event::CopyDone { session, ticket } => self.copy_done(session, ticket),
            Event::BadPage { session, slot } => self.bad_page(session, slot),
            Event::Commit { session, slot, hash, crc } => self.commit(session, slot, hash, crc, effects),
            Event::Abort { session, slot } => self.abort(session, slot),
            Event::Fenced { session, scheduler } => self.fenced(session, scheduler),
            Event::Forget { session, group, hashes } => self.forget(session, group, hashes, effects),
            Event::Reset { session } => self.reset(session, effects),
            _ => Ok(()),
        }
    }

    /// Whether that defect is planted. Constant `false` without the feature.
    fn planted(&self, plant: Plant) -> bool {
        cfg!(feature = "plant") && self.config.plant == Some(plant)
    }

    fn mark(&mut self, mark: Mark) {
        self.marks.hit(mark);
    }
}

/// Who asked, about what, and how it went.
type Outcome = (SessionId, Option<(OperationId, Revision)>, Result<(), Refusal>);
