//! Pages of a restore that are kept and checked before anybody knows which blocks they go to.
//!
//! For engines to which a restore must not fail once its pages were promised. From here on custody is this worker's:
//! neither the end of the session nor that of the manager takes the pages away, their memory is mapped, and their
//! checksums have been compared. What is left of the restore is a copy between mapped memory.

use super::accept::Before;
use super::admission::Admission;
use super::load::LoadJob;
use super::segments::Segment;
use super::state::{Origin, Work};
use super::{Core, Load};
use crate::ClientError;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, OnceLock};
use crate::ticket::{PagePart, Ticket, TicketError, TicketKind};
use orbitkv_copy::KvLayout;
use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// Whose the custody of the pages is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Custody {
    /// The pin's.
    Pin,
    /// A restore's, or nobody's any more.
    Gone,
}

/// What handle and copy thread share of a pin.
pub(crate) struct PinJob {
    pub(super) origin: Origin,
    pub(super) layout: Arc<KvLayout>,
    /// This rank's part of each page.
    pub(super) parts: Vec<PagePart>,
    pub(super) accepted: Instant,
    /// Segments of those parts, as far as they are there.
    memory: Mutex<Vec<Option<Segment>>>,
    /// Those of the leading pages; there when all are that will come.
    segments: OnceLock<Vec<Segment>>,
    /// Leading pages of which nothing is known to be wrong.
    sound: AtomicUsize,
    /// Nothing more will be found wrong.
    settled: AtomicBool,
    custody: Mutex<Custody>,
}

impl PinJob {
    fn new(origin: Origin, layout: Arc<KvLayout>, parts: Vec<PagePart>) -> Self {
        Self {
            origin,
            layout,
            sound: AtomicUsize::new(parts.len()),
            parts,
            accepted: Instant::now(),
            memory: Mutex::default(),
            segments: OnceLock::new(),
            settled: AtomicBool::new(false),
            custody: Mutex::new(Custody::Pin),
        }
    }

    fn custody(&self) -> MutexGuard<'_, Custody> {
        self.custody.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_wanted(&self) -> bool {
        *self.custody() == Custody::Pin
    }

    /// Takes custody from the pin; false if it has none any more.
    fn take(&self) -> bool {
        std::mem::replace(&mut *self.custody(), Custody::Gone) == Custody::Pin
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Vec<Option<Segment>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of its leading pages, as many as there are.
    pub(super) fn set_segments(&self, segments: Vec<Segment>) {
        self.keep_before(segments.len());
        let _ = self.segments.set(segments);
    }

    /// `page` cannot be restored, and so none behind it.
    pub(super) fn keep_before(&self, page: usize) {
        self.sound.fetch_min(page, Ordering::AcqRel);
    }

    pub(super) fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }

    fn settled_pages(&self) -> usize {
        if self.settled.load(Ordering::Acquire) { self.sound.load(Ordering::Acquire) } else { 0 }
    }
}

/// Pages that can be restored, by whoever holds this.
pub struct Pinned {
    job: Arc<PinJob>,
    core: Arc<Core>,
}

impl Pinned {
    /// Whether it is known how many pages can be restored.
    #[must_use]
    pub fn poll(&self) -> bool {
        self.job.settled.load(Ordering::Acquire)
    }

    /// How many of the ticket's leading pages can be restored; 0 before [`Pinned::poll`], and of a ticket that came too
    /// late.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.job.settled_pages()
    }

    /// Copies these pages of the ticket, counted from its first, into these blocks; never blocks. It fails for no reason
    /// but the loss of the device, or [`super::WorkerClient::close`]. The other pages are let go.
    ///
    /// # Errors
    /// Pages beyond [`Pinned::pages`]; blocks that do not fit the layout; blocks of a device; a pin that was restored or
    /// released before.
    pub fn restore(&self, pages: &[usize], blocks: &[u32]) -> Result<Load, ClientError> {
        self.start(pages, blocks, Before::Nothing)
    }

    /// As [`Pinned::restore`], after what is on `stream` (`CUstream`) now. To be called on the thread that feeds it.
    ///
    /// # Errors
    /// As there, and what the driver says.
    pub fn restore_after(&self, stream: usize, pages: &[usize], blocks: &[u32]) -> Result<Load, ClientError> {
        self.start(pages, blocks, Before::Stream(stream))
    }

    fn start(&self, pages: &[usize], blocks: &[u32], before: Before) -> Result<Load, ClientError> {
        let Self { job, core } = self;
        check_places(job, pages, blocks)?;
        let order = core.order(before)?;
        let segments = job.segments.get().map_or(&[][..], |segments| &segments[..]);
        let parts = pages.iter().map(|page| job.parts[*page]).collect();
        let segments = pages.iter().map(|page| segments[*page].clone()).collect();
        if !job.take() {
            return Err(ClientError::value(
                "pinned pages",
                "given up",
                "neither restored nor released before",
            ));
        }
        let load = LoadJob::of_pinned(job.origin, &job.layout, blocks.to_vec(), parts, order, segments);
        Ok(Load::new(core.work.queue_pinned(job, load), Arc::clone(&core.work)))
    }

    /// Lets the pages go; idempotent. Does nothing to a restore.
    pub fn release(&self) {
        self.core.work.release_pin(&self.job);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.release();
    }
}

