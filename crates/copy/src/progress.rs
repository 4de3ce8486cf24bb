//! How far a job is, and whether its bytes may still move.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, wait_while};

/// Why a job failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CopyFailure {
    /// The code that ran the job panicked: a defect, contained to this job.
    #[error("the copy worker panicked")]
    WorkerPanicked,
    /// The device is gone; every job of its engine fails.
    #[error("the copy device is lost: restart the serving engine")]
    DeviceLost,
    /// The device refused or failed the copy.
    #[error("the copy device reports error {code}")]
    Device {
        /// The device's own error number.
        code: i32,
    },
}

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyState {
    /// Not started; bytes may start to move at any time.
    Queued,
    /// Bytes are moving.
    Running,
    /// Stopped after an abort or a failure: no further fragment starts, those begun may still move bytes.
    Aborting,
    /// Final: every byte is where it belongs.
    Done,
    /// Final: bytes at the destination are undefined and no longer change.
    Failed(CopyFailure),
    /// Final: as after a failure, because someone asked for it.
    Aborted,
}

impl CopyState {
    /// Whether the state is the last one: no byte of the job moves any more.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, CopyState::Done | CopyState::Failed(_) | CopyState::Aborted)
    }
}

/// Answer of [`Progress::wait_step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The step and all before it are complete.
    Ready,
    /// The job failed before the step was complete; it will not be.
    Failed(CopyFailure),
    /// The job was aborted before the step was complete; it will not be.
    Aborted,
    /// The time is up; the job goes on.
    TimedOut,
}

/// Why no further fragment starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Aborted,
    Failed(CopyFailure),
    /// All steps are complete.
    Done,
}

/// Set in `gate` once no further fragment may start; the bits below count the fragments running now.
const STOP: u64 = 1 << 63;

/// Progress of one job, shared by its engine and everyone who waits for it.
///
/// Polling costs no lock and no system call. Stopping is exact: a fragment enters the gate before it touches a byte
/// and leaves it afterwards; stop and entry are one atomic word, so a fragment either is counted or does not start.
#[derive(Debug)]
pub struct Progress {
    steps: usize,
    steps_done: AtomicUsize,
    gate: AtomicU64,
    /// Written under the lock only, read without.
    state: StateCell,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug)]
struct Inner {
    /// Set once; the first reason wins.
    stop: Option<Stop>,
    /// When the first step was complete, and when the last one so far.
    stepped: Option<(Instant, Instant)>,
}

impl Progress {
    pub(crate) fn new(steps: usize) -> Progress {
        Progress {
            steps,
            steps_done: AtomicUsize::new(0),
            gate: AtomicU64::new(0),
            state: StateCell::new(),
            inner: Mutex::new(Inner { stop: None, stepped: None }),
            changed: Condvar::new(),
        }
    }

    /// Number of steps of the job.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Number of leading steps that are complete.
    #[must_use]
    pub fn steps_done(&self) -> usize {
        self.steps_done.load(Ordering::Acquire)
    }

    /// Where the job is now.
    #[must_use]
    pub fn state(&self) -> CopyState {
        self.state.get()
    }

    /// Whether a byte of the job may still be read or written, now or later: from its making to its final state.
    ///
    /// Its source must not be overwritten and its destination not be used for anything else before this is false.
    #[must_use]
    pub fn custody(&self) -> bool {
        !self.state().is_final()
    }

    /// Waits at most `timeout` until `step` and all before it are complete. A step past the last waits for the last.
    #[must_use]
    pub fn wait_step(&self, step: usize, timeout: Duration) -> WaitOutcome {
        let wanted = step.min(self.steps.saturating_sub(1));
        if self.steps_done() > wanted {
            return WaitOutcome::Ready;
        }
        let guard = self.lock();
        let waiting = |inner: &mut Inner| self.steps_done() <= wanted && inner.stop.is_none();
        let guard = wait_while(&self.changed, guard, timeout, waiting);
        if self.steps_done() > wanted {
            return WaitOutcome::Ready;
        }
        match guard.stop {
            // `Done` implies that all steps are done, which the line above has seen.
            None | Some(Stop::Done) => WaitOutcome::TimedOut,
            Some(Stop::Aborted) => WaitOutcome::Aborted,
            Some(Stop::Failed(failure)) => WaitOutcome::Failed(failure),
        }
    }

    /// Stops the job, and waits at most `timeout` for the fragments that are running now.
    ///
    /// True: stopped; no further byte of the job is read or written. (A job that was already final is.) False: a
    /// fragment is still running; nothing new starts, custody stays with the job, and its state is `Aborting` until
    /// the engine sees the fragment end. Calling again waits again.
    #[must_use = "the job's memory may only be reused after true"]
    pub fn abort(&self, timeout: Duration) -> bool {
        self.request_abort();
        let waiting = |_: &mut Inner| self.custody();
        drop(wait_while(&self.changed, self.lock(), timeout, waiting));
        !self.custody()
    }

    /// Stops the job without waiting; see [`Progress::custody`] for when it has.
    pub fn request_abort(&self) {
        self.stop(Stop::Aborted);
    }

