//! What has to happen on the serving engine's streams before a job's first byte moves.

use std::sync::Arc;

use super::context::CudaStreamHandle;
use super::error::CudaError;
use super::pool::{EventPool, PooledEvent};

/// A point in a stream of the serving engine that a job comes after ([`crate::CopyJob::after`]).
///
/// A save names the point where the KV it copies has been computed; a restore the point from which on nobody uses the
/// blocks it fills. Made by [`super::CudaHandle::order_after`]; clones name the same point, so one is enough for all
/// jobs of an engine step. The default names no point: the copy may begin at once. Engines of host memory ignore it,
/// because their callers hand over memory that is in order already.
#[derive(Debug, Clone, Default)]
pub struct StreamOrder(Option<Arc<PooledEvent>>);

impl StreamOrder {
    /// Marks the end of what is on `stream` now. The mark is in the driver when this returns, so whoever waits for
    /// it waits for something.
    pub(super) fn mark(pool: &Arc<EventPool>, stream: CudaStreamHandle) -> Result<StreamOrder, CudaError> {
        let event = pool.take()?;
        event.record(stream)?;
        Ok(StreamOrder(Some(event)))
    }

    /// Makes `stream` come after the point.
    pub(super) fn hold(&self, stream: CudaStreamHandle) -> Result<(), CudaError> {
        self.0.as_ref().map_or(Ok(()), |event| event.hold(stream))
    }
}
