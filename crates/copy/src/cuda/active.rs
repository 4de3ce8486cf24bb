//! A job on its way through a lane.

use std::collections::VecDeque;
use std::sync::Arc;

use super::plan::Op;
use super::pool::PooledEvent;
use super::registry::Chunk;
use super::stream::Piece;
use crate::{CopyFailure, CopyId, CopyJob, Progress};

/// A job and how much of it has been queued.
pub(super) struct Active {
    pub(super) job: CopyJob,
    /// The step being queued, or the first that is not.
    pub(super) step: usize,
    /// What is left of the step to queue.
    pub(super) ops: VecDeque<Op>,
    /// Calls made for the step; counted before each, as a call that fails may have queued something.
    pub(super) calls: usize,
    /// Whether the step has entered the job's gate and its end is not yet queued.
    pub(super) entered: bool,
    /// Whether the stream comes after the job's order.
    pub(super) ordered: bool,
    /// Nothing more will be queued: all steps are, or the job was stopped.
    pub(super) closed: bool,
    /// Ends of steps that are queued and have not been reached.
    pub(super) outstanding: usize,
    /// Keeps registered what the job's copies use.
    pub(super) pins: Vec<Arc<Chunk>>,
}

/// Something queued on a stream whose end is waited for.
pub(super) struct InFlight {
    pub(super) id: CopyId,
    /// Recorded after it; `None` where that could not be done: then only the end of the context is evidence.
    pub(super) event: Option<Arc<PooledEvent>>,
    pub(super) bytes: usize,
    pub(super) landing: Landing,
}

/// What to do once it has ended.
pub(super) enum Landing {
    /// A staged restore: its slot is free.
    Free { slot: usize },
    /// A staged save: the slot holds the bytes of `piece`.
    Drain { slot: usize, piece: Piece },
    /// A launch of the kernel: its list is no longer read.
    List { taken: usize },
    /// The end of a step; `whole` if all of it was queued.
    StepEnd { whole: bool },
}

impl Active {
    pub(super) fn new(job: CopyJob) -> Active {
        Active {
            job,
            step: 0,
            ops: VecDeque::new(),
            calls: 0,
            entered: false,
            ordered: false,
            closed: false,
            outstanding: 0,
            pins: Vec::new(),
        }
    }

    pub(super) fn progress(&self) -> &Progress {
        self.job.progress()
    }

    /// Queues nothing more. Whoever waits for a layer that is not queued learns of it.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.job.close_layers();
    }

    pub(super) fn fail(&mut self, failure: CopyFailure) {
        self.progress().fail(failure);
        self.close();
    }

    /// The end of one of its steps has been reached.
    pub(super) fn land(&mut self, whole: bool) {
        self.outstanding -= 1;
        let progress = self.job.progress();
        progress.leave();
        if whole && !progress.is_stopped() {
            progress.step_done();
            if progress.steps_done() == progress.steps() {
                progress.complete();
            }
        }
    }

    /// Whether the job can be reported: nothing of it is queued, and nothing will be.
    pub(super) fn has_ended(&self) -> bool {
        !self.entered && self.outstanding == 0 && self.progress().state().is_final()
    }
}
