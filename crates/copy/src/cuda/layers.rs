//! Lets a compute stream wait for single layers of a restore.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::context::CudaStreamHandle;
use super::error::CudaError;
use super::pool::{EventPool, PooledEvent};
use crate::{CopyFailure, Progress, WaitOutcome};

/// Answer of [`LayerEvents::wait_on`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerWait {
    /// The layer is complete already; the stream was left alone.
    Complete,
    /// Whatever is put on the stream from now on runs after the layer is complete.
    Ordered,
    /// The job failed before the layer was queued; it will not come.
    Failed(CopyFailure),
    /// The job was aborted before the layer was queued; it will not come.
    Aborted,
    /// The layer was not queued in time; the job goes on.
    TimedOut,
}

/// The events of a restore, one a step: made by [`super::CudaHandle::layer_events`] before the job is submitted.
///
/// A stream that waits on an event which is not yet recorded waits for nothing, and the kernels behind it read wrong
/// bytes. So [`LayerEvents::wait_on`] first sees, on the host, that the record of the step has returned.
#[derive(Debug, Clone)]
pub struct LayerEvents {
    layers: Arc<Layers>,
    progress: Arc<Progress>,
}

/// What the job and its waiters share.
#[derive(Debug)]
pub(crate) struct Layers {
    events: Vec<Arc<PooledEvent>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Leading steps whose events are recorded, all of their copies before them.
    recorded: usize,
    /// No further step will be.
    closed: bool,
}

impl Layers {
    pub(super) fn new(pool: &Arc<EventPool>, steps: usize) -> Result<Layers, CudaError> {
        let events = (0..steps).map(|_| pool.take()).collect::<Result<_, _>>()?;
        let state = Mutex::new(State { recorded: 0, closed: false });
        Ok(Layers { events, state, changed: Condvar::new() })
    }

    pub(crate) fn event(&self, step: usize) -> Option<Arc<PooledEvent>> {
        self.events.get(step).cloned()
    }

    /// The record of the next step has returned.
    pub(crate) fn note_recorded(&self) {
        self.lock().recorded += 1;
        self.changed.notify_all();
    }

    /// Nothing more will be recorded. Waiters learn why from the job's progress, so that is stopped first.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LayerEvents {
    pub(super) fn new(layers: Arc<Layers>, progress: Arc<Progress>) -> LayerEvents {
        LayerEvents { layers, progress }
    }

    /// Waits at most `timeout` until the copies of `step` are queued, then makes `stream` come after them. A step
    /// past the last is the last.
    ///
    /// The wait is as long as the host takes to queue the copies, not as long as the copies take.
    ///
    /// # Errors
    /// What the driver says. The stream is then not ordered: wait for the job on the host instead.
    pub fn wait_on(
        &self,
        step: usize,
        stream: CudaStreamHandle,
        timeout: Duration,
    ) -> Result<LayerWait, CudaError> {
        let step = step.min(self.layers.events.len().saturating_sub(1));
        if self.progress.steps_done() > step {
            return Ok(LayerWait::Complete);
        }
        let state = self.layers.lock();
        let waiting = |state: &mut State| state.recorded <= step && !state.closed;
        let waited = self.layers.changed.wait_timeout_while(state, timeout, waiting);
        let state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let (recorded, closed) = (state.recorded > step, state.closed);
        drop(state);
        if recorded {
            return self.hold(step, stream).map(|()| LayerWait::Ordered);
        }
        if !closed {
            return Ok(LayerWait::TimedOut);
        }
        Ok(match self.progress.wait_step(step, Duration::ZERO) {
            WaitOutcome::Ready => LayerWait::Complete,
            WaitOutcome::Failed(failure) => LayerWait::Failed(failure),
            WaitOutcome::Aborted | WaitOutcome::TimedOut => LayerWait::Aborted,
        })
    }

    /// The planted defect: waits on the event of `step` without having seen its record return.
    ///
    /// # Errors
    /// What the driver says.
    #[cfg(feature = "test-hooks")]
    pub fn wait_before_record(&self, step: usize, stream: CudaStreamHandle) -> Result<(), CudaError> {
        self.hold(step, stream)
    }

    fn hold(&self, step: usize, stream: CudaStreamHandle) -> Result<(), CudaError> {
        self.layers.event(step).map_or(Ok(()), |event| event.hold(stream))
    }
}
