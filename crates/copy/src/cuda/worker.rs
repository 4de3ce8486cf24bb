//! The thread that talks to the driver.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::active::Active;
use super::bus::Tools;
use super::choice::Choice;
use super::config::CudaCopyConfig;
use super::context::Context;
use super::error::CudaError;
use super::kernel_test::KernelRefusal;
use super::lane::Lane;
use super::pool::EventPool;
use super::registry::Registry;
use super::self_test::BatchRefusal;
use crate::{CopyDirection, CopyDone, CopyFailure, CopyId, CopyJob};

/// How often a lost device is asked whether its copies have ended.
const LOST_POLL: Duration = Duration::from_millis(5);

/// What the engine, its handles and its threads share.
pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) pool: Arc<EventPool>,
    pub(super) registry: Registry,
    pub(super) config: CudaCopyConfig,
    pub(super) refusal: Mutex<Option<BatchRefusal>>,
    pub(super) kernel_refusal: Mutex<Option<KernelRefusal>>,
    queue: Mutex<Queue>,
    /// Signalled when a job comes, and when the engine is dropped.
    work: Condvar,
}

/// Jobs between the submitter and the worker.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) incoming: VecDeque<CopyJob>,
    /// All jobs not yet reported.
    pub(super) held: Vec<CopyId>,
    pub(super) done: Vec<CopyDone>,
    pub(super) lost: bool,
    pub(super) closed: bool,
}

impl Shared {
    pub(super) fn new(context: Arc<Context>, config: CudaCopyConfig) -> Shared {
        let registry = Registry::new(&context, config.register_chunk_bytes);
        let (pool, queue) = (EventPool::new(&context), Mutex::new(Queue::default()));
        let (refusal, kernel_refusal) = (Mutex::new(None), Mutex::new(None));
        Shared { context, pool, registry, config, refusal, kernel_refusal, queue, work: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.work.notify_all();
    }

    /// Keeps why batches are not used, and says it. They are not tried again, so this happens once.
    pub(super) fn refuse_batches(&self, refusal: &BatchRefusal) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal.clone());
        if let Some(notice) = &self.config.batch_notice {
            let _ = catch_unwind(AssertUnwindSafe(|| notice(refusal)));
        }
    }

    /// The same of the kernel.
    pub(super) fn refuse_kernel(&self, refusal: &KernelRefusal) {
        *self.kernel_refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal.clone());
        if let Some(notice) = &self.config.kernel_notice {
            let _ = catch_unwind(AssertUnwindSafe(|| notice(refusal)));
        }
    }

    #[cfg(feature = "test-hooks")]
    fn before_fragment(&self, direction: CopyDirection, id: CopyId) {
        if let Some(hook) = &self.config.before_fragment {
            hook(direction, id);
        }
    }

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

/// Lets the thread's short sleeps end in time: by default the kernel adds 50 us, as long again as the sleep itself.
fn sharpen_timer() {
    const SLACK_NS: libc::c_ulong = 1_000;
    // SAFETY: changes this thread's timer slack and touches no memory. Without it completions are seen a little later.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
}

/// The worker's own things. Nobody else touches a stream.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) lanes: [Lane; 2],
    pub(super) choice: Choice,
}

impl Worker {
    /// The worker's life. Copies that have not ended at its end are never given back: their memory, their pages and
    /// their custody stay as they are until the process ends.
    pub(super) fn run(mut self) {
        sharpen_timer();
        let context = self.shared.context.clone();
        let (entered, relaxed) = (context.enter(), context.driver().relax_captures());
        if entered.is_err() || relaxed.is_err() {
            self.lose(CopyFailure::DeviceLost);
        }
        let mut deadline = None;
        loop {
            let closed = self.wait();
            let ticked = catch_unwind(AssertUnwindSafe(|| self.tick()));
            match ticked {
                Ok(Ok(())) => {}
                Ok(Err(_)) => self.lose(CopyFailure::DeviceLost),
                Err(_) => self.lose(CopyFailure::WorkerPanicked),
            }
            self.report();
            if closed {
                let wait = Duration::from_millis(self.shared.config.drop_wait_ms);
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + wait);
                let idle = self.lanes.iter().all(Lane::is_idle);
                if idle || self.shared.lock().lost || Instant::now() >= deadline {
                    if idle {
                        // Here, where the thread is still in the context and out of captures.
                        drop(self.lanes);
                    } else {
                        mem::forget(self.lanes);
                    }
                    return;
                }
            }
        }
    }

    /// Sleeps until there may be something to do; true once the engine is dropped.
    fn wait(&self) -> bool {
        let idle = self.lanes.iter().all(Lane::is_idle);
        let queue = self.shared.lock();
        let nothing = |queue: &mut Queue| queue.incoming.is_empty() && !queue.closed;
        if idle {
            let waited = self.shared.work.wait_while(queue, nothing);
            return waited.unwrap_or_else(PoisonError::into_inner).closed;
        }
        let nap =
            if queue.lost { LOST_POLL } else { Duration::from_micros(self.shared.config.poll_us.max(1)) };
        // A dropped engine sleeps as well between two looks.
        let nothing = |queue: &mut Queue| queue.incoming.is_empty();
        let waited = self.shared.work.wait_timeout_while(queue, nap, nothing);
        waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }

    fn tick(&mut self) -> Result<(), CudaError> {
        let mut queue = self.shared.lock();
        let incoming = mem::take(&mut queue.incoming);
        let (lost, closed) = (queue.lost, queue.closed);
        drop(queue);
        for job in incoming {
            let lane = self.lanes.iter_mut().find(|lane| lane.direction == job.direction());
            debug_assert!(lane.is_some(), "there is a lane for each direction");
            if let Some(lane) = lane {
                lane.push(Active::new(job));
            }
        }
        if closed {
            self.lanes.iter().for_each(Lane::abort_all);
        }
        if lost {
            self.lose(CopyFailure::DeviceLost);
            let gone = self.shared.context.is_gone();
            self.lanes.iter_mut().for_each(|lane| lane.land_by_evidence(gone));
            return Ok(());
        }
        let shared = self.shared.clone();
        let mut tools = Tools {
            registry: &shared.registry,
            pool: &shared.pool,
            choice: &mut self.choice,
            max_ahead_bytes: shared.config.max_ahead_bytes,
            before_fragment: &|direction, id| shared.before_fragment(direction, id),
            refuse_batches: &|error| shared.refuse_batches(&BatchRefusal::Failed(error)),
            refuse_kernel: &|error| shared.refuse_kernel(&KernelRefusal::Failed(error)),
        };
        for lane in &mut self.lanes {
            lane.land()?;
            lane.issue(&mut tools)?;
        }
        Ok(())
    }

    fn lose(&mut self, failure: CopyFailure) {
        let known = mem::replace(&mut self.shared.lock().lost, true);
        if !known {
            // Jobs in custody are not reported, so nothing else tells the submitter.
            self.shared.wake();
        }
        self.lanes.iter_mut().for_each(|lane| lane.lose(failure));
    }

    /// Hands ended jobs to the submitter.
    fn report(&mut self) {
        let mut done = Vec::new();
        self.lanes.iter_mut().for_each(|lane| lane.retire(&mut done));
        if !done.is_empty() {
            self.shared.lock().done.append(&mut done);
            self.shared.wake();
        }
    }
}
