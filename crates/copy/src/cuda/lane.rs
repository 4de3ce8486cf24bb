//! One direction: a stream, and the jobs that are queued on it in turn.

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use super::active::{Active, InFlight, Landing};
use super::context::Context;
use super::error::CudaError;
use super::plan::{self, Choice, Op};
use super::pool::{EventPool, PooledEvent};
use super::registry::Registry;
use super::staging::Staging;
use super::stream::{Piece, Stream, Way};
use crate::{CopyDirection, CopyDone, CopyFailure, Step};

/// Most things waited for on a stream; far above what keeps it busy.
const MAX_IN_FLIGHT: usize = 4096;

/// What a lane works with.
pub(super) struct Tools<'a> {
    pub(super) registry: &'a Registry,
    pub(super) pool: &'a Arc<EventPool>,
    pub(super) choice: &'a mut Choice,
    pub(super) max_ahead_bytes: usize,
    /// Told when the driver's batch call fails.
    pub(super) refuse_batches: &'a dyn Fn(CudaError),
}

pub(super) struct Lane {
    pub(super) direction: CopyDirection,
    way: Way,
    stream: Stream,
    staging: Staging,
    jobs: VecDeque<Active>,
    in_flight: VecDeque<InFlight>,
    /// Bytes of steps that are queued and have not been reached.
    ahead_bytes: usize,
}

/// Whether a job is queued as far as it will be.
#[derive(PartialEq, Eq)]
enum Queued {
    Whole,
    /// Something has to land first.
    Blocked,
}

impl Lane {
    pub(super) fn create(
        context: &Arc<Context>,
        direction: CopyDirection,
        staging_slot_bytes: usize,
    ) -> Result<Lane, CudaError> {
        // A request waits for a restore; a save only has to end at some time.
        let (way, urgent) = match direction {
            CopyDirection::Restore => (Way::ToDevice, true),
            CopyDirection::Save => (Way::ToHost, false),
        };
        Ok(Lane {
            direction,
            way,
            stream: Stream::create(context, urgent)?,
            staging: Staging::create(context, staging_slot_bytes)?,
            jobs: VecDeque::new(),
            in_flight: VecDeque::new(),
            ahead_bytes: 0,
        })
    }

    pub(super) fn push(&mut self, active: Active) {
        self.jobs.push_back(active);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.in_flight.is_empty()
    }

    pub(super) fn abort_all(&self) {
        self.jobs.iter().for_each(|active| active.progress().request_abort());
    }

    /// Handles what has been reached.
    pub(super) fn land(&mut self) -> Result<(), CudaError> {
        while let Some(front) = self.in_flight.front() {
            let complete = front.event.as_ref().map_or(Ok(false), |event| event.is_complete())?;
            if !complete {
                return Ok(());
            }
            self.land_front(true);
        }
        Ok(())
    }

    /// The same on a device that is lost: only an event that the driver still calls complete, or the end of the
    /// context, shows that a copy has ended. An error shows nothing.
    pub(super) fn land_by_evidence(&mut self, context_is_gone: bool) {
        while let Some(front) = self.in_flight.front() {
            let complete = || front.event.as_ref().is_some_and(|event| event.is_complete().unwrap_or(false));
            if !context_is_gone && !complete() {
                return;
            }
            self.land_front(false);
        }
    }

    fn land_front(&mut self, arrived: bool) {
        let Some(InFlight { id, bytes, landing, .. }) = self.in_flight.pop_front() else { return };
        self.ahead_bytes -= bytes;
        match landing {
            Landing::Free { slot } => self.staging.give_back(slot),
            Landing::Drain { slot, piece } => {
                if arrived {
                    // SAFETY: the slot's copy has ended and the next has not begun; the job is in its gate, hence in
                    // custody of the page, until the end of the step, which comes later in this queue.
                    unsafe { ptr::copy_nonoverlapping(self.staging.slot(slot), piece.host, piece.bytes) };
                }
                self.staging.give_back(slot);
            }
            Landing::StepEnd { whole } => {
                let job = self.jobs.iter_mut().find(|active| active.job.id() == id);
                debug_assert!(job.is_some(), "a job stays until its last step has landed");
                if let Some(active) = job {
                    active.land(whole && arrived);
                }
            }
        }
    }