/// Whether these pages can be restored into these blocks.
fn check_places(job: &PinJob, pages: &[usize], blocks: &[u32]) -> Result<(), ClientError> {
    let (sound, count) = (job.settled_pages(), job.layout.num_blocks());
    if pages.is_empty() || pages.len() != blocks.len() {
        let want = format!("{} and at least 1, one for each page", pages.len());
        return Err(ClientError::value("number of blocks", blocks.len(), want));
    }
    if let Some(page) = pages.iter().find(|page| **page >= sound) {
        return Err(ClientError::value(
            "page",
            page,
            format!("below {sound}, the pages that can be restored"),
        ));
    }
    if let Some(block) = blocks.iter().find(|block| **block as usize >= count) {
        return Err(ClientError::value("block", block, format!("below {count}")));
    }
    let mut seen = HashSet::with_capacity(blocks.len());
    if let Some(twice) = blocks.iter().find(|block| !seen.insert(**block)) {
        return Err(ClientError::value("block", twice, "given once: two pages would land in it"));
    }
    Ok(())
}

impl Core {
    pub(super) fn pin_ticket(self: &Arc<Self>, ticket: &Ticket) -> Result<Pinned, ClientError> {
        if ticket.kind != TicketKind::Restore {
            return Err(TicketError::Kind { got: ticket.kind }.into());
        }
        let [section] = &ticket.sections[..] else {
            let got = ticket.sections.len() as u64;
            return Err(TicketError::Value { what: "number of cache groups of pinned pages", got }.into());
        };
        let layout = self.layout_of(section.group, false).ok_or_else(|| {
            ClientError::from(TicketError::Value { what: "cache group", got: u64::from(section.group) })
        })?;
        let parts = ticket.parts_of(self.rank);
        let (job, admission) =
            self.work.accept_pin(ticket, |origin| PinJob::new(origin, Arc::clone(layout), parts))?;
        match admission {
            Admission::Accepted(_) => self.work.signal.raise(),
            Admission::Stale => self.work.decline(ticket, &job.parts),
            Admission::Full(origin) => self.work.copy_done(origin),
        }
        Ok(Pinned { job, core: Arc::clone(self) })
    }
}

impl Work {
    /// Queues a pin for the copy thread, or says why not; its pages are then none, and in nobody's custody.
    fn accept_pin(
        &self,
        ticket: &Ticket,
        job: impl FnOnce(Origin) -> PinJob,
    ) -> Result<(Arc<PinJob>, Admission), ClientError> {
        let mut inner = self.lock();
        let admission = inner.admit_load(ticket, false)?;
        let job = Arc::new(job(admission.origin(ticket, false)));
        if let Admission::Accepted(origin) = admission {
            *job.memory() = inner.memory_of(&job.parts);
            inner.enter_load(origin);
            inner.pins.push_back(Arc::clone(&job));
            inner.pinned.push(Arc::clone(&job));
        } else {
            job.take();
            job.keep_before(0);
            job.settle();
            self.count_stale();
        }
        Ok((job, admission))
    }

    /// Gives a pin the segments that have come since it was accepted; whether it has all. Those of a session that is
    /// over are those that were there when it was accepted: another manager run gives the same numbers to other memory.
    pub(super) fn supply_pin(&self, pin: &PinJob) -> bool {
        let inner = self.lock();
        let mut memory = pin.memory();
        if !inner.is_void(pin.origin) {
            *memory = inner.memory_of(&pin.parts);
        }
        memory.iter().all(Option::is_some)
    }

    /// The custody of a pin goes over to a restore, which is queued.
    fn queue_pinned(&self, pin: &Arc<PinJob>, load: LoadJob) -> Arc<LoadJob> {
        let load = Arc::new(load);
        let mut inner = self.lock();
        inner.forget_pin(pin);
        inner.loads.push_back(Arc::clone(&load));
        self.count_load(&load);
        drop(inner);
        self.signal.raise();
        load
    }

    /// Ends the custody of a pin, if it still has it.
    pub(super) fn release_pin(&self, pin: &Arc<PinJob>) {
        if !pin.take() {
            return;
        }
        let mut inner = self.lock();
        inner.forget_pin(pin);
        inner.leave_load(pin.origin);
        drop(inner);
        self.copy_done(pin.origin);
        // Whoever waits for the end of a session, or of a scheduler, may go on.
        self.signal.raise();
    }
}
