//! What engine threads, the connection's thread and the copy thread share of a worker.

use super::admission::Admission;
use super::device::Cuda;
use super::load::LoadJob;
use super::pinned::PinJob;
use super::save::SavePage;
use super::segments::Segment;
use super::session::Departed;
use super::stats::{Stats, add, sub};
use super::unserved::{Kept, Unserved};
use crate::ClientError;
use crate::link::{Link, Session};
use crate::ticket::{PagePart, Ticket};
use crate::waiters::Signal;
use orbitkv_wire::Slot;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most restores, and most pages of saves, accepted and not ended.
pub(super) const MAX_LOADS: usize = 4096;
pub(super) const MAX_SAVE_PAGES: usize = 65_536;

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

#[derive(Default)]
pub(super) struct Inner {
    /// Tickets are accepted for it.
    pub(super) session: Option<Session>,
    /// The newest session, ended or not.
    pub(super) last: Option<Session>,
    /// The last one, from its end to the next hello.
    pub(super) departed: Option<Departed>,
    /// Scheduler sessions up to this number get no copy any more. Numbers of a manager run only grow, and
    /// an instance has one scheduler at a time.
    pub(super) fenced_through: u64,
    pub(super) segments: HashMap<u32, Segment>,
    pub(super) loads: VecDeque<Arc<LoadJob>>,
    pub(super) saves: VecDeque<Arc<SavePage>>,
    /// Pins whose pages the copy thread has not looked at.
    pub(super) pins: VecDeque<Arc<PinJob>>,
    /// Pins that have custody.
    pub(super) pinned: Vec<Arc<PinJob>>,
    /// Saves that may still read a block, by block.
    pub(super) reading: HashMap<u32, Vec<Arc<SavePage>>>,
    /// Copies not ended, by worker session, and by scheduler session without those of the self-test.
    pub(super) live: BTreeMap<u64, usize>,
    pub(super) schedulers: BTreeMap<u64, usize>,
    pub(super) live_loads: usize,
    pub(super) live_save_pages: usize,
    /// Fences to answer: (session that asked, scheduler session).
    pub(super) fences: Vec<(u64, u64)>,
    /// Earlier sessions of this manager run whose end of copies has not been attested.
    pub(super) unattested: BTreeSet<u64>,
    /// Those of which the present connection was told. It may be lost before the manager has read that, so the
    /// next one is told again: to a manager that has, it is news of a session that is gone.
    pub(super) said: BTreeSet<u64>,
    /// What the last hello said of `last`.
    pub(super) attested_in_hello: bool,
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

    /// Gives up every save of such an origin: the queued at once, the running as soon as they stop. One on
    /// its way into the engine is stopped by the copy thread, which looks at [`Work::is_void`] after that.
    pub(super) fn stop_saves(&self, inner: &mut Inner, which: impl Fn(Origin) -> bool) {
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
