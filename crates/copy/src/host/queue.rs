//! Which bytes the host engine copies next.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::{CopyDirection, CopyDone, CopyId, CopyJob, Fragment, Progress};

/// A batch is what one thread copies between two looks at the job's stop flag: large enough to hide the cost of
/// fetching it, small enough (about 0.1 ms) that an abort is prompt.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Below this a step is not split further: handing out a batch costs about as much as copying it.
const MIN_BATCH_BYTES: usize = 64 << 10;

/// Bounds the batch list where fragments are tiny.
const MAX_BATCH_FRAGMENTS: usize = 4096;

/// Batches of restores in a row while a save waits. Restores go first, because a request waits for them; saves hold
/// blocks of the serving engine and must end at some time.
const RESTORES_PER_SAVE: u32 = 8;

/// Jobs not yet reported, and their order.
pub(super) struct Queue {
    restores: VecDeque<Active>,
    saves: VecDeque<Active>,
    done: Vec<CopyDone>,
    threads: usize,
    restores_in_row: u32,
    shut_down: bool,
}

/// Work for one thread.
pub(super) enum Work {
    /// Call the hook before the job's first byte.
    Open { id: CopyId, direction: CopyDirection, progress: Arc<Progress> },
    /// Copy the batch that came with it.
    Copy { id: CopyId, progress: Arc<Progress> },
}

impl Work {
    pub(super) fn progress(&self) -> &Progress {
        match self {
            Work::Open { progress, .. } | Work::Copy { progress, .. } => progress,
        }
    }

    fn id(&self) -> CopyId {
        match self {
            Work::Open { id, .. } | Work::Copy { id, .. } => *id,
        }
    }
}

/// A job and how much of it has been handed out.
struct Active {
    job: CopyJob,
    step: usize,
    /// First fragment of the step not handed out whole.
    fragment: usize,
    /// Bytes of that fragment already handed out.
    offset: usize,
    /// Threads working on the job.
    outstanding: usize,
    opened: bool,
}

impl Queue {
    pub(super) fn new(threads: usize) -> Queue {
        Queue {
            restores: VecDeque::new(),
            saves: VecDeque::new(),
            done: Vec::new(),
            threads,
            restores_in_row: 0,
            shut_down: false,
        }
    }

    /// Names of all jobs not yet reported to the submitter.
    pub(super) fn held(&self) -> impl Iterator<Item = CopyId> {
        let active = self.restores.iter().chain(&self.saves).map(|active| active.job.id());
        active.chain(self.done.iter().map(|done| done.id))
    }

    pub(super) fn push(&mut self, job: CopyJob) {
        let direction = job.direction();
        let active = Active {
            job,
            step: 0,
            fragment: 0,
            offset: 0,
            outstanding: 0,
            // Without hooks there is nothing to do before the first byte.
            opened: !cfg!(feature = "test-hooks"),
        };
        self.lane(direction).push_back(active);
    }

    /// The next piece of work; a copy's fragments go into `batch`.
    pub(super) fn next(&mut self, batch: &mut Vec<Fragment>) -> Option<Work> {
        let threads = self.threads;
        let save_first = self.restores_in_row >= RESTORES_PER_SAVE;
        let order = if save_first {
            [CopyDirection::Save, CopyDirection::Restore]
        } else {
            [CopyDirection::Restore, CopyDirection::Save]
        };
        for direction in order {
            if let Some(work) =
                self.lane(direction).iter_mut().find_map(|active| active.hand_out(threads, batch))
            {
                self.restores_in_row = match direction {
                    CopyDirection::Restore => self.restores_in_row.saturating_add(1),
                    CopyDirection::Save => 0,
                };
                return Some(work);
            }
        }
        None
    }

    /// Takes back work carried out. True where other threads may now find work that was not there before.
    pub(super) fn finish(&mut self, work: &Work) -> bool {
        let id = work.id();
        let Some(active) =
            self.restores.iter_mut().chain(&mut self.saves).find(|active| active.job.id() == id)
        else {
            debug_assert!(self.shut_down, "a job with outstanding work stays in the queue");
            return false;
        };
        active.outstanding -= 1;
        match work {
            Work::Open { .. } => {
                active.opened = true;
                true
            }
            Work::Copy { .. } => active.advance(),
        }
    }

    /// Moves ended jobs to the completions; true if there were any.
    pub(super) fn retire(&mut self) -> bool {
        let before = self.done.len();
        let done = &mut self.done;
        for lane in [&mut self.restores, &mut self.saves] {
            lane.retain(|active| {
                let state = active.job.progress().state();
                let ended = active.outstanding == 0 && state.is_final();
                if ended {
                    done.push(CopyDone { id: active.job.id(), state });
                }
                !ended
            });
        }
        self.done.len() > before
    }

    pub(super) fn take_done(&mut self, out: &mut Vec<CopyDone>) {
        out.append(&mut self.done);
    }

    /// Stops every job; workers leave after their present batch.
    pub(super) fn shut_down(&mut self) {
        self.shut_down = true;
        for active in self.restores.iter().chain(&self.saves) {
            active.job.progress().request_abort();
        }
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down
    }

    fn lane(&mut self, direction: CopyDirection) -> &mut VecDeque<Active> {
        match direction {
            CopyDirection::Restore => &mut self.restores,
            CopyDirection::Save => &mut self.saves,
        }
    }
}

impl Active {
    /// Hands out the opening, or the next batch of the present step; `None` where other threads have it all.
    fn hand_out(&mut self, threads: usize, batch: &mut Vec<Fragment>) -> Option<Work> {
        let progress = self.job.progress();
        if progress.is_stopped() {
            return None;
        }
        let id = self.job.id();
        if !self.opened {
            if self.outstanding > 0 {
                return None;
            }
            self.outstanding = 1;
            return Some(Work::Open { id, direction: self.job.direction(), progress: progress.clone() });
        }
        let progress = progress.clone();
        if !self.carve(threads, batch) {
            return None;
        }
        self.outstanding += 1;
        Some(Work::Copy { id, progress })
    }

    /// Takes the next batch out of the present step; false if nothing of it is left.
    fn carve(&mut self, threads: usize, batch: &mut Vec<Fragment>) -> bool {
        batch.clear();
        let Some(step) = self.job.steps().get(self.step) else {
            return false;
        };
        let mut budget_bytes = (step.bytes() / threads).clamp(MIN_BATCH_BYTES, MAX_BATCH_BYTES);
        while budget_bytes > 0 && batch.len() < MAX_BATCH_FRAGMENTS {
            let Some(fragment) = step.fragments().get(self.fragment) else {
                break;
            };
            let part = fragment.part(self.offset, budget_bytes);
            budget_bytes -= part.bytes();
            self.offset += part.bytes();
            if self.offset == fragment.bytes() {
                self.fragment += 1;
                self.offset = 0;
            }
            batch.push(part);
        }
        !batch.is_empty()
    }

    /// Goes to the next step once every byte of the present one has been copied; true if it did.
    fn advance(&mut self) -> bool {
        let progress = self.job.progress();
        let handed_out =
            self.job.steps().get(self.step).is_none_or(|step| self.fragment == step.fragments().len());
        // A stopped job may have batches that were refused at the gate: its step is not complete and never will be.
        if self.outstanding > 0 || !handed_out || progress.is_stopped() {
            return false;
        }
        progress.step_done();
        self.step += 1;
        self.fragment = 0;
        if self.step == self.job.steps().len() {
            progress.complete();
        }
        true
    }
}
