//! The scheduler's side: queries, reservations, resets.

mod handles;
mod reservation;

pub use handles::{Candidates, Preparation, Query, Reset};
pub use reservation::Reservation;

use crate::link::{Fds, Handler, Link, LinkThread, Session};
use crate::operations::{Demand, Operations, RecoveryDemand, Wants};
use crate::registration::Registration;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::{ClientError, Hash};
use orbitkv_contract::Contract;
use orbitkv_wire::{Header, HelloRole, MAX_HASHES, Resume, ToClient};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Owns queries and reservations of one engine instance. Connects and reconnects by itself.
pub struct SchedulerClient {
    shared: Arc<Shared>,
    thread: Mutex<LinkThread>,
    groups: Vec<u16>,
    contract: Contract,
}

/// What the connection's thread sees.
struct Shared {
    link: Arc<Link>,
    operations: Arc<Operations>,
    active: AtomicBool,
    /// Session before this one; zero before the first.
    last_session: AtomicU64,
}

impl SchedulerClient {
    /// Starts the connection; returns at once.
    ///
    /// # Errors
    /// A registration that cannot be, or a system that gives no thread.
    pub fn new(registration: &Registration) -> Result<Self, ClientError> {
        let contract = registration.contract()?;
        let link = Arc::new(Link::new(registration, HelloRole::Scheduler, 0)?);
        let shared = Arc::new(Shared {
            operations: Arc::new(Operations::new(Arc::clone(&link))),
            link: Arc::clone(&link),
            active: AtomicBool::new(false),
            last_session: AtomicU64::new(0),
        });
        let handler: Arc<dyn Handler> = Arc::clone(&shared) as Arc<dyn Handler>;
        let thread = Mutex::new(link.start(handler)?);
        let groups = registration.groups.iter().map(|g| g.group).collect();
        Ok(Self { shared, thread, groups, contract })
    }

    /// Whether every rank is connected to the same manager and its self-test passed. One atomic load.
    #[must_use]
    pub fn active(&self) -> bool {
        self.shared.active.load(Ordering::Acquire)
    }

