//! What engine threads, the connection's thread and the copy thread share of a worker.

use super::device::Cuda;
use super::load::LoadJob;
use super::pinned::PinJob;
use super::save::SavePage;
use super::stats::{Stats, add, sub};
use super::unserved::{Kept, Unserved};
use crate::ClientError;
use crate::link::{Link, Session};
use crate::ticket::{PagePart, Ticket};
use crate::waiters::Signal;
use orbitkv_shm::{Mapping, Region};
use orbitkv_wire::{Resume, SLOT_HEADER_BYTES, Slot};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most restores, and most pages of saves, accepted and not ended.
pub(super) const MAX_LOADS: usize = 4096;
pub(super) const MAX_SAVE_PAGES: usize = 65_536;
/// Most segments; a pool of 4 TiB has that many of 64 MiB.
const MAX_SEGMENTS: usize = 65_536;
/// Ended sessions that are said again. Of older ones the manager learns when the process ends, at the latest.
const MAX_SAID: usize = 64;

/// How long a lost connection's segments stay mapped, and restores of its tickets are taken, while nobody has been
/// told that its copies have ended. What a scheduler was promised before is asked for within milliseconds.
const GRACE: Duration = Duration::from_secs(5);

/// Whose copy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Worker session that accepted it.
    pub(crate) session: u64,
    /// Session that owns the operation.
    pub(crate) scheduler: u64,
    pub(crate) operation: u64,
    pub(crate) revision: u32,
    /// Of the self-test: in no counter, at no hold point.
    pub(crate) probe: bool,
}

/// A mapped segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) region: Arc<Region>,
    slot_bytes: u64,
}

impl Segment {
    /// Offset of a slot's payload, if the slot holds `page_bytes` and its number can be.
    pub(crate) fn payload(&self, index: u32, page_bytes: usize) -> Option<usize> {
        let page_bytes = u64::try_from(page_bytes).ok()?;
        let start = u64::from(index).checked_mul(self.slot_bytes)?.checked_add(SLOT_HEADER_BYTES)?;
        let end = start.checked_add(page_bytes)?;
        // A page longer than its slot would run into the next one.
        let fits = page_bytes.checked_add(SLOT_HEADER_BYTES)? <= self.slot_bytes;
        (fits && end <= self.region.bytes() as u64).then(|| usize::try_from(start).ok()).flatten()
    }
}

/// A connection that was lost. Its leases stand, as the manager knows it, until this worker says that its copies have
/// ended, or for good if the manager is gone: nobody else writes to those pages.
struct Departed {
    session: Session,
    segments: HashMap<u32, Segment>,
    since: Instant,
}

#[derive(Default)]
pub(super) struct Inner {
    /// Tickets are accepted for it.
    pub(super) session: Option<Session>,
    /// The newest session, ended or not.
    last: Option<Session>,
    /// The last one, from its end to the next hello.
    departed: Option<Departed>,
    /// Scheduler sessions up to this number get no copy any more. Numbers of a manager run only grow, and
    /// an instance has one scheduler at a time.
    fenced_through: u64,
    pub(super) segments: HashMap<u32, Segment>,
    pub(super) loads: VecDeque<Arc<LoadJob>>,
    pub(super) saves: VecDeque<Arc<SavePage>>,
    /// Pins whose pages the copy thread has not looked at.
    pub(super) pins: VecDeque<Arc<PinJob>>,
    /// Pins that have custody.
    pub(super) pinned: Vec<Arc<PinJob>>,
    /// Saves that may still read a block, by block.
    reading: HashMap<u32, Vec<Arc<SavePage>>>,
    /// Copies not ended, by worker session, and by scheduler session without those of the self-test.
    live: BTreeMap<u64, usize>,
    schedulers: BTreeMap<u64, usize>,
    live_loads: usize,
    live_save_pages: usize,
    /// Fences to answer: (session that asked, scheduler session).
    pub(super) fences: Vec<(u64, u64)>,
    /// Earlier sessions of this manager run whose end of copies has not been attested.
    pub(super) unattested: BTreeSet<u64>,
    /// Those of which the present connection was told. It may be lost before the manager has read that, so the
    /// next one is told again: to a manager that has, it is news of a session that is gone.
    said: BTreeSet<u64>,
    /// What the last hello said of `last`.
    attested_in_hello: bool,
    /// Slots of saves given up before they ran, with their session.
    pub(super) aborts: Vec<(u64, Slot)>,
    pub(super) unserved: Kept,
    pub(super) stopping: bool,
    /// The copy device is: nothing starts any more.
    pub(super) lost: bool,
}

