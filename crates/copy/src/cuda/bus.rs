//! The way in one direction, and how copies get onto its streams.

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use super::active::{Active, InFlight, Landing};
use super::choice::Choice;
use super::config::CudaCopyConfig;
use super::context::Context;
use super::error::CudaError;
use super::kernel::Kernel;
use super::lists::{Listed, Lists};
use super::plan::{self, Op};
use super::pool::{EventPool, PooledEvent};
use super::registry::Registry;
use super::staging::Staging;
use super::stream::{Piece, Way};
use super::turns::Turns;
use crate::{CopyDirection, CopyFailure, CopyId, Step};

/// Most things waited for on a stream; far above what keeps it busy.
const MAX_IN_FLIGHT: usize = 4096;

/// What queueing needs of the engine.
pub(super) struct Tools<'a> {
    pub(super) registry: &'a Registry,
    pub(super) pool: &'a Arc<EventPool>,
    pub(super) choice: &'a mut Choice,
    pub(super) max_ahead_bytes: usize,
    /// Called before a job's first copy.
    pub(super) before_fragment: &'a dyn Fn(CopyDirection, CopyId),
    /// Told when the driver's batch call fails.
    pub(super) refuse_batches: &'a dyn Fn(CudaError),
    /// Told when a launch of the kernel fails.
    pub(super) refuse_kernel: &'a dyn Fn(CudaError),
}

/// Whether a job is queued as far as it will be.
#[derive(PartialEq, Eq)]
pub(super) enum Queued {
    Whole,
    /// Something has to land first.
    Blocked,
}

/// The way between host and device in one direction.
pub(super) struct Bus {
    direction: CopyDirection,
    way: Way,
    turns: Turns,
    pub(super) staging: Staging,
    /// `None` where the kernel is not used.
    lists: Option<Lists>,
    /// In the order of the streams, which copy one after the other.
    pub(super) in_flight: VecDeque<InFlight>,
    /// Bytes of steps that are queued and have not been reached.
    pub(super) ahead_bytes: usize,
}

impl Bus {
    pub(super) fn create(
        context: &Arc<Context>,
        direction: CopyDirection,
        config: &CudaCopyConfig,
        kernel: Option<&Arc<Kernel>>,
    ) -> Result<Bus, CudaError> {
        // A request waits for a restore; a save only has to end at some time.
        let (way, urgent, turn_bytes) = match direction {
            CopyDirection::Restore => (Way::ToDevice, true, config.restore_turn_bytes),
            CopyDirection::Save => (Way::ToHost, false, config.save_turn_bytes),
        };
        Ok(Bus {
            direction,
            way,
            turns: Turns::create(context, urgent, turn_bytes)?,
            staging: Staging::create(context, config.staging_slot_bytes)?,
            lists: kernel.map(|kernel| Lists::create(context, kernel)).transpose()?,
            in_flight: VecDeque::new(),
            ahead_bytes: 0,
        })
    }

    /// Queues as much of the job as fits. An error means that the device can no longer be trusted.
    pub(super) fn issue(&mut self, active: &mut Active, tools: &mut Tools<'_>) -> Result<Queued, CudaError> {
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
        ops.extend(plan::calls(pinned, tools.choice, self.turns.bytes()));
        if !active.ordered {
            (tools.before_fragment)(self.direction, active.job.id());
            match active.job.order().hold(self.turns.handle()) {
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
            let bytes = op.engine_bytes();
            self.turns.next(tools.pool)?;
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
                    match unsafe { self.turns.stream().copy_batch(self.way, &pieces) } {
                        Err(error) if !error.is_sticky() => {
                            // Whatever part of it was queued is queued again, with the same bytes.
                            tools.choice.batch = false;
                            (tools.refuse_batches)(error);
                            active.ops.extend(pieces.into_iter().map(Op::Plain));
                        }
                        called => called?,
                    }
                }
                Op::List(listed) => {
                    if self.issue_list(active, listed, tools)? == Queued::Blocked {
                        return Ok(Queued::Blocked);
                    }
                }
                Op::Plain(piece) => {
                    active.calls += 1;
                    // SAFETY: as above.
                    let called = unsafe { self.turns.stream().copy(self.way, piece) };
                    Self::settle_call(active, called)?;
                }
                Op::Rows(rows) => {
                    active.calls += 1;
                    // SAFETY: as above.
                    let called = unsafe { self.turns.stream().copy_rows(self.way, rows) };
                    Self::settle_call(active, called)?;
                }
            }
            self.turns.took(bytes);
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
        let called = unsafe { self.turns.stream().copy(self.way, staged) };
        // Where the call failed there is nothing to drain, and the slot waits for the stream all the same.
        let landing = if called.is_ok() { landing } else { Landing::Free { slot } };
        self.mark(active, 0, landing, pool.take())?;
        Ok(called)
    }

    /// By the kernel, or in another way where it cannot be used any more.
    fn issue_list(
        &mut self,
        active: &mut Active,
        listed: Vec<Listed>,
        tools: &mut Tools<'_>,
    ) -> Result<Queued, CudaError> {
        let Some(lists) = self.lists.as_mut().filter(|_| tools.choice.kernel) else {
            active.ops.extend(plan::unlisted(&listed, tools.choice, self.turns.bytes()));
            return Ok(Queued::Whole);
        };
        let Some(list) = lists.put(self.way, &listed) else {
            active.ops.push_front(Op::List(listed));
            return Ok(Queued::Blocked);
        };
        active.calls += 1;
        // SAFETY: the job is in its gate until an event recorded after this call is complete, and the list is given
        // back when the one recorded next is.
        let launched = unsafe { lists.launch(self.turns.handle(), &list) };
        // Where the call failed nobody knows who reads the list, so it waits for the stream all the same.
        self.mark(active, 0, Landing::List { taken: list.taken }, tools.pool.take())?;
        match launched {
            Err(error) if !error.is_sticky() => {
                // Whatever part of it was queued is queued again, with the same bytes.
                tools.choice.kernel = false;
                (tools.refuse_kernel)(error);
                active.ops.extend(plan::unlisted(&listed, tools.choice, self.turns.bytes()));
            }
            launched => launched?,
        }
        Ok(Queued::Whole)
    }

    /// The oldest list has been read.
    pub(super) fn give_back_list(&mut self, taken: usize) {
        if let Some(lists) = &mut self.lists {
            lists.give_back(taken);
        }
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
        let recorded = event.and_then(|event| event.record(self.turns.handle()).map(|()| event));
        let (event, error) = match recorded {
            Ok(event) => (Some(event), None),
            Err(error) => (None, Some(error)),
        };
        self.ahead_bytes += bytes;
        self.in_flight.push_back(InFlight { id: active.job.id(), event, bytes, landing });
        error.map_or(Ok(()), Err)
    }
}
