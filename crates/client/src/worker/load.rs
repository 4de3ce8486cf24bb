//! One restore.

use super::device::of_cuda;
use super::segments::Segment;
use super::state::{Origin, Work};
use crate::ClientError;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, OnceLock};
use crate::ticket::PagePart;
use crate::waiters::Waiters;
use orbitkv_copy::{CudaStreamHandle, KvLayout, LayerEvents, LayerWait, Progress, StreamOrder, WaitOutcome};
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Pages of one cache group.
#[derive(Clone, Debug)]
pub(crate) struct LoadSection {
    pub(crate) layout: Arc<KvLayout>,
    /// Their places among all pages of the restore.
    pub(crate) pages: Range<usize>,
}

/// What handle and copy thread share of a restore.
#[derive(Debug)]
pub(crate) struct LoadJob {
    pub(crate) origin: Origin,
    pub(crate) sections: Vec<LoadSection>,
    pub(crate) blocks: Vec<u32>,
    /// This rank's part of each page.
    pub(crate) parts: Vec<PagePart>,
    /// The last use of the blocks before it, on the engine's stream.
    pub(crate) order: StreamOrder,
    pub(crate) accepted: Instant,
    /// Segments of those parts, as far as they are there, until it starts.
    memory: Mutex<Vec<Option<Segment>>>,
    /// Its pages were pinned: in custody before any fence, and their checksums compared.
    pub(super) was_pinned: bool,
    /// Its arrival at the hold point has been counted.
    pub(crate) noted: AtomicBool,
    abort: AtomicBool,
    progress: OnceLock<Arc<Progress>>,
    /// For streams that wait for single layers; there before `progress` is, on a device that has streams.
    layers: OnceLock<LayerEvents>,
    /// Page by page, whether it did not land.
    failed: Mutex<Vec<bool>>,
    any_failed: AtomicBool,
    /// All checksums that are to be compared have been.
    checked: AtomicBool,
    ended: AtomicBool,
    waiters: Waiters,
}

impl LoadJob {
    /// The sections cover all blocks.
    pub(crate) fn new(
        origin: Origin,
        sections: Vec<LoadSection>,
        blocks: Vec<u32>,
        parts: Vec<PagePart>,
        order: StreamOrder,
    ) -> Self {
        let failed = Mutex::new(vec![false; blocks.len()]);
        Self {
            origin,
            sections,
            blocks,
            parts,
            order,
            accepted: Instant::now(),
            memory: Mutex::default(),
            was_pinned: false,
            noted: AtomicBool::new(false),
            abort: AtomicBool::new(false),
            progress: OnceLock::new(),
            layers: OnceLock::new(),
            failed,
            any_failed: AtomicBool::new(false),
            checked: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waiters: Waiters::default(),
        }
    }

    /// Pages of one cache group that were pinned, with their memory.
    pub(super) fn of_pinned(
        origin: Origin,
        layout: &Arc<KvLayout>,
        blocks: Vec<u32>,
        parts: Vec<PagePart>,
        order: StreamOrder,
        segments: Vec<Segment>,
    ) -> Self {
        let section = LoadSection { layout: Arc::clone(layout), pages: 0..blocks.len() };
        let job = Self { was_pinned: true, ..Self::new(origin, vec![section], blocks, parts, order) };
        job.supply(segments.into_iter().map(Some).collect());
        job
    }

    /// Segments by part, as far as they are there by now.
    pub(crate) fn supply(&self, segments: Vec<Option<Segment>>) {
        *self.memory.lock().unwrap_or_else(PoisonError::into_inner) = segments;
    }

    /// Whether it can be copied without any further segment.
    pub(crate) fn has_memory(&self) -> bool {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.len() == self.parts.len() && memory.iter().all(Option::is_some)
    }