pub(crate) struct Work {
    pub(super) link: Arc<Link>,
    inner: Mutex<Inner>,
    /// Wakes the copy thread.
    pub(crate) signal: Arc<Signal>,
    /// Where KV is in the memory of a CUDA device.
    pub(super) cuda: Option<Cuda>,
    pub(super) stats: Stats,
}

/// What becomes of a ticket.
pub(super) enum Admission {
    Accepted(Origin),
    /// Another run of the manager, an earlier session, a fenced scheduler, no connection, or a lost device.
    Stale,
    /// Too much is queued; the manager still counts on this worker.
    Full(Origin),
}

impl Work {
    pub(super) fn new(link: Arc<Link>, signal: Arc<Signal>, cuda: Option<Cuda>) -> Self {
        Self { link, inner: Mutex::default(), signal, cuda, stats: Stats::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a restore, or says why not. `job` makes it for its origin.
    pub(super) fn accept_load(
        &self,
        ticket: &Ticket,
        probe: bool,
        job: impl FnOnce(Origin) -> LoadJob,
    ) -> Result<(Arc<LoadJob>, Admission), ClientError> {
        let mut inner = self.lock();
        let admission = inner.admit_load(ticket, probe)?;
        let origin = admission.origin(ticket, probe);
        let job = Arc::new(job(origin));
        if matches!(admission, Admission::Accepted(_)) {
            job.supply(inner.memory_of(&job.parts));
            inner.enter_load(origin);
            inner.loads.push_back(Arc::clone(&job));
            self.count_load(&job);
        } else if !probe {
            self.count_stale();
        }
        Ok((job, admission))
    }

    /// Counts the bytes of a restore that was accepted.
    pub(super) fn count_load(&self, job: &LoadJob) {
        if !job.origin.probe {
            add(&self.stats.load_inflight_bytes, job.bytes());
        }
    }

    pub(super) fn count_stale(&self) {
        add(&self.stats.stale_tickets, 1);
    }

    /// Queues the pages of a save, all or none.
    pub(super) fn accept_save(
        &self,
        ticket: &Ticket,
        probe: bool,
        count: usize,
        pages: impl FnOnce(Origin) -> Vec<SavePage>,
    ) -> Result<Admission, ClientError> {
        let mut inner = self.lock();
        let fits = inner.live_save_pages + count <= MAX_SAVE_PAGES;
        let admission = inner.admit(ticket, probe, fits, inner.session)?;
        let Admission::Accepted(origin) = admission else {
            if !probe {
                self.count_stale();
            }
            return Ok(admission);
        };
        for page in pages(origin) {
            let page = Arc::new(page);
            inner.enter(origin);
            inner.live_save_pages += 1;
            // The self-test's block numbers are those of another layout.
            if !probe {
                inner.reading.entry(page.block).or_default().push(Arc::clone(&page));
                add(&self.stats.save_inflight_bytes, page.bytes());
            }
            inner.saves.push_back(page);
        }
        Ok(admission)
    }

    /// The manager is told, now or on the next connection, that nothing of this ticket runs here.
    pub(super) fn decline(&self, ticket: &Ticket, own: &[PagePart]) {
        self.lock().unserved.push(ticket.boot, Unserved::new(ticket, own));
        self.signal.raise();
    }

    /// The bytes of a restore are at rest: custody ends.
    pub(super) fn end_load(&self, job: &LoadJob) {
        self.lock().leave_load(job.origin);
        if !job.origin.probe {
            sub(&self.stats.load_inflight_bytes, job.bytes());
        }
        job.end();
    }

    /// The source of a page is read no more. False if that was known.
    pub(super) fn end_save(&self, page: &SavePage) -> bool {
        self.end_save_locked(&mut self.lock(), page)
    }

    fn end_save_locked(&self, inner: &mut Inner, page: &SavePage) -> bool {
        if !page.end() {
            return false;
        }
        inner.leave(page.origin);
        inner.live_save_pages -= 1;
        if page.origin.probe {
            return true;
        }
        if let Some(readers) = inner.reading.get_mut(&page.block) {
            readers.retain(|other| !std::ptr::eq(Arc::as_ptr(other), page));
            if readers.is_empty() {
                inner.reading.remove(&page.block);
            }
        }
        sub(&self.stats.save_inflight_bytes, page.bytes());
        true
    }

    /// A restore on a device that is gone. Its waiters go on: nobody computes on that memory any more. Its custody
    /// does not end, nor does the manager hear that it has: pages are read until the process ends, for all we know.
    pub(super) fn abandon_load(&self, job: &LoadJob) {
        job.fail_all();
        job.end();
    }

    /// The same for a page of a save.
    pub(super) fn abandon_save(&self, page: &SavePage) {
        page.end();
    }

    /// Nothing is accepted any more, and what has not started does not.
    pub(super) fn lose(&self) {
        let mut inner = self.lock();
        inner.lost = true;
        self.stop_saves(&mut inner, |_| true);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lock().lost
    }

    /// Whether a copy may still touch memory, as far as anyone can know.
    pub(super) fn has_custody(&self) -> bool {
        !self.lock().live.is_empty()
    }

    /// Gives up a page that has not started; false if it has.
    pub(super) fn give_up_queued(&self, page: &SavePage) -> bool {
        self.give_up_locked(&mut self.lock(), page)
    }

    fn give_up_locked(&self, inner: &mut Inner, page: &SavePage) -> bool {
        if !page.is_queued() {
            return false;
        }
        self.end_save_locked(inner, page);
        if !page.origin.probe {
            add(&self.stats.aborted_pages, 1);
        }
        inner.aborts.push((page.origin.session, page.part.slot()));
        true
    }

    /// Saves that may still read one of those blocks.
    pub(super) fn readers(&self, blocks: &[u32]) -> Vec<Arc<SavePage>> {
        let inner = self.lock();
        if inner.reading.is_empty() {
            return Vec::new();
        }
        blocks.iter().filter_map(|block| inner.reading.get(block)).flatten().cloned().collect()
    }

    /// The connection's welcome.
    pub(super) fn welcome(&self, session: Session) {
        let mut inner = self.lock();
        match inner.last {
            Some(last) if last.boot == session.boot => {
                if !inner.attested_in_hello {
                    inner.unattested.insert(last.number);
                }
                let mut said = std::mem::take(&mut inner.said);
                inner.unattested.append(&mut said);
            }
            // That manager is gone, and with it every account of ours.
            _ => {
                inner.unattested.clear();
                inner.said.clear();
                inner.fenced_through = 0;
            }
        }
        inner.session = Some(session);
        inner.last = Some(session);
        drop(inner);
        self.signal.raise();
    }

    /// The session ended. Restores go on, from pages that stay in custody; saves can never be committed.
    pub(super) fn disconnected(&self) {
        let mut inner = self.lock();
        inner.fences.clear();
        self.stop_saves(&mut inner, |_| true);
        if let Some(session) = inner.session.take() {
            let segments = std::mem::take(&mut inner.segments);
            inner.departed = Some(Departed { session, segments, since: Instant::now() });
        }
        drop(inner);
        self.signal.raise();
    }

    /// Forgets a lost connection whose time is over at `now`; how much it has left.
    pub(super) fn departed_for(&self, now: Instant) -> Option<Duration> {
        let mut inner = self.lock();
        let left = GRACE.saturating_sub(now.saturating_duration_since(inner.departed.as_ref()?.since));
        if !left.is_zero() && !inner.stopping {
            return Some(left);
        }
        let gone = inner.departed.take();
        drop(inner);
        self.forget_all(gone);
        None
    }

    /// What the next hello says of the last session.
    pub(super) fn resume(&self) -> Option<Resume> {
        let mut inner = self.lock();
        let last = inner.last?;
        // From here on no ticket of it is taken. Its copies hold their own segments.
        let gone = inner.departed.take();
        let copies_ended = !inner.live.contains_key(&last.number);
        inner.attested_in_hello = copies_ended;
        drop(inner);
        self.forget_all(gone);
        Some(Resume { session: last.number, copies_ended })
    }

    /// Maps a segment.
    pub(super) fn segment(
        &self,
        (number, slot_bytes, bytes): (u32, u64, u64),
        fd: OwnedFd,
    ) -> Result<(), String> {
        let size = usize::try_from(bytes).map_err(|_| format!("segment {number} of {bytes} bytes"))?;
        let mapping = Mapping::from_fd(fd, size).map_err(|e| format!("segment {number}: {e}"))?;
        let mut inner = self.lock();
        if inner.segments.len() >= MAX_SEGMENTS {
            return Err(format!("more than {MAX_SEGMENTS} segments"));
        }
        let region = Arc::clone(mapping.region());
        let before = inner.segments.insert(number, Segment { region: Arc::clone(&region), slot_bytes });
        drop(inner);
        before.into_iter().for_each(|segment| self.forget(segment));
        if let Some(cuda) = &self.cuda {
            cuda.register(&region);
        }
        self.signal.raise();
        Ok(())
    }

    fn forget_all(&self, departed: Option<Departed>) {
        departed
            .into_iter()
            .flat_map(|gone| gone.segments.into_values())
            .for_each(|segment| self.forget(segment));
    }

    fn forget(&self, segment: Segment) {
        if let Some(cuda) = &self.cuda {
            cuda.unregister(segment.region);
        }
    }

    pub(super) fn segment_gone(&self, number: u32) {
        // Unmapped when the last copy that uses it has ended.
        let gone = self.lock().segments.remove(&number);
        gone.into_iter().for_each(|segment| self.forget(segment));
    }

    /// The manager asks that no copy for that scheduler session runs or starts.
    pub(super) fn fence_scheduler(&self, scheduler: u64) {
        let mut inner = self.lock();
        inner.fenced_through = inner.fenced_through.max(scheduler);
        if let Some(session) = inner.session {
            inner.fences.push((session.number, scheduler));
        }
        // Restores that run end by themselves; their pages are whole and stay in custody until then.
        self.stop_saves(&mut inner, |origin| !origin.probe && origin.scheduler <= scheduler);
        drop(inner);
        self.signal.raise();
    }

    /// Gives up every save of such an origin: the queued at once, the running as soon as they stop. One on
    /// its way into the engine is stopped by the copy thread, which looks at [`Work::is_void`] after that.
    fn stop_saves(&self, inner: &mut Inner, which: impl Fn(Origin) -> bool) {
        let all = inner.reading.values().flatten();
        let stopped: Vec<_> = all.filter(|page| which(page.origin)).cloned().collect();
        for page in stopped {
            if !self.give_up_locked(inner, &page) {
                page.request_abort();
            }
        }
    }

    /// Whether no copy of that origin may start: its session is not the present one, or it is fenced.
    pub(super) fn is_void(&self, origin: Origin) -> bool {
        self.lock().is_void(origin)
    }

    /// Gives a restore the segments that have come since it was accepted, and says whether it may not start. One that
    /// has all of its memory outlives its connection: it was counted among the copies of that before anybody was told
    /// that they have ended.
    pub(super) fn bars(&self, job: &LoadJob) -> bool {
        let inner = self.lock();
        if job.was_pinned {
            return inner.stopping || inner.lost;
        }
        if !inner.is_void(job.origin) && !job.has_memory() {
            job.supply(inner.memory_of(&job.parts));
        }
        inner.is_closed_to(job.origin) || inner.is_void(job.origin) && !job.has_memory()
    }

    /// The segments of those parts, of the session that the ticket was accepted in: another manager run gives the same
    /// numbers to other memory.
    pub(super) fn segments_of(&self, origin: Origin, parts: &[PagePart]) -> Vec<Option<Segment>> {
        let inner = self.lock();
        let void = inner.is_void(origin);
        parts.iter().map(|part| inner.segments.get(&part.segment).filter(|_| !void).cloned()).collect()
    }

    /// Accepts nothing more and stops everything.
    pub(super) fn stop(&self) {
        let mut inner = self.lock();
        inner.stopping = true;
        self.stop_saves(&mut inner, |_| true);
        let pinned = inner.pinned.clone();
        drop(inner);
        pinned.iter().for_each(|pin| self.release_pin(pin));
        self.signal.raise();
    }
}

impl Admission {
    /// Whose a job made for the ticket is.
    pub(super) fn origin(&self, ticket: &Ticket, probe: bool) -> Origin {
        match self {
            Self::Accepted(origin) | Self::Full(origin) => *origin,
            Self::Stale => origin_of(ticket, 0, probe),
        }
    }
}

fn origin_of(ticket: &Ticket, session: u64, probe: bool) -> Origin {
    let Ticket { scheduler, operation, revision, .. } = *ticket;
    Origin { session, scheduler, operation, revision, probe }
}

impl Inner {
    fn admit(
        &self,
        ticket: &Ticket,
        probe: bool,
        fits: bool,
        session: Option<Session>,
    ) -> Result<Admission, ClientError> {
        if self.stopping {
            return Err(ClientError::Closed);
        }
        let Some(session) = session.filter(|_| !self.lost) else { return Ok(Admission::Stale) };
        let fenced = !probe && ticket.scheduler <= self.fenced_through;
        if ticket.boot != session.boot || ticket.issued_us < session.welcomed_us || fenced {
            return Ok(Admission::Stale);
        }
        let origin = origin_of(ticket, session.number, probe);
        Ok(if fits { Admission::Accepted(origin) } else { Admission::Full(origin) })
    }

    /// The session of which restores are taken: the present one, or that which has just been lost.
    fn of_restores(&self) -> Option<Session> {
        self.session.or_else(|| self.departed.as_ref().map(|departed| departed.session))
    }

    /// The segments of those parts, of that session.
    pub(super) fn memory_of(&self, parts: &[PagePart]) -> Vec<Option<Segment>> {
        let of_departed = self.departed.as_ref().filter(|_| self.session.is_none());
        let segments = of_departed.map_or(&self.segments, |departed| &departed.segments);
        parts.iter().map(|part| segments.get(&part.segment).cloned()).collect()
    }

    pub(super) fn is_void(&self, origin: Origin) -> bool {
        let present = self.session.is_some_and(|s| s.number == origin.session);
        !present || self.is_closed_to(origin)
    }

    /// Whatever its session.
    fn is_closed_to(&self, origin: Origin) -> bool {
        let fenced = !origin.probe && origin.scheduler <= self.fenced_through;
        fenced || self.stopping || self.lost
    }

    /// As [`Inner::admit`], of a restore.
    pub(super) fn admit_load(&self, ticket: &Ticket, probe: bool) -> Result<Admission, ClientError> {
        self.admit(ticket, probe, self.live_loads < MAX_LOADS, self.of_restores())
    }

    pub(super) fn enter_load(&mut self, origin: Origin) {
        self.enter(origin);
        self.live_loads += 1;
    }

    pub(super) fn leave_load(&mut self, origin: Origin) {
        self.leave(origin);
        self.live_loads -= 1;
    }

    pub(super) fn forget_pin(&mut self, pin: &Arc<PinJob>) {
        self.pinned.retain(|other| !Arc::ptr_eq(other, pin));
    }

    fn enter(&mut self, origin: Origin) {
        *self.live.entry(origin.session).or_default() += 1;
        if !origin.probe {
            *self.schedulers.entry(origin.scheduler).or_default() += 1;
        }
    }

    fn leave(&mut self, origin: Origin) {
        let down = |map: &mut BTreeMap<u64, usize>, key| {
            if let Some(count) = map.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    map.remove(&key);
                }
            }
        };
        down(&mut self.live, origin.session);
        if !origin.probe {
            down(&mut self.schedulers, origin.scheduler);
        }
    }

    /// Whether a copy for that scheduler session, or an older one, runs or waits.
    pub(super) fn copies_for(&self, scheduler: u64) -> bool {
        self.schedulers.range(..=scheduler).next().is_some()
    }

    /// Earlier sessions whose copies have ended by now, no longer owed.
    pub(super) fn take_ended_sessions(&mut self) -> Vec<u64> {
        let ended: Vec<u64> =
            self.unattested.iter().filter(|s| !self.live.contains_key(s)).copied().collect();
        self.unattested.retain(|s| !ended.contains(s));
        ended
    }

    /// The end of a session's copies was said on the present connection, if that took the message.
    pub(super) fn attested(&mut self, earlier: u64, sent: bool) {
        if !sent {
            self.unattested.insert(earlier);
            return;
        }
        self.said.insert(earlier);
        if self.said.len() > MAX_SAID {
            self.said.pop_first();
        }
    }
}