    /// Queues what fits. An error means that the device can no longer be trusted.
    pub(super) fn issue(&mut self, tools: &mut Tools<'_>) -> Result<(), CudaError> {
        for at in 0..self.jobs.len() {
            // Taken out while it is worked on, as the lane's other parts are needed with it.
            let Some(mut active) = self.jobs.remove(at) else { break };
            let queued = self.issue_job(&mut active, tools);
            self.jobs.insert(at, active);
            if queued? == Queued::Blocked {
                break;
            }
        }
        Ok(())
    }

    fn issue_job(&mut self, active: &mut Active, tools: &mut Tools<'_>) -> Result<Queued, CudaError> {
        while !active.closed {
            if !active.entered {
                if self.ahead_bytes >= tools.max_ahead_bytes || self.in_flight.len() >= MAX_IN_FLIGHT {
                    return Ok(Queued::Blocked);
                }
                if !self.open_step(active, tools)? {
                    continue;
                }
            }
            if self.issue_step(active, tools)? == Queued::Blocked {
                return Ok(Queued::Blocked);
            }
            self.close_step(active, tools.pool)?;
        }
        Ok(Queued::Whole)
    }

    /// Plans the next step and enters the job's gate; false where the job was stopped.
    fn open_step(&mut self, active: &mut Active, tools: &Tools<'_>) -> Result<bool, CudaError> {
        let Some(step) = active.job.steps().get(active.step) else {
            active.close();
            return Ok(false);
        };
        let slot_bytes = tools.choice.staging_bytes;
        let (pinned, mut ops) = plan::cut(step, self.direction, tools.registry, slot_bytes, &mut active.pins);
        ops.extend(plan::calls(pinned, tools.choice));
        if !active.ordered {
            match active.job.order().hold(self.stream.handle()) {
                Err(error) if error.is_sticky() => return Err(error),
                Err(error) => active.fail(CopyFailure::Device { code: error.code() }),
                Ok(()) => active.ordered = true,
            }
        }
        if !active.progress().enter_unguarded() {
            active.close();
            return Ok(false);
        }
        (active.ops, active.calls, active.entered) = (ops, 0, true);
        Ok(true)
    }

    /// Queues the step's copies until it is whole or stopped.
    fn issue_step(&mut self, active: &mut Active, tools: &mut Tools<'_>) -> Result<Queued, CudaError> {
        while !active.progress().is_stopped()
            && let Some(op) = active.ops.pop_front()
        {
            match op {
                Op::Staged(piece) => {
                    let Some(slot) = self.staging.take() else {
                        active.ops.push_front(Op::Staged(piece));
                        return Ok(Queued::Blocked);
                    };
                    active.calls += 1;
                    let called = self.issue_staged(active, piece, slot, tools.pool)?;
                    Self::settle_call(active, called)?;
                }
                Op::Batch(pieces) => {
                    active.calls += 1;
                    // SAFETY: the job is in its gate until an event recorded after this call is complete.
                    match unsafe { self.stream.copy_batch(self.way, &pieces) } {
                        Err(error) if !error.is_sticky() => {
                            // Whatever part of it was queued is queued again, with the same bytes.
                            tools.choice.batch = false;
                            (tools.refuse_batches)(error);
                            active.ops.extend(pieces.into_iter().map(Op::Plain));
                        }
                        called => called?,
                    }
                }
                Op::Plain(piece) => {
                    active.calls += 1;
                    // SAFETY: as above.
                    let called = unsafe { self.stream.copy(self.way, piece) };
                    Self::settle_call(active, called)?;
                }
                Op::Rows(rows) => {
                    active.calls += 1;
                    // SAFETY: as above.
                    let called = unsafe { self.stream.copy_rows(self.way, rows) };
                    Self::settle_call(active, called)?;
                }
            }
        }
        Ok(Queued::Whole)
    }

