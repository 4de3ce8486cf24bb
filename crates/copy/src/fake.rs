//! A deterministic engine for tests: time is an argument, and faults are planned.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::admit;
use crate::{CopyDone, CopyEngine, CopyError, CopyFailure, CopyJob, Refused, Waker};

/// Code of the failures that [`FakePlan::fail_at_step`] plans.
pub const FAKE_FAILURE_CODE: i32 = 999;

/// What becomes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FakePlan {
    /// Time each step takes, in microseconds.
    pub step_us: u64,
    /// The step that fails, half of its bytes written.
    pub fail_at_step: Option<usize>,
    /// The step in whose middle the engine dies: half of its bytes written, and nothing moves or is reported from
    /// then on, of this job or any other, until the end of the world.
    pub die_at_step: Option<usize>,
}

/// The fake engine. Clones are the same engine: give one to the code under test, and drive the other.
///
/// It behaves as a device does: a step once started moves bytes until it ends, whatever is aborted meanwhile. Jobs
/// run side by side, each on its own clock: submitted at `t`, step `k` of a job starts at `t + k * step_us` and ends
/// at `t + (k + 1) * step_us`. Nothing happens outside [`FakeCopy::advance`].
#[derive(Clone)]
pub struct FakeCopy {
    inner: Arc<Mutex<Inner>>,
    waker: Option<Waker>,
}

struct Inner {
    max_jobs: usize,
    now_us: u64,
    default_plan: FakePlan,
    next_plans: VecDeque<FakePlan>,
    jobs: Vec<FakeJob>,
    done: Vec<CopyDone>,
    dead: bool,
    lost: bool,
}

struct FakeJob {
    job: CopyJob,
    plan: FakePlan,
    step: usize,
    /// Whether the step is between its start and its end.
    mid_step: bool,
    next_at_us: u64,
}

impl FakeCopy {
    /// An engine of at most `max_jobs` jobs at time 0, whose jobs take no time and do not fail.
    #[must_use]
    pub fn new(max_jobs: usize, waker: Option<Waker>) -> FakeCopy {
        let inner = Inner {
            max_jobs,
            now_us: 0,
            default_plan: FakePlan::default(),
            next_plans: VecDeque::new(),
            jobs: Vec::new(),
            done: Vec::new(),
            dead: false,
            lost: false,
        };
        FakeCopy { inner: Arc::new(Mutex::new(inner)), waker }
    }

    /// Plans every later job that has no plan of its own.
    pub fn plan_all(&self, plan: FakePlan) {
        self.lock().default_plan = plan;
    }

    /// Plans the next job submitted that has no plan of its own yet; calls queue up.
    pub fn plan_next(&self, plan: FakePlan) {
        self.lock().next_plans.push_back(plan);
    }

    /// Lets time pass until `now_us`; an earlier time than before is no time.
    pub fn advance(&self, now_us: u64) {
        let mut inner = self.lock();
        inner.advance(now_us);
        self.wake_if_ended(inner);
    }

    /// Loses the device: every job fails, and none is taken any more.
    pub fn lose_device(&self) {
        let mut inner = self.lock();
        inner.lost = true;
        for job in &mut inner.jobs {
            job.job.progress().fail(CopyFailure::DeviceLost);
            if job.mid_step {
                job.mid_step = false;
                job.job.progress().leave();
            }
        }
        inner.retire();
        self.wake_if_ended(inner);
    }

    /// Whether a planned death has happened.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Jobs taken and not yet ended.
    #[must_use]
    pub fn jobs_held(&self) -> usize {
        self.lock().jobs.len()
    }

    fn wake_if_ended(&self, inner: MutexGuard<'_, Inner>) {
        let ended = !inner.done.is_empty();
        drop(inner);
        if let (true, Some(waker)) = (ended, &self.waker) {
            waker();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CopyEngine for FakeCopy {
    fn submit(&mut self, job: CopyJob) -> Result<(), Refused> {
        let mut inner = self.lock();
        let held = inner.jobs.iter().map(|held| held.job.id()).chain(inner.done.iter().map(|done| done.id));
        let admitted =
            if inner.lost { Err(CopyError::DeviceLost) } else { admit(job.id(), held, inner.max_jobs) };
        if let Err(error) = admitted {
            return Err(Refused { job, error });
        }
        let plan = inner.next_plans.pop_front().unwrap_or(inner.default_plan);
        let next_at_us = inner.now_us;
        inner.jobs.push(FakeJob { job, plan, step: 0, mid_step: false, next_at_us });
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<CopyDone>) {
        let mut inner = self.lock();
        inner.retire();
        out.append(&mut inner.done);
    }
}

impl Inner {
    fn advance(&mut self, now_us: u64) {
        self.now_us = self.now_us.max(now_us);
        while !self.dead {
            self.retire();
            // Earliest event first, the older job first among equals.
            let due = self.jobs.iter_mut().filter(|job| job.next_at_us <= self.now_us);
            let Some(job) = due.min_by_key(|job| job.next_at_us) else {
                return;
            };
            if job.mid_step {
                job.end_step();
            } else {
                self.dead = job.start_step();
            }
        }
    }

    /// Moves ended jobs to the completions. A dead engine reports nothing.
    fn retire(&mut self) {
        if self.dead && !self.lost {
            return;
        }
        let done = &mut self.done;
        self.jobs.retain(|held| {
            let state = held.job.progress().state();
            if state.is_final() {
                done.push(CopyDone { id: held.job.id(), state });
            }
            !state.is_final()
        });
    }
}

impl FakeJob {
    /// Starts the next step; true if the engine dies in its middle.
    fn start_step(&mut self) -> bool {
        if !self.job.progress().enter_unguarded() {
            return false;
        }
        self.mid_step = true;
        self.next_at_us = self.next_at_us.saturating_add(self.plan.step_us);
        self.copy_half(0);
        self.plan.die_at_step == Some(self.step)
    }

    fn end_step(&mut self) {
        let progress = self.job.progress();
        if self.plan.fail_at_step == Some(self.step) {
            progress.fail(CopyFailure::Device { code: FAKE_FAILURE_CODE });
        } else {
            self.copy_half(1);
        }
        self.mid_step = false;
        progress.leave();
        if progress.is_stopped() {
            return;
        }
        progress.step_done();
        self.step += 1;
        if self.step == self.job.steps().len() {
            progress.complete();
        }
    }

    /// Copies the first or the second half of every fragment of the step.
    fn copy_half(&self, half: usize) {
        let Some(step) = self.job.steps().get(self.step) else {
            return;
        };
        for fragment in step.fragments() {
            let middle = fragment.bytes() / 2;
            let part = if half == 0 { fragment.part(0, middle) } else { fragment.part(middle, usize::MAX) };
            // SAFETY: the job is in its gate from the start of the step to its end, hence in custody.
            unsafe { part.copy() };
        }
    }
}
