//! Events are made once and used again: making one costs more than recording it.

use std::sync::{Arc, Mutex, PoisonError};

use super::context::{Context, CudaStreamHandle, Event};
use super::error::CudaError;

/// More than the layers of all restores under way; beyond this, events are destroyed when they come back.
const MAX_IDLE: usize = 4096;

/// Events that nobody uses now.
#[derive(Debug)]
pub(super) struct EventPool {
    context: Arc<Context>,
    idle: Mutex<Vec<Event>>,
}

/// An event on loan; goes back to its pool with the last of its users.
///
/// An event that is used again has been recorded before, and that record is complete: a wait on it before its next
/// record is as empty as a wait on a new one. Nothing may wait on it before the host has seen the record return.
#[derive(Debug)]
pub(crate) struct PooledEvent {
    /// Taken by `drop` only.
    event: Option<Event>,
    pool: Arc<EventPool>,
}

impl EventPool {
    pub(super) fn new(context: &Arc<Context>) -> Arc<EventPool> {
        Arc::new(EventPool { context: context.clone(), idle: Mutex::new(Vec::new()) })
    }

    pub(super) fn take(self: &Arc<Self>) -> Result<Arc<PooledEvent>, CudaError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let event = match idle {
            Some(event) => event,
            None => Event::create(&self.context)?,
        };
        Ok(Arc::new(PooledEvent { event: Some(event), pool: self.clone() }))
    }
}

impl PooledEvent {
    /// Records it after all work of `stream` so far.
    pub(super) fn record(&self, stream: CudaStreamHandle) -> Result<(), CudaError> {
        self.event.as_ref().map_or(Ok(()), |event| self.pool.context.record(event, stream))
    }

    /// Lets `stream` wait for its last record.
    pub(super) fn hold(&self, stream: CudaStreamHandle) -> Result<(), CudaError> {
        self.event.as_ref().map_or(Ok(()), |event| self.pool.context.wait(stream, event))
    }

    /// Whether everything before its last record has ended.
    pub(super) fn is_complete(&self) -> Result<bool, CudaError> {
        self.event.as_ref().map_or(Ok(false), Event::is_complete)
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        let Some(event) = self.event.take() else { return };
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(event);
        }
    }
}