    /// Whether a manager has accepted the connection.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.shared.link.is_connected()
    }

    /// Identity of the manager's run, 32 hex digits; empty while not connected.
    #[must_use]
    pub fn boot(&self) -> String {
        self.shared.link.session().map(|s| format!("{:032x}", s.boot)).unwrap_or_default()
    }

    /// One line for people: connected, or why not, and what was last refused.
    #[must_use]
    pub fn status(&self) -> String {
        let (status, refusal) = (self.shared.link.status(), self.shared.operations.refusal());
        if refusal.is_empty() { status } else { format!("{status}; last refusal: {refusal}") }
    }

    /// Asks for the longest sealed prefix of `hashes`; never blocks. When not connected or over a limit
    /// the query is a miss at once. `deadline_ms` zero leaves the operation lifetime.
    ///
    /// # Errors
    /// A group that is not registered.
    pub fn query(&self, group: u16, hashes: &[Hash], deadline_ms: u32) -> Result<Query, ClientError> {
        self.demand(group, hashes, Demand { deadline_ms, ..Demand::default() })
    }

    /// As [`Self::query`], and says what answer is taken.
    ///
    /// # Errors
    /// A group that is not registered.
    pub fn demand(&self, group: u16, hashes: &[Hash], demand: Demand) -> Result<Query, ClientError> {
        self.check_group(group)?;
        let cell = self.shared.operations.query(group, hashes, demand);
        Ok(Query::new(cell, Arc::clone(&self.shared.operations)))
    }

    /// Reads the longest stored prefix of `hashes` ahead, for one request that will claim it; never blocks.
    /// When not connected or over a limit it is a miss at once.
    ///
    /// # Errors
    /// A group that is not registered.
    pub fn prepare(&self, group: u16, hashes: &[Hash]) -> Result<Preparation, ClientError> {
        self.check_group(group)?;
        let cell = self.shared.operations.prepare(Wants::Prefix { group, hashes });
        Ok(Preparation::new(cell, Arc::clone(&self.shared.operations)))
    }

    /// The pages of each cache group that the engine must restore to go on at `end_tokens` when it holds what
    /// it needs at `start_tokens`, as its recovery contract says: the demand for them.
    ///
    /// # Errors
    /// An empty span, tokens that are no boundaries, or more of them than the hashes cover.
    pub fn recovery(
        &self,
        start_tokens: u32,
        end_tokens: u32,
        hashes: &[Hash],
    ) -> Result<RecoveryDemand, ClientError> {
        let ranges = self.contract.required_ranges(start_tokens, end_tokens, hashes.len())?;
        Ok(RecoveryDemand { start_tokens, end_tokens, ranges, hashes: hashes.to_vec() })
    }

    /// Asks at which boundaries after `start_tokens` a recovery could end now; never blocks. Nothing is read
    /// or leased for it, so what it says may have changed when the recovery is asked for.
    #[must_use]
    pub fn candidates(&self, start_tokens: u32, hashes: &[Hash]) -> Candidates {
        let asked = self.shared.operations.candidates(start_tokens, hashes);
        Candidates::new(asked, Arc::clone(&self.shared.operations))
    }

    /// Asks for all pages of a boundary: it is ready with all of them, or a miss; never blocks. When not
    /// connected or over a limit it is a miss at once. `deadline_ms` as in [`Self::query`].
    #[must_use]
    pub fn read_recovery(&self, demand: &RecoveryDemand, deadline_ms: u32) -> Query {
        let cell = self.shared.operations.recover(demand, deadline_ms);
        Query::new(cell, Arc::clone(&self.shared.operations))
    }

    /// Reads all pages of a boundary ahead, for one request that will claim them; never blocks. Only the same
    /// demand claims them. When not connected or over a limit it is a miss at once.
    #[must_use]
    pub fn prepare_recovery(&self, demand: &RecoveryDemand) -> Preparation {
        let items = demand.items();
        let cell = self.shared.operations.prepare(Wants::Recovery(demand, &items));
        Preparation::new(cell, Arc::clone(&self.shared.operations))
    }

    /// Asks that pages be brought into memory, for nobody in particular; never blocks. True if the manager
    /// was asked; whether it does so shows in [`Self::stats`] alone.
    ///
    /// # Errors
    /// A group that is not registered.
    pub fn warm_up(&self, group: u16, hashes: &[Hash]) -> Result<bool, ClientError> {
        self.check_group(group)?;
        Ok(self.shared.operations.warm_up(group, hashes))
    }

    /// Asks for slots to save these pages into; never blocks.
    ///
    /// # Errors
    /// A group that is not registered, no hashes, or more than [`MAX_HASHES`].
    pub fn reserve(
        &self,
        group: u16,
        parent: Option<Hash>,
        first_depth: u32,
        hashes: &[Hash],
    ) -> Result<Reservation, ClientError> {
        self.check_group(group)?;
        if hashes.is_empty() || hashes.len() > MAX_HASHES {
            return Err(ClientError::value("hashes", hashes.len(), format!("1 to {MAX_HASHES} in number")));
        }
        let cells = self.shared.operations.reserve(group, parent, first_depth, hashes);
        Ok(Reservation::new(cells, Arc::clone(&self.shared.operations)))
    }

    /// Forgets every page of the namespace: now, or as the first thing on the next connection.
    ///
    /// # Errors
    /// Too many resets wait for a connection.
    pub fn reset(&self) -> Result<Reset, ClientError> {
        let cell = self.shared.operations.reset();
        cell.map(Reset::new).ok_or(ClientError::Limit { what: "resets waiting for the manager", max: 256 })
    }

    /// Counters of this client, by name.
    #[must_use]
    pub fn stats(&self) -> Vec<(&'static str, u64)> {
        let mut stats = self.shared.operations.counters.read();
        stats.push(("reconnects", self.shared.link.reconnects()));
        stats
    }

    /// Ends the session; idempotent. Open queries become misses.
    pub fn close(&self) {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).close();
    }

    fn check_group(&self, group: u16) -> Result<(), ClientError> {
        if self.groups.contains(&group) {
            return Ok(());
        }
        Err(ClientError::value("group", group, format!("one of those registered: {:?}", self.groups)))
    }
}

impl Handler for Shared {
    fn resume(&self) -> Option<Resume> {
        // A scheduler copies nothing.
        let session = self.last_session.load(Ordering::Acquire);
        (session != 0).then_some(Resume { session, copies_ended: true })
    }

    fn welcome(&self, session: Session) {
        self.last_session.store(session.number, Ordering::Release);
        self.operations.welcome(session);
    }

    fn message(&self, header: &Header, message: ToClient<'_>, _: &mut Fds) -> Result<(), String> {
        if let ToClient::InstanceState { active } = message {
            self.active.store(active, Ordering::Release);
            return Ok(());
        }
        if self.operations.message(header, &message)? {
            return Ok(());
        }
        Err(format!("the manager sent a scheduler {}", message.kind().name()))
    }

    fn disconnected(&self) {
        self.active.store(false, Ordering::Release);
        self.operations.disconnected();
    }

    fn timer(&self, now: Instant) -> Option<Instant> {
        self.operations.expire(now)
    }
}
