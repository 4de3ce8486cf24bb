//! One save: a copy for each page, so that one page can be given up without the others.

use super::state::Origin;
use crate::Hash;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use crate::sync::{OnceLock, yield_now};
use crate::ticket::PagePart;
use crate::waiters::Waiters;
use orbitkv_copy::{CopyState, KvLayout, Progress, StreamOrder};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the pages of one save share with its handle.
#[derive(Debug, Default)]
pub(crate) struct SaveGroup {
    /// Pages whose source may still be read.
    reading: AtomicUsize,
    committed: AtomicUsize,
    waiters: Waiters,
}

impl SaveGroup {
    pub(crate) fn new(pages: usize) -> Self {
        Self { reading: AtomicUsize::new(pages), ..Self::default() }
    }

    pub(crate) fn committed(&self, pages: usize) {
        self.committed.fetch_add(pages, Ordering::AcqRel);
    }
}

const QUEUED: u8 = 0;
const RUNNING: u8 = 1;
const ENDED: u8 = 2;

/// One page of a save.
#[derive(Debug)]
pub(crate) struct SavePage {
    pub(crate) origin: Origin,
    pub(crate) layout: Arc<KvLayout>,
    pub(crate) block: u32,
    pub(crate) hash: Hash,
    pub(crate) part: PagePart,
    /// Where the block has been computed, on the engine's stream.
    pub(crate) order: StreamOrder,
    pub(crate) accepted: Instant,
    /// Its arrival at the hold point has been counted.
    pub(crate) noted: AtomicBool,
    pub(crate) group: Arc<SaveGroup>,
    state: AtomicU8,
    progress: OnceLock<Arc<Progress>>,
}

impl SavePage {
    pub(crate) fn new(
        origin: Origin,
        layout: &Arc<KvLayout>,
        (block, hash, part): (u32, Hash, PagePart),
        group: &Arc<SaveGroup>,
        order: &StreamOrder,
    ) -> Self {
        Self {
            origin,
            layout: Arc::clone(layout),
            block,
            hash,
            part,
            order: order.clone(),
            accepted: Instant::now(),
            noted: AtomicBool::new(false),
            group: Arc::clone(group),
            state: AtomicU8::new(QUEUED),
            progress: OnceLock::new(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.layout.page_bytes() as u64
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.state.load(Ordering::Acquire) == QUEUED
    }

    /// Queued becomes running; false if it was given up. Under the lock of [`super::state::Work`].
    pub(crate) fn start(&self) -> bool {
        self.state.compare_exchange(QUEUED, RUNNING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The copy engine has it.
    pub(crate) fn submitted(&self, progress: Arc<Progress>) {
        self.group.waiters.change(|| self.progress.set(progress)).ok();
    }

    /// The source is read no more. True for the first caller.
    pub(crate) fn end(&self) -> bool {
        self.group.waiters.change(|| {
            let first = self.state.swap(ENDED, Ordering::AcqRel) != ENDED;
            if first {
                self.group.reading.fetch_sub(1, Ordering::AcqRel);
            }
            first
        })
    }

    /// Stops a running copy without waiting.
    pub(crate) fn request_abort(&self) {
        if let Some(progress) = self.progress.get() {
            progress.request_abort();
        }
    }

    /// Whether the source is read no more, as of now.
    pub(crate) fn is_still(&self) -> bool {
        self.state.load(Ordering::Acquire) == ENDED || self.progress.get().is_some_and(|p| !p.custody())
    }

    /// Waits until the source is read no more, at most until `until`.
    pub(crate) fn wait_still(&self, until: Instant) -> bool {
        let left = || until.saturating_duration_since(Instant::now());
        self.group.waiters.wait(left(), || !self.is_still() && self.progress.get().is_none());
        let Some(progress) = self.progress.get() else { return self.is_still() };
        // Answers when the last step has ended; the final state follows within the same call of the engine.
        let _ = progress.wait_step(usize::MAX, left());
        while !self.is_still() && progress.steps_done() == progress.steps() && !left().is_zero() {
            yield_now();
        }
        self.is_still()
    }

    /// Stops a running copy and waits until nothing of it moves. True if its page did not become whole.
    pub(crate) fn stop(&self) -> bool {
        loop {
            match self.progress.get() {
                // Still in custody, and ended: given up with the device that it is on.
                Some(progress) if progress.abort(Duration::from_secs(1)) || self.is_still() => {
                    return progress.state() != CopyState::Done;
                }
                Some(_) => {}
                // Ended before it reached the engine.
                None if self.is_still() => return true,
                // The copy thread is about to submit it.
                None => yield_now(),
            }
        }
    }
}

/// A save under way.
pub struct Save {
    group: Arc<SaveGroup>,
}

impl Save {
    pub(crate) fn new(group: Arc<SaveGroup>) -> Self {
        Self { group }
    }

    /// True when the source blocks are not read any more.
    #[must_use]
    pub fn poll(&self) -> bool {
        self.group.reading.load(Ordering::Acquire) == 0
    }

    /// Waits at most `timeout` for that.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        self.group.waiters.wait(timeout, || !self.poll());
        self.poll()
    }

    /// Pages committed so far.
    #[must_use]
    pub fn committed(&self) -> usize {
        self.group.committed.load(Ordering::Acquire)
    }
}

#[cfg(all(test, loom))]
mod models;
