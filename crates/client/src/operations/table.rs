//! Which operations are live, and when they time out.

use super::{Grants, Lease, MissReason, QueryCell, QueryState, ReservationCell, ResetCell};
use crate::clock::monotonic_us;
use crate::link::{Link, SendError, Session, Urgency};
use crate::ticket::PagePart;
use orbitkv_wire::{
    GrantStatus, GrantedBody, Hash, Header, MAX_HASHES, QueryRule, Slot, ToClient, ToManager, WireMiss,
};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most live operations; the manager's own limit is lower by default.
const MAX_LIVE: usize = 4096;
/// Most resets waiting for a connection.
const MAX_RESETS: usize = 256;
/// Most slots in one abort.
const ABORT_BATCH: usize = 4096;
/// Wait for an answer without a deadline of its own: the manager's operation lifetime and a little.
const LIFETIME: Duration = Duration::from_secs(65);

/// What happened to operations.
#[derive(Debug, Default)]
pub(crate) struct OperationCounters {
    pub(crate) queries: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) hits_pages: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) deadline_misses: AtomicU64,
    pub(crate) reserved_pages: AtomicU64,
    pub(crate) granted_pages: AtomicU64,
    pub(crate) refusals: AtomicU64,
}

enum Entry {
    Query(Arc<QueryCell>),
    Reservation(Arc<ReservationCell>),
    /// Every reset that the operation carries out.
    Reset(Vec<Arc<ResetCell>>),
}

#[derive(Default)]
struct Table {
    /// Operations may be opened on it.
    session: Option<Session>,
    live: HashMap<u64, Entry>,
    /// Client-side deadlines of pending queries.
    deadlines: BTreeSet<(Instant, u64)>,
    /// When the connection's thread will look again by itself.
    next_look: Option<Instant>,
    /// Resets not carried out when the connection was lost, or asked for without one.
    resets: Vec<Arc<ResetCell>>,
}

/// Live operations of one client. Lock order: the link's read side, this table, the link's buffer.
pub(crate) struct Operations {
    link: Arc<Link>,
    table: Mutex<Table>,
    pub(crate) counters: OperationCounters,
    /// The last refusal, for people.
    refusal: Mutex<String>,
}