    /// An error of one call fails its job; one that is sticky is the end of the device.
    fn settle_call(active: &Active, called: Result<(), CudaError>) -> Result<(), CudaError> {
        match called {
            Err(error) if !error.is_sticky() => {
                active.progress().fail(CopyFailure::Device { code: error.code() });
                Ok(())
            }
            called => called,
        }
    }

    /// The inner error is that of the copy.
    fn issue_staged(
        &mut self,
        active: &Active,
        piece: Piece,
        slot: usize,
        pool: &Arc<EventPool>,
    ) -> Result<Result<(), CudaError>, CudaError> {
        let staged = Piece { host: self.staging.slot(slot), ..piece };
        let landing = match self.way {
            Way::ToDevice => {
                // SAFETY: the job is in its gate, hence the page is valid; the slot is free, hence nobody's.
                unsafe { ptr::copy_nonoverlapping(piece.host.cast_const(), staged.host, piece.bytes) };
                Landing::Free { slot }
            }
            Way::ToHost => Landing::Drain { slot, piece },
        };
        // SAFETY: the slot is nobody else's, and the job in its gate, until an event recorded after this is complete.
        let called = unsafe { self.stream.copy(self.way, staged) };
        // Where the call failed there is nothing to drain, and the slot waits for the stream all the same.
        let landing = if called.is_ok() { landing } else { Landing::Free { slot } };
        self.mark(active, 0, landing, pool.take())?;
        Ok(called)
    }

    /// Queues the end of the step.
    fn close_step(&mut self, active: &mut Active, pool: &Arc<EventPool>) -> Result<(), CudaError> {
        active.entered = false;
        let whole = active.ops.is_empty() && !active.progress().is_stopped();
        active.ops.clear();
        if active.calls == 0 {
            active.close();
            active.progress().leave();
            return Ok(());
        }
        active.outstanding += 1;
        let event = active.job.layer_event(active.step).map_or_else(|| pool.take(), Ok);
        let bytes = active.job.steps().get(active.step).map_or(0, Step::bytes);
        self.mark(active, bytes, Landing::StepEnd { whole }, event)?;
        if whole {
            active.job.note_layer_recorded();
            active.step += 1;
        } else {
            active.close();
        }
        Ok(())
    }

    /// Marks the present end of the stream with `event`. Where that fails the device is lost: nobody can know any more
    /// when the copies end.
    fn mark(
        &mut self,
        active: &Active,
        bytes: usize,
        landing: Landing,
        event: Result<Arc<PooledEvent>, CudaError>,
    ) -> Result<(), CudaError> {
        let recorded = event.and_then(|event| event.record(self.stream.handle()).map(|()| event));
        let (event, error) = match recorded {
            Ok(event) => (Some(event), None),
            Err(error) => (None, Some(error)),
        };
        self.ahead_bytes += bytes;
        self.in_flight.push_back(InFlight { id: active.job.id(), event, bytes, landing });
        error.map_or(Ok(()), Err)
    }

    /// The device is lost, or the worker is: nothing more is queued. What was queued stays in custody.
    pub(super) fn lose(&mut self, failure: CopyFailure) {
        for active in &mut self.jobs {
            active.fail(failure);
            if !active.entered {
                continue;
            }
            active.entered = false;
            active.ops.clear();
            if active.calls == 0 {
                active.progress().leave();
            } else {
                active.outstanding += 1;
                let landing = Landing::StepEnd { whole: false };
                self.in_flight.push_back(InFlight { id: active.job.id(), event: None, bytes: 0, landing });
            }
        }
    }

    /// Moves ended jobs to `done`.
    pub(super) fn retire(&mut self, done: &mut Vec<CopyDone>) {
        self.jobs.retain(|active| {
            let ended = active.has_ended();
            if ended {
                done.push(CopyDone { id: active.job.id(), state: active.progress().state() });
            }
            !ended
        });
    }
}