    /// Gives up what it has.
    pub(crate) fn take_memory(&self) -> Vec<Option<Segment>> {
        std::mem::take(&mut *self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn bytes(&self) -> u64 {
        let of = |s: &LoadSection| s.pages.len() as u64 * s.layout.page_bytes() as u64;
        self.sections.iter().map(of).sum()
    }

    /// Bytes of the pages that have landed.
    pub(crate) fn landed_bytes(&self) -> u64 {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let landed = |s: &LoadSection| failed[s.pages.clone()].iter().filter(|failed| !**failed).count();
        self.sections.iter().map(|s| landed(s) as u64 * s.layout.page_bytes() as u64).sum()
    }

    /// How long its copying took by itself, if that is known.
    pub(crate) fn moving_time(&self) -> Option<Duration> {
        self.progress.get()?.moving_time()
    }

    pub(crate) fn wants_abort(&self) -> bool {
        self.abort.load(Ordering::Acquire)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Stops it without waiting.
    pub(crate) fn request_abort(&self) {
        // Under the waiters' lock, as `submitted`: either it sees the wish, or here its progress is seen.
        self.waiters.change(|| self.abort.store(true, Ordering::Release));
        if let Some(progress) = self.progress.get() {
            progress.request_abort();
        }
    }

    /// Those events; before it is submitted.
    pub(crate) fn set_layers(&self, layers: LayerEvents) {
        let _ = self.layers.set(layers);
    }

    /// No further page will be found to hold other bytes than were saved.
    pub(crate) fn set_checked(&self) {
        self.waiters.change(|| self.checked.store(true, Ordering::Release));
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.checked.load(Ordering::Acquire)
    }

    /// The copy engine has it.
    pub(crate) fn submitted(&self, progress: Arc<Progress>) {
        self.waiters.change(|| self.progress.set(progress)).ok();
        // An abort between the last look and now has found no progress to stop.
        if self.wants_abort() {
            self.request_abort();
        }
    }

    pub(crate) fn fail(&self, page: usize) {
        if let Some(failed) = self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_mut(page) {
            *failed = true;
        }
        self.waiters.change(|| self.any_failed.store(true, Ordering::Release));
    }

    pub(crate) fn fail_all(&self) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).fill(true);
        self.waiters.change(|| self.any_failed.store(!self.blocks.is_empty(), Ordering::Release));
    }

    pub(crate) fn failures(&self) -> u64 {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.iter().filter(|failed| **failed).count() as u64
    }

    pub(crate) fn end(&self) {
        self.waiters.change(|| self.ended.store(true, Ordering::Release));
    }

    /// As [`Load::wait_layer`].
    pub(crate) fn wait_layer(&self, layer: usize, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let failed = || self.any_failed.load(Ordering::Acquire);
        self.waiters.wait(timeout, || !self.has_ended() && !failed() && self.progress.get().is_none());
        if failed() {
            return false;
        }
        let Some(progress) = self.progress.get() else { return self.has_ended() };
        let left = until.saturating_duration_since(Instant::now());
        progress.wait_step(layer, left) == WaitOutcome::Ready && !failed()
    }

    /// As [`Load::order_layer`].
    pub(crate) fn order_layer(
        &self,
        layer: usize,
        stream: CudaStreamHandle,
        timeout: Duration,
    ) -> Result<LayerOrder, ClientError> {
        let until = Instant::now() + timeout;
        self.waiters.wait(timeout, || !self.has_ended() && self.progress.get().is_none());
        if self.progress.get().is_none() {
            return Ok(match self.has_ended() {
                false => LayerOrder::TimedOut,
                // Ended without a copy: nothing was left to copy, or nothing could be.
                true if self.any_failed.load(Ordering::Acquire) => LayerOrder::Failed,
                true => LayerOrder::Complete,
            });
        }
        let left = until.saturating_duration_since(Instant::now());
        let Some(layers) = self.layers.get() else {
            let want = "one of a worker on a CUDA device";
            return Err(ClientError::value("restore", "in host memory", want));
        };
        Ok(match layers.wait_on(layer, stream, left).map_err(of_cuda)? {
            LayerWait::Complete => LayerOrder::Complete,
            LayerWait::Ordered => LayerOrder::Ordered,
            LayerWait::Failed(_) | LayerWait::Aborted => LayerOrder::Failed,
            LayerWait::TimedOut => LayerOrder::TimedOut,
        })
    }

    /// As [`Load::wait_checked`].
    pub(crate) fn wait_checked(&self, timeout: Duration) -> bool {
        let known = || self.is_checked() || self.has_ended();
        self.waiters.wait(timeout, || !known());
        known()
    }

    pub(crate) fn wait_ended(&self, timeout: Duration) -> bool {
        self.waiters.wait(timeout, || !self.has_ended());
        self.has_ended()
    }
}

/// Answer of [`Load::order_layer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOrder {
    /// The layer has landed; the stream was left alone.
    Complete,
    /// Whatever is put on the stream from now on runs after the layer has landed.
    Ordered,
    /// The layer will not land, nor those after it.
    Failed,
    /// The copies of the layer were not queued in time; they may be later.
    TimedOut,
}

