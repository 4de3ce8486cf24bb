//! Which operations are live, and when they time out.

use super::busy::Busy;
use super::counters::{OperationCounters, count};
use super::demand::{Again, Demand};
use super::preparation::Preparations;
use super::recovery::{CandidatesCell, Wants};
use super::{Lease, MissReason, QueryCell, QueryState, ReservationCell, ResetCell};
use crate::link::{Link, SendError, Session, Urgency};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::ticket::{PagePart, Section};
use orbitkv_wire::{Hash, Header, ToClient, ToManager};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most live operations; the manager's own limit is lower by default.
pub(super) const MAX_LIVE: usize = 4096;
/// Most claims remembered whose refusal may be on its way.
const MAX_LATE_CLAIMS: usize = 16;
/// Most resets waiting for a connection.
const MAX_RESETS: usize = 256;
pub(super) enum Entry {
    /// The second: it is a claim that has no answer yet.
    Query(Arc<QueryCell>, Option<Box<Again>>),
    Reservation(Arc<ReservationCell>),
    Candidates(Arc<CandidatesCell>),
    /// Every reset that the operation carries out.
    Reset(Vec<Arc<ResetCell>>),
}

#[derive(Default)]
pub(super) struct Table {
    /// Operations may be opened on it.
    pub(super) session: Option<Session>,
    /// Demands, reservations and resets.
    pub(super) live: HashMap<u64, Entry>,
    /// Client-side deadlines of pending queries.
    pub(super) deadlines: BTreeSet<(Instant, u64)>,
    pub(super) preparations: Preparations,
    /// Warm-ups whose end has not come.
    pub(super) warm_ups: BTreeSet<u64>,
    /// Claims that are over, or asked again, before an answer has come. It may be a refusal.
    pub(super) late_claims: BTreeSet<u64>,
    /// When the connection's thread will look again by itself.
    next_look: Option<Instant>,
    /// Resets not carried out when the connection was lost, or asked for without one.
    resets: Vec<Arc<ResetCell>>,
}

/// Live operations of one client. Lock order: the link's read side, this table, the link's buffer.
pub(crate) struct Operations {
    pub(super) link: Arc<Link>,
    table: Mutex<Table>,
    pub(crate) counters: OperationCounters,
    /// When queries waited for reads.
    reading: Mutex<Busy>,
    /// The last refusal, for people.
    refusal: Mutex<String>,
}