    /// Stops the job for `failure`.
    pub(crate) fn fail(&self, failure: CopyFailure) {
        self.stop(Stop::Failed(failure));
    }

    /// The engine says that the last step is complete. No effect on a job that was stopped before.
    pub(crate) fn complete(&self) {
        debug_assert_eq!(self.steps_done(), self.steps, "a job is done when its steps are");
        self.stop(Stop::Done);
    }

    /// The engine says that one more step is complete.
    pub(crate) fn step_done(&self) {
        // Under the lock, so that a waiter either sees the step or is already waiting for the wake-up.
        let mut inner = self.lock();
        let now = Instant::now();
        inner.stepped = Some((inner.stepped.map_or(now, |(first, _)| first), now));
        self.steps_done.fetch_add(1, Ordering::Release);
        self.changed.notify_all();
    }

    /// How long the bytes took to move, without what they waited for: the time between the ends of the first and the
    /// last step, taken as that of all but one of equal steps. `None` for a job that is not complete or has one step.
    #[must_use]
    pub fn moving_time(&self) -> Option<Duration> {
        let between = u32::try_from(self.steps).ok()?.checked_sub(1).filter(|between| *between > 0)?;
        let (first, last) = self.lock().stepped.filter(|_| self.state() == CopyState::Done)?;
        Some((last - first) * (between + 1) / between)
    }

    /// Whether no further fragment may start.
    pub(crate) fn is_stopped(&self) -> bool {
        self.gate.load(Ordering::Acquire) & STOP != 0
    }

    /// Enters the gate before bytes move; `None` once stopped. The bytes may move until the guard is dropped.
    pub(crate) fn enter(&self) -> Option<Moving<'_>> {
        if !self.enter_unguarded() {
            return None;
        }
        Some(Moving { progress: self })
    }

    /// As [`Progress::enter`], for copies that outlive the call: each true is paid back by one [`Progress::leave`].
    pub(crate) fn enter_unguarded(&self) -> bool {
        let before = self.gate.fetch_add(1, Ordering::AcqRel);
        if before & STOP != 0 {
            self.leave();
            return false;
        }
        if self.state() == CopyState::Queued {
            let _guard = self.lock();
            // A stop may have come between; it has seen us in the gate and the state is its business.
            if self.state() == CopyState::Queued {
                self.state.set(CopyState::Running);
            }
        }
        true
    }

    /// Leaves the gate: the bytes that moved since entering are at rest.
    pub(crate) fn leave(&self) {
        let before = self.gate.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before & !STOP > 0, "left more often than entered");
        if before == STOP | 1 {
            self.settle(&self.lock());
        }
    }

    fn stop(&self, reason: Stop) {
        let mut inner = self.lock();
        if inner.stop.is_none() {
            inner.stop = Some(reason);
            self.gate.fetch_or(STOP, Ordering::AcqRel);
            self.settle(&inner);
            if self.custody() {
                self.state.set(CopyState::Aborting);
            }
            // Waiters for a step learn at once that it will not come, settled or not.
            self.changed.notify_all();
        }
    }

    /// Makes a stopped job final once nothing runs any more.
    fn settle(&self, inner: &Inner) {
        let Some(stop) = inner.stop else { return };
        if self.gate.load(Ordering::Acquire) == STOP && self.custody() {
            self.state.set(match stop {
                Stop::Aborted => CopyState::Aborted,
                Stop::Failed(failure) => CopyState::Failed(failure),
                Stop::Done => CopyState::Done,
            });
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Proof that a fragment is counted in its job's gate; leaves it on drop, panics included.
#[derive(Debug)]
pub(crate) struct Moving<'a> {
    progress: &'a Progress,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.progress.leave();
    }
}

/// A [`CopyState`] in one atomic word: tag in the low byte, device error code in the upper half.
#[derive(Debug)]
struct StateCell(AtomicU64);

impl StateCell {
    fn new() -> StateCell {
        StateCell(AtomicU64::new(0))
    }

    fn set(&self, state: CopyState) {
        let word = match state {
            CopyState::Queued => 0,
            CopyState::Running => 1,
            CopyState::Aborting => 2,
            CopyState::Done => 3,
            CopyState::Aborted => 4,
            CopyState::Failed(CopyFailure::WorkerPanicked) => 5,
            CopyState::Failed(CopyFailure::DeviceLost) => 6,
            CopyState::Failed(CopyFailure::Device { code }) => 7 | u64::from(code.cast_unsigned()) << 32,
        };
        self.0.store(word, Ordering::Release);
    }

    fn get(&self) -> CopyState {
        let word = self.0.load(Ordering::Acquire);
        match word & 0xff {
            0 => CopyState::Queued,
            1 => CopyState::Running,
            2 => CopyState::Aborting,
            3 => CopyState::Done,
            4 => CopyState::Aborted,
            5 => CopyState::Failed(CopyFailure::WorkerPanicked),
            6 => CopyState::Failed(CopyFailure::DeviceLost),
            _ => CopyState::Failed(CopyFailure::Device { code: ((word >> 32) as u32).cast_signed() }),
        }
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