impl Operations {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            table: Mutex::default(),
            counters: OperationCounters::default(),
            refusal: Mutex::default(),
        }
    }

    /// Asks for a prefix. `deadline_ms` zero leaves the manager's operation lifetime.
    pub(crate) fn query(&self, group: u16, hashes: &[Hash], deadline_ms: u32) -> Arc<QueryCell> {
        self.counters.queries.fetch_add(1, Ordering::Relaxed);
        let reads = self.link.try_reads();
        let opened = self.open_query(group, hashes, deadline_ms);
        if let Some(mut reads) = reads {
            // There already, if the manager ran before this thread went on.
            reads.read();
        }
        opened.unwrap_or_else(|reason| {
            self.counters.misses.fetch_add(1, Ordering::Relaxed);
            Arc::new(QueryCell::missed(reason))
        })
    }

    fn open_query(
        &self,
        group: u16,
        hashes: &[Hash],
        deadline_ms: u32,
    ) -> Result<Arc<QueryCell>, MissReason> {
        if hashes.is_empty() {
            return Err(MissReason::Absent);
        }
        let mut table = self.lock();
        if hashes.len() > MAX_HASHES || table.live.len() >= MAX_LIVE {
            return Err(MissReason::Limit);
        }
        let (session, operation) = table
            .open(&self.link, &ToManager::Query { group, deadline_ms, rule: QueryRule::default(), hashes })
            .map_err(|e| match e {
                SendError::Stale => MissReason::Disconnected,
                SendError::Full => MissReason::Limit,
            })?;
        let wait = match deadline_ms {
            0 => LIFETIME,
            ms => Duration::from_millis(u64::from(ms)),
        };
        let deadline = Instant::now() + wait;
        let ids = (session.number, session.boot, operation);
        let cell = Arc::new(QueryCell::pending(ids, group, deadline));
        table.live.insert(operation, Entry::Query(Arc::clone(&cell)));
        table.deadlines.insert((deadline, operation));
        // The thread wakes by itself at `next_look`; it need not be woken for anything later.
        if table.next_look.is_none_or(|at| deadline < at) {
            table.next_look = Some(deadline);
            self.link.wake();
        }
        Ok(cell)
    }

    /// Waits at most `timeout` for a final state, and reads the answer on this thread if no other reads.
    pub(crate) fn wait(&self, cell: &QueryCell, timeout: Duration) -> QueryState {
        let start = Instant::now();
        let pending = || cell.state() == QueryState::Pending;
        if pending()
            && let Some(mut reads) = self.link.try_reads()
        {
            reads.read_while(timeout, pending);
        }
        match cell.state() {
            QueryState::Pending => cell.wait(timeout.saturating_sub(start.elapsed())),
            state => state,
        }
    }

    /// Asks for slots. Impossible requests are answered in the cell.
    pub(crate) fn reserve(
        &self,
        group: u16,
        parent: Option<Hash>,
        first_depth: u32,
        hashes: Vec<Hash>,
    ) -> Arc<ReservationCell> {
        self.counters.reserved_pages.fetch_add(hashes.len() as u64, Ordering::Relaxed);
        let mut table = self.lock();
        let fits = !hashes.is_empty() && hashes.len() <= MAX_HASHES && table.live.len() < MAX_LIVE;
        // Before the request: the worker compares it with the beginning of its own session.
        let issued_us = monotonic_us();
        let message = ToManager::Reserve { group, parent, first_depth, hashes: &hashes };
        let opened = if fits { table.open(&self.link, &message).ok() } else { None };
        let Some((session, operation)) = opened else {
            return Arc::new(ReservationCell::refused(hashes));
        };
        let ids = (session.number, session.boot, operation);
        let cell = Arc::new(ReservationCell::pending(ids, group, issued_us, hashes));
        table.live.insert(operation, Entry::Reservation(Arc::clone(&cell)));
        cell
    }

    /// Asks to forget the namespace. Kept until a manager has done it; `None` when too many wait.
    pub(crate) fn reset(&self) -> Option<Arc<ResetCell>> {
        let mut table = self.lock();
        let waiting: usize = table.live.values().filter(|e| matches!(e, Entry::Reset(_))).count();
        if table.resets.len() + waiting >= MAX_RESETS {
            return None;
        }
        let cell = Arc::new(ResetCell::default());
        match table.open(&self.link, &ToManager::Reset) {
            Ok((_, operation)) => {
                table.live.insert(operation, Entry::Reset(vec![Arc::clone(&cell)]));
            }
            Err(_) => table.resets.push(Arc::clone(&cell)),
        }
        Some(cell)
    }

    /// Hands a ready lease out: tells the manager. True once, while the lease stands.
    pub(crate) fn hand_out(&self, cell: &QueryCell) -> bool {
        // Under the table's lock: a lost connection either comes before and has made it a miss, or
        // finds it handed out.
        let _table = self.lock();
        if !cell.hand_out() {
            return false;
        }
        let sent = self.send(cell.session, cell.operation, &ToManager::Restore);
        if !sent {
            cell.take_back(MissReason::Disconnected);
        }
        sent
    }

    /// Ends interest in a query, in whatever state.
    pub(crate) fn release(&self, cell: &QueryCell) {
        let known = self.remove(cell.session, cell.operation);
        let pending = cell.state() == QueryState::Pending;
        if pending {
            cell.miss(MissReason::Released);
            self.link.nudge_reader();
        }
        if known {
            let message = if pending { ToManager::Cancel } else { ToManager::Release };
            self.send(cell.session, cell.operation, &message);
        }
    }

    /// Gives back what a reservation was granted and no ticket holds.
    pub(crate) fn abandon(&self, cell: &ReservationCell) {
        // An unanswered one stays in the table: its answer is given back when it comes.
        self.abort(cell.session, &cell.abandon());
    }

    /// Gives slots back, in batches.
    pub(crate) fn abort(&self, session: u64, slots: &[Slot]) {
        for batch in slots.chunks(ABORT_BATCH) {
            self.send(session, 0, &ToManager::Abort(batch));
        }
    }

    /// Forgets pages.
    pub(crate) fn forget(&self, session: u64, group: u16, hashes: &[Hash]) {
        self.send(session, 0, &ToManager::Forget { group, hashes });
    }

    /// The last refusal of the manager; empty if there was none.
    pub(crate) fn refusal(&self) -> String {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connection's welcome. What waited for one goes first: nothing may be hit that an earlier
    /// reset was to forget.
    pub(crate) fn welcome(&self, session: Session) {
        let mut table = self.lock();
        table.session = Some(session);
        let resets = std::mem::take(&mut table.resets);
        if resets.is_empty() {
            return;
        }
        match table.open(&self.link, &ToManager::Reset) {
            Ok((_, operation)) => drop(table.live.insert(operation, Entry::Reset(resets))),
            Err(_) => table.resets = resets,
        }
    }

    /// The session ended: nothing pending will be answered.
    pub(crate) fn disconnected(&self) {
        let mut table = self.lock();
        table.session = None;
        table.deadlines.clear();
        let live: Vec<_> = table.live.drain().collect();
        for (_, entry) in live {
            match entry {
                Entry::Query(cell) => {
                    self.miss(&cell, MissReason::Disconnected);
                }
                Entry::Reservation(cell) => cell.impossible(),
                Entry::Reset(cells) => table.resets.extend(cells),
            }
        }
    }

    /// Makes expired queries misses and tells the manager; when to look again.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let mut table = self.lock();
        while let Some(&(deadline, operation)) = table.deadlines.first().filter(|(at, _)| *at <= now) {
            table.deadlines.remove(&(deadline, operation));
            if let Some(Entry::Query(cell)) = table.live.remove(&operation) {
                self.counters.deadline_misses.fetch_add(1, Ordering::Relaxed);
                self.miss(&cell, MissReason::Deadline);
                self.send(cell.session, operation, &ToManager::Cancel);
            }
        }
        // Nothing pending: an earlier plan to look stays, so that a stream of short queries does not
        // wake the thread for each.
        let first = table.deadlines.first().map(|(at, _)| *at);
        table.next_look = first.or(table.next_look.filter(|at| *at > now));
        table.next_look
    }

    /// Takes the manager's messages about operations; false for any other.
    pub(crate) fn message(&self, header: &Header, message: &ToClient<'_>) -> Result<bool, String> {
        let operation = header.operation.get();
        match *message {
            ToClient::Waiting => {}
            ToClient::Ready { pages, shards, .. } if pages == 0 || shards == 0 => {
                return Err(format!("operation {operation} is ready with no pages"));
            }
            ToClient::Ready { pages, shards, parts } => self.ready(operation, pages, shards, parts),
            ToClient::Miss(reason) => self.missed(operation, from_wire(reason)),
            ToClient::Granted(ref body) => self.granted(operation, body)?,
            ToClient::Refused { text } => self.refused(operation, text),
            ToClient::ResetDone => {
                if let Some(Entry::Reset(cells)) = self.lock().live.remove(&operation) {
                    cells.iter().for_each(|cell| cell.finish());
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn ready(&self, operation: u64, pages: u32, shards: u16, parts: &[orbitkv_wire::Part]) {
        let mut table = self.lock();
        let Some(Entry::Query(cell)) = table.live.get(&operation) else { return };
        let cell = Arc::clone(cell);
        table.deadlines.remove(&(cell.deadline, operation));
        let lease = Lease { pages, shards, parts: parts.iter().map(PagePart::from).collect() };
        if cell.ready(lease) {
            self.counters.hits.fetch_add(1, Ordering::Relaxed);
            self.counters.hits_pages.fetch_add(u64::from(pages), Ordering::Relaxed);
        }
    }

    fn missed(&self, operation: u64, reason: MissReason) {
        let mut table = self.lock();
        let Some(Entry::Query(cell)) = table.live.get(&operation) else { return };
        let cell = Arc::clone(cell);
        table.deadlines.remove(&(cell.deadline, operation));
        if !self.miss(&cell, reason) {
            // Handed out before this came: the manager learns of that, and the lease ends by release.
            return;
        }
        table.live.remove(&operation);
        if reason == MissReason::Expired {
            // The manager asks for the lease; it keeps the pages until it hears that nobody has them.
            self.send(cell.session, operation, &ToManager::Release);
        }
    }

    fn granted(&self, operation: u64, body: &GrantedBody<'_>) -> Result<(), String> {
        let mut table = self.lock();
        let Some(Entry::Reservation(cell)) = table.live.get(&operation) else { return Ok(()) };
        let cell = Arc::clone(cell);
        table.live.remove(&operation);
        drop(table);
        let grants = Grants::from_wire(body, cell.hashes.len())?;
        let granted = grants.statuses.iter().filter(|s| **s == GrantStatus::Slots).count() as u64;
        self.counters.granted_pages.fetch_add(granted, Ordering::Relaxed);
        self.abort(cell.session, &cell.answer(grants));
        Ok(())
    }

    /// A request broke a rule: the operation is over.
    fn refused(&self, operation: u64, text: &str) {
        self.counters.refusals.fetch_add(1, Ordering::Relaxed);
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = text.chars().take(1000).collect();
        let mut table = self.lock();
        match table.live.get(&operation) {
            // A refusal of a later message about a lease that stands, as a second restore, changes nothing.
            Some(Entry::Query(cell)) if cell.lease().is_some() => {}
            Some(Entry::Query(_)) => {
                drop(table);
                self.missed(operation, MissReason::Refused);
            }
            Some(Entry::Reservation(cell)) => {
                cell.impossible();
                table.live.remove(&operation);
            }
            // A reset that is refused is asked for again on the next connection.
            Some(Entry::Reset(_)) => {
                if let Some(Entry::Reset(cells)) = table.live.remove(&operation) {
                    table.resets.extend(cells);
                }
            }
            None => {}
        }
    }

    fn miss(&self, cell: &QueryCell, reason: MissReason) -> bool {
        let was_ready = cell.lease().is_some();
        let missed = cell.miss(reason);
        self.link.nudge_reader();
        if missed && !was_ready {
            self.counters.misses.fetch_add(1, Ordering::Relaxed);
        }
        missed
    }

    /// Removes a live operation of that session; false if it is not.
    fn remove(&self, session: u64, operation: u64) -> bool {
        let mut table = self.lock();
        if table.session.is_none_or(|s| s.number != session) {
            return false;
        }
        let entry = table.live.remove(&operation);
        if let Some(Entry::Query(cell)) = &entry {
            table.deadlines.remove(&(cell.deadline, operation));
        }
        entry.is_some()
    }

    /// Sends what must arrive, if its session is the present one.
    fn send(&self, session: u64, operation: u64, message: &ToManager<'_>) -> bool {
        let revision = u32::from(operation != 0);
        self.link.send(session, (operation, revision), message, Urgency::Must).is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Opens an operation on the session that this table knows.
    fn open(&self, link: &Link, message: &ToManager<'_>) -> Result<(Session, u64), SendError> {
        let known = self.session.ok_or(SendError::Stale)?;
        let (session, operation) = link.open(message)?;
        // The link may already be on a newer session whose welcome has not come here: cannot be, for
        // `disconnected` comes first, on the same thread, and takes this table's lock.
        debug_assert_eq!(session.number, known.number);
        Ok((session, operation))
    }
}

fn from_wire(reason: WireMiss) -> MissReason {
    match reason {
        WireMiss::Absent => MissReason::Absent,
        WireMiss::Inactive => MissReason::Inactive,
        WireMiss::Deadline => MissReason::Deadline,
        WireMiss::Lifetime => MissReason::Lifetime,
        WireMiss::Limit => MissReason::Limit,
        WireMiss::Expired => MissReason::Expired,
        WireMiss::Budget => MissReason::Budget,
    }
}
