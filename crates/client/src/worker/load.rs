//! One restore.

use super::state::{Origin, Work};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, OnceLock};
use crate::ticket::PagePart;
use crate::waiters::Waiters;
use orbitkv_copy::{KvLayout, Progress, WaitOutcome};
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
    pub(crate) accepted: Instant,
    /// Its arrival at the hold point has been counted.
    pub(crate) noted: AtomicBool,
    abort: AtomicBool,
    progress: OnceLock<Arc<Progress>>,
    /// Page by page, whether it did not land.
    failed: Mutex<Vec<bool>>,
    any_failed: AtomicBool,
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
    ) -> Self {
        let failed = Mutex::new(vec![false; blocks.len()]);
        Self {
            origin,
            sections,
            blocks,
            parts,
            accepted: Instant::now(),
            noted: AtomicBool::new(false),
            abort: AtomicBool::new(false),
            progress: OnceLock::new(),
            failed,
            any_failed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waiters: Waiters::default(),
        }
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

    pub(crate) fn wait_ended(&self, timeout: Duration) -> bool {
        self.waiters.wait(timeout, || !self.has_ended());
        self.has_ended()
    }
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

    /// Engine blocks whose page did not land, complete and verified. Valid once [`Load::poll`] is true.
    #[must_use]
    pub fn failed_blocks(&self) -> Vec<u32> {
        let failed = self.job.failed.lock().unwrap_or_else(PoisonError::into_inner);
        self.job.blocks.iter().zip(failed.iter()).filter(|(_, failed)| **failed).map(|(b, _)| *b).collect()
    }
}

#[cfg(all(test, loom))]
mod models;
