//! Copies in host memory, on worker threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::engine::admit;
use crate::{
    CopyDirection, CopyDone, CopyEngine, CopyFailure, CopyId, CopyJob, Fragment, Progress, Refused, Waker,
};

mod queue;

use queue::{Queue, Work};

/// More threads than any host's memory bandwidth rewards.
const MAX_THREADS: usize = 128;

/// Jobs an engine holds unless told otherwise.
const DEFAULT_MAX_JOBS: usize = 64;

/// Called before a job's first byte moves, while an abort still stops it whole.
#[cfg(feature = "test-hooks")]
pub type BeforeFragment = Arc<dyn Fn(CopyDirection, CopyId) + Send + Sync>;

/// How a [`HostCopy`] is built: `HostCopyConfig { max_jobs: 8, ..HostCopyConfig::new(4) }`.
#[derive(Clone)]
pub struct HostCopyConfig {
    /// Worker threads, 1 to 128.
    pub threads: usize,
    /// Jobs held at most, from submission until polled.
    pub max_jobs: usize,
    /// Called after jobs have ended.
    pub waker: Option<Waker>,
    /// Called before each job's first byte.
    #[cfg(feature = "test-hooks")]
    pub before_fragment: Option<BeforeFragment>,
}

impl HostCopyConfig {
    /// `threads` workers, 64 jobs, no waker.
    #[must_use]
    pub fn new(threads: usize) -> HostCopyConfig {
        HostCopyConfig {
            threads,
            max_jobs: DEFAULT_MAX_JOBS,
            waker: None,
            #[cfg(feature = "test-hooks")]
            before_fragment: None,
        }
    }
}

/// Why there is no host engine.
#[derive(Debug, thiserror::Error)]
pub enum HostCopyError {
    /// No threads, or too many.
    #[error("{threads} copy threads are refused: use 1 to {MAX_THREADS}")]
    Threads {
        /// The number asked for.
        threads: usize,
    },
    /// An engine that could never take a job.
    #[error("a copy engine of 0 jobs is refused: use at least 1")]
    NoJobs,
    /// The system gives no thread.
    #[error("cannot start a copy thread: {source}; raise the process's thread limit")]
    Spawn {
        /// The system's answer.
        source: std::io::Error,
    },
}

/// The engine for KV in host memory.
///
/// A step is split over the threads; a job waits for nothing but its own steps, so the threads left over by one job
/// serve the next. Restores go first, yet one batch in nine goes to a waiting save. Dropping it aborts what is left.
pub struct HostCopy {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl HostCopy {
    /// Starts the threads.
    pub fn new(config: HostCopyConfig) -> Result<HostCopy, HostCopyError> {
        let threads = config.threads;
        if threads == 0 || threads > MAX_THREADS {
            return Err(HostCopyError::Threads { threads });
        }
        if config.max_jobs == 0 {
            return Err(HostCopyError::NoJobs);
        }
        let queue = Mutex::new(Queue::new(threads));
        let shared = Arc::new(Shared { queue, work: Condvar::new(), config });
        let mut engine = HostCopy { shared, workers: Vec::with_capacity(threads) };
        for number in 0..threads {
            let shared = engine.shared.clone();
            let worker = thread::Builder::new()
                .name(format!("orbitkv-copy-{number}"))
                .spawn(move || shared.run())
                .map_err(|source| HostCopyError::Spawn { source })?;
            engine.workers.push(worker);
        }
        Ok(engine)
    }
}

impl CopyEngine for HostCopy {
    fn submit(&mut self, job: CopyJob) -> Result<(), Refused> {
        let mut queue = self.shared.lock();
        if let Err(error) = admit(job.id(), queue.held(), self.shared.config.max_jobs) {
            return Err(Refused { job, error });
        }
        queue.push(job);
        drop(queue);
        self.shared.work.notify_all();
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<CopyDone>) {
        let mut queue = self.shared.lock();
        // An aborted job behind busy workers need not wait for one of them.
        queue.retire();
        queue.take_done(out);
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        self.shared.lock().shut_down();
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches its panics, so there is nothing to learn from its end.
            let _ = worker.join();
        }
    }
}

/// What submitter and workers share.
struct Shared {
    queue: Mutex<Queue>,
    /// Signalled when there may be work for an idle worker.
    work: Condvar,
    config: HostCopyConfig,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker's life.
    fn run(&self) {
        let mut batch = Vec::new();
        let mut queue = self.lock();
        while !queue.is_shut_down() {
            let Some(work) = queue.next(&mut batch) else {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            self.carry_out(&work, &batch);
            queue = self.lock();
            let more = queue.finish(&work);
            let ended = queue.retire();
            drop(queue);
            if more {
                self.work.notify_all();
            }
            if ended {
                self.wake();
            }
            queue = self.lock();
        }
    }

    /// Does one piece of work; a panic fails its job and nothing else.
    fn carry_out(&self, work: &Work, batch: &[Fragment]) {
        let outcome = catch_unwind(AssertUnwindSafe(|| match work {
            Work::Open { id, direction, .. } => self.before_fragment(*direction, *id),
            Work::Copy { progress, .. } => copy(progress, batch),
        }));
        if outcome.is_err() {
            work.progress().fail(CopyFailure::WorkerPanicked);
        }
    }

    #[cfg(feature = "test-hooks")]
    fn before_fragment(&self, direction: CopyDirection, id: CopyId) {
        if let Some(hook) = &self.config.before_fragment {
            hook(direction, id);
        }
    }

    /// Without hooks nothing is called; jobs are made opened, so this is never reached.
    #[cfg(not(feature = "test-hooks"))]
    #[allow(clippy::unused_self)]
    fn before_fragment(&self, _direction: CopyDirection, _id: CopyId) {}

    fn wake(&self) {
        if let Some(waker) = &self.config.waker {
            // A waker that panics must not take the worker with it: the completion is in the list all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| waker()));
        }
    }
}

/// Copies a batch, unless its job was stopped.
fn copy(progress: &Progress, batch: &[Fragment]) {
    let Some(_moving) = progress.enter() else {
        return;
    };
    for fragment in batch {
        // SAFETY: the job is in custody while `_moving` lives.
        unsafe { fragment.copy() };
    }
}