impl Operations {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            table: Mutex::default(),
            counters: OperationCounters::default(),
            reading: Mutex::new(Busy::new()),
            refusal: Mutex::default(),
        }
    }

    /// Asks for a prefix.
    pub(crate) fn query(&self, group: u16, hashes: &[Hash], demand: Demand) -> Arc<QueryCell> {
        self.ask(|table| self.open_query(table, Wants::Prefix { group, hashes }, demand))
    }

    /// Sends a demand, and takes the answer if it has come by then.
    pub(super) fn ask(
        &self,
        open: impl FnOnce(&mut Table) -> Result<Arc<QueryCell>, MissReason>,
    ) -> Arc<QueryCell> {
        count(&self.counters.queries);
        let reads = self.link.try_reads();
        let opened = open(&mut self.lock());
        if let Some(mut reads) = reads {
            // There already, if the manager ran before this thread went on.
            reads.read();
        }
        opened.unwrap_or_else(|reason| {
            count(&self.counters.misses);
            Arc::new(QueryCell::missed(reason))
        })
    }

    pub(super) fn open_query(
        &self,
        table: &mut Table,
        wants: Wants<'_>,
        demand: Demand,
    ) -> Result<Arc<QueryCell>, MissReason> {
        if wants.is_empty() {
            return Err(MissReason::Absent);
        }
        if wants.is_too_long() || table.live.len() >= MAX_LIVE {
            return Err(MissReason::Limit);
        }
        let message = wants.message(demand.deadline_ms, demand.rule());
        let (session, operation) = table.open(&self.link, &message)?;
        let ids = (session.number, session.boot, operation);
        Ok(self.watch(table, ids, wants.group(), demand, None))
    }

    /// Takes up a demand that has been sent.
    pub(super) fn watch(
        &self,
        table: &mut Table,
        ids: (u64, u128, u64),
        group: u16,
        demand: Demand,
        again: Option<Box<Again>>,
    ) -> Arc<QueryCell> {
        let deadline = Instant::now() + demand.wait();
        let cell = Arc::new(QueryCell::pending(ids, group, deadline));
        table.live.insert(ids.2, Entry::Query(Arc::clone(&cell), again));
        table.deadlines.insert((deadline, ids.2));
        table.look_at(deadline, &self.link);
        cell
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

    /// Hands those pages of a ready lease out: tells the manager. True once, while the lease stands.
    pub(crate) fn hand_out(&self, cell: &QueryCell, first: u32, pages: u32) -> bool {
        // Under the table's lock: a lost connection either comes before and has made it a miss, or
        // finds it handed out.
        let _table = self.lock();
        if !cell.hand_out() {
            return false;
        }
        let sent = self.send(cell.session, cell.operation(), &ToManager::Restore { first, pages });
        if !sent {
            cell.take_back(MissReason::Disconnected);
        }
        sent
    }

    /// Ends interest in a query, in whatever state.
    pub(crate) fn release(&self, cell: &QueryCell) {
        // Under the lock from the look at its id on: a claim that is asked again changes that.
        let mut table = self.lock();
        let operation = cell.operation();
        let known = table.remove(cell.session, operation);
        let pending = cell.state() == QueryState::Pending;
        if pending {
            cell.miss(MissReason::Released);
            self.link.nudge_reader();
        }
        if known {
            let message = if pending { ToManager::Cancel } else { ToManager::Release };
            self.send(cell.session, operation, &message);
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
        table.warm_ups.clear();
        table.late_claims.clear();
        for cell in table.preparations.drain() {
            cell.end(MissReason::Disconnected);
        }
        let live: Vec<_> = table.live.drain().collect();
        for (_, entry) in live {
            match entry {
                Entry::Query(cell, _) => {
                    self.miss(&cell, MissReason::Disconnected);
                }
                Entry::Reservation(cell) => cell.impossible(),
                Entry::Candidates(cell) => cell.answer(Vec::new()),
                Entry::Reset(cells) => table.resets.extend(cells),
            }
        }
    }

    /// Makes expired queries misses and tells the manager, keeps preparations; when to look again.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let mut table = self.lock();
        while let Some(&(deadline, operation)) = table.deadlines.first().filter(|(at, _)| *at <= now) {
            table.deadlines.remove(&(deadline, operation));
            if let Some(Entry::Query(cell, again)) = table.live.remove(&operation) {
                if again.is_some() {
                    table.expect_refusal(operation);
                }
                count(&self.counters.deadline_misses);
                self.miss(&cell, MissReason::Deadline);
                self.send(cell.session, operation, &ToManager::Cancel);
            }
        }
        let ahead = self.keep(&mut table, now);
        // Nothing pending: an earlier plan to look stays, so that a stream of short queries does not
        // wake the thread for each.
        let first = table.deadlines.first().map(|(at, _)| *at).into_iter().chain(ahead).min();
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
            ToClient::Ready { pages, shards, parts } => self.ready(operation, |cell| Lease {
                sections: vec![Section { group: cell.group, first_page: 0, pages, shards }],
                parts: parts.iter().map(PagePart::from).collect(),
                recovery: false,
            }),
            ToClient::Recovered(body) if body.ranges.is_empty() => {
                return Err(format!("operation {operation} is recovered with no pages"));
            }
            ToClient::Recovered(body) => self.ready(operation, |_| Lease {
                sections: body.ranges.iter().map(Section::from).collect(),
                parts: body.parts.iter().map(PagePart::from).collect(),
                recovery: true,
            }),
            ToClient::Candidates(found) => {
                self.candidates_found(operation, found.iter().map(|boundary| boundary.get()).collect());
            }
            ToClient::Prepared { pages: 0 } => {
                return Err(format!("operation {operation} is prepared with no pages"));
            }
            ToClient::Prepared { pages } => self.prepared(operation, pages),
            ToClient::Warmed { pages } => self.warmed(operation, pages),
            ToClient::TierReads { pages, left_pages, micros } => self.read_for(pages, left_pages, micros),
            ToClient::Miss(reason) => self.missed(operation, reason.into()),
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

    fn ready(&self, operation: u64, lease: impl FnOnce(&QueryCell) -> Lease) {
        let mut table = self.lock();
        let Some(Entry::Query(cell, again)) = table.live.get_mut(&operation) else { return };
        *again = None;
        let cell = Arc::clone(cell);
        table.deadlines.remove(&(cell.deadline, operation));
        let lease = lease(&cell);
        let pages = lease.pages() as u64;
        if cell.ready(lease) {
            count(&self.counters.hits);
            self.counters.hits_pages.fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// What the slower tier had to do with a query that is answered next. Only sums are kept: of a tier, its
    /// pace is of interest, whoever asked. Queries that wait at once share it, so their time counts once.
    fn read_for(&self, pages: u32, left_pages: u32, micros: u64) {
        let add = |counter: &AtomicU64, value| counter.fetch_add(value, Ordering::Relaxed);
        let counters = &self.counters;
        if micros > 0 {
            count(&counters.tier_reads);
            add(&counters.tier_read_pages, u64::from(pages));
            let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            add(&counters.tier_read_us, reading.ended(micros));
        } else if left_pages > 0 {
            count(&counters.tier_left);
            add(&counters.tier_left_pages, u64::from(left_pages));
        }
    }

    fn missed(&self, operation: u64, reason: MissReason) {
        let mut table = self.lock();
        if self.ended_ahead(&mut table, operation, reason)
            || self.missed_before_claim(&mut table, operation, reason)
        {
            return;
        }
        let Some(Entry::Query(cell, _)) = table.live.get(&operation) else { return };
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

    /// A request broke a rule: the operation is over.
    fn refused(&self, operation: u64, text: &str) {
        let mut table = self.lock();
        if table.late_claims.remove(&operation) || self.ask_anew(&mut table, operation) {
            // A claim that came too late broke no rule.
            return;
        }
        count(&self.counters.refusals);
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = text.chars().take(1000).collect();
        if self.ended_ahead(&mut table, operation, MissReason::Refused) {
            return;
        }
        match table.live.get(&operation) {
            // A refusal of a later message about a lease that stands, as a second restore, changes nothing.
            Some(Entry::Query(cell, _)) if cell.lease().is_some() => {}
            Some(Entry::Query(..)) => {
                drop(table);
                self.missed(operation, MissReason::Refused);
            }
            Some(Entry::Reservation(cell)) => {
                cell.impossible();
                table.live.remove(&operation);
            }
            Some(Entry::Candidates(_)) => {
                if let Some(Entry::Candidates(cell)) = table.live.remove(&operation) {
                    cell.answer(Vec::new());
                }
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

    pub(super) fn miss(&self, cell: &QueryCell, reason: MissReason) -> bool {
        let was_ready = cell.lease().is_some();
        let missed = cell.miss(reason);
        self.link.nudge_reader();
        if missed && !was_ready {
            count(&self.counters.misses);
        }
        missed
    }

    /// Sends what must arrive, if its session is the present one.
    pub(super) fn send(&self, session: u64, operation: u64, message: &ToManager<'_>) -> bool {
        let revision = u32::from(operation != 0);
        self.link.send(session, (operation, revision), message, Urgency::Must).is_ok()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The connection's thread wakes by itself at `next_look`; it need not be woken for anything later.
    pub(super) fn look_at(&mut self, at: Instant, link: &Link) {
        if self.next_look.is_none_or(|planned| at < planned) {
            self.next_look = Some(at);
            link.wake();
        }
    }

    /// Removes a live operation of that session; false if it is not.
    fn remove(&mut self, session: u64, operation: u64) -> bool {
        if self.session.is_none_or(|s| s.number != session) {
            return false;
        }
        let entry = self.live.remove(&operation);
        if let Some(Entry::Query(cell, again)) = &entry {
            self.deadlines.remove(&(cell.deadline, operation));
            if again.is_some() {
                self.expect_refusal(operation);
            }
        }
        entry.is_some()
    }

    /// A refusal of that claim is nothing to tell people about.
    pub(super) fn expect_refusal(&mut self, operation: u64) {
        self.late_claims.insert(operation);
        if self.late_claims.len() > MAX_LATE_CLAIMS {
            self.late_claims.pop_first();
        }
    }

    /// As [`Table::open`], one for each message.
    pub(super) fn open_all<'m>(
        &self,
        link: &Link,
        messages: impl Iterator<Item = ToManager<'m>>,
    ) -> Vec<Result<(Session, u64), SendError>> {
        if self.session.is_some() { link.open_all(messages) } else { Vec::new() }
    }

    /// Opens an operation on the session that this table knows.
    pub(super) fn open(&self, link: &Link, message: &ToManager<'_>) -> Result<(Session, u64), SendError> {
        let known = self.session.ok_or(SendError::Stale)?;
        let (session, operation) = link.open(message)?;
        // The link may already be on a newer session whose welcome has not come here: cannot be, for
        // `disconnected` comes first, on the same thread, and takes this table's lock.
        debug_assert_eq!(session.number, known.number);
        Ok((session, operation))
    }
}