/// A restore under way.
pub struct Load {
    job: Arc<LoadJob>,
    work: Arc<Work>,
}

impl Load {
    pub(crate) fn new(job: Arc<LoadJob>, work: Arc<Work>) -> Self {
        Self { job, work }
    }

    /// True when no byte of it moves any more: done, failed or aborted.
    #[must_use]
    pub fn poll(&self) -> bool {
        self.job.has_ended()
    }

    /// Waits until regions 0 to `layer` of all pages have landed, counted over the layouts of all cache groups
    /// of the ticket, one after the other; false on timeout or if any page fails.
    #[must_use]
    pub fn wait_layer(&self, layer: usize, timeout: Duration) -> bool {
        self.job.wait_layer(layer, timeout)
    }

    /// Waits at most `timeout` until the copies of regions 0 to `layer` of all pages are queued on the device, then
    /// makes `stream` come after them: the host does not wait for the copies themselves. Pages that failed by
    /// themselves do not count; [`Load::wait_checked`] and [`Load::failed_blocks`] name them.
    ///
    /// # Errors
    /// What the driver says, or a restore in host memory. The stream is then not ordered.
    pub fn order_layer(
        &self,
        layer: usize,
        stream: usize,
        timeout: Duration,
    ) -> Result<LayerOrder, ClientError> {
        self.job.order_layer(layer, CudaStreamHandle(stream), timeout)
    }

    /// Waits at most `timeout` until every checksum that is compared has been. From then on [`Load::failed_blocks`]
    /// grows only if the copy itself fails, of which a stream that was to wait for a layer learns. The checksums are
    /// those of the pool's pages, so on a device this does not wait for the copy.
    #[must_use]
    pub fn wait_checked(&self, timeout: Duration) -> bool {
        self.job.wait_checked(timeout)
    }

    /// Waits at most `timeout` until [`Load::poll`] would be true.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        self.job.wait_ended(timeout)
    }

    /// Stops it and waits at most `timeout`; true when no byte moves any more.
    #[must_use]
    pub fn abort(&self, timeout: Duration) -> bool {
        self.job.request_abort();
        self.work.signal.raise();
        self.job.wait_ended(timeout)
    }

    /// Engine blocks whose page did not land, complete and verified. Valid once [`Load::poll`] is true; after
    /// [`Load::wait_checked`], valid for layers that a stream was ordered after.
    #[must_use]
    pub fn failed_blocks(&self) -> Vec<u32> {
        let failed = self.job.failed.lock().unwrap_or_else(PoisonError::into_inner);
        self.job.blocks.iter().zip(failed.iter()).filter(|(_, failed)| **failed).map(|(b, _)| *b).collect()
    }
}

#[cfg(all(test, loom))]
mod models;
