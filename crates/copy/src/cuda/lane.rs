//! One direction: jobs in turn, from the first step queued to the last one reached.

use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use super::active::{Active, InFlight, Landing};
use super::bus::{Bus, Queued, Tools};
use super::config::CudaCopyConfig;
use super::context::Context;
use super::error::CudaError;
use super::kernel::Kernel;
use crate::{CopyDirection, CopyDone, CopyFailure};

pub(super) struct Lane {
    pub(super) direction: CopyDirection,
    jobs: VecDeque<Active>,
    bus: Bus,
}

impl Lane {
    pub(super) fn create(
        context: &Arc<Context>,
        direction: CopyDirection,
        config: &CudaCopyConfig,
        kernel: Option<&Arc<Kernel>>,
    ) -> Result<Lane, CudaError> {
        let bus = Bus::create(context, direction, config, kernel)?;
        Ok(Lane { direction, jobs: VecDeque::new(), bus })
    }

    pub(super) fn push(&mut self, active: Active) {
        self.jobs.push_back(active);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.bus.in_flight.is_empty()
    }

    pub(super) fn abort_all(&self) {
        self.jobs.iter().for_each(|active| active.progress().request_abort());
    }

    /// Handles what has been reached.
    pub(super) fn land(&mut self) -> Result<(), CudaError> {
        while let Some(front) = self.bus.in_flight.front() {
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
        while let Some(front) = self.bus.in_flight.front() {
            let complete = || front.event.as_ref().is_some_and(|event| event.is_complete().unwrap_or(false));
            if !context_is_gone && !complete() {
                return;
            }
            self.land_front(false);
        }
    }

    fn land_front(&mut self, arrived: bool) {
        let Some(InFlight { id, bytes, landing, .. }) = self.bus.in_flight.pop_front() else { return };
        self.bus.ahead_bytes -= bytes;
        match landing {
            Landing::Free { slot } => self.bus.staging.give_back(slot),
            Landing::Drain { slot, piece } => {
                if arrived {
                    // SAFETY: the slot's copy has ended and the next has not begun; the job is in its gate, hence in
                    // custody of the page, until the end of the step, which comes later in this queue.
                    unsafe { ptr::copy_nonoverlapping(self.bus.staging.slot(slot), piece.host, piece.bytes) };
                }
                self.bus.staging.give_back(slot);
            }
            Landing::List { taken } => self.bus.give_back_list(taken),
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
        for active in &mut self.jobs {
            if self.bus.issue(active, tools)? == Queued::Blocked {
                break;
            }
        }
        Ok(())
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
                let lost = InFlight { id: active.job.id(), event: None, bytes: 0, landing };
                self.bus.in_flight.push_back(lost);
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
