//! What every copy engine does.

use std::sync::Arc;

use crate::{CopyId, CopyJob, CopyState};

/// Called, on a thread of the engine, after completions have become visible to [`CopyEngine::poll`]. Must not block.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Why an engine does not take a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// All places are taken; poll, then submit again.
    #[error("the copy engine holds its limit of {max_jobs} jobs: poll completions before submitting more")]
    Busy {
        /// Jobs the engine holds at most, those not yet polled included.
        max_jobs: usize,
    },
    /// A job of that name is not yet reported.
    #[error("copy {} is already in the engine: give each job its own id", id.0)]
    DuplicateId {
        /// The name.
        id: CopyId,
    },
    /// The device is gone, and with it every later job.
    #[error("the copy device is lost: restart the serving engine")]
    DeviceLost,
}

/// A job that an engine did not take, given back untouched.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// The job, to be submitted again or dropped.
    pub job: CopyJob,
    /// Why.
    pub error: CopyError,
}

impl From<Refused> for CopyError {
    fn from(refused: Refused) -> CopyError {
        refused.error
    }
}

/// The end of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyDone {
    /// The job.
    pub id: CopyId,
    /// Its final state: `Done`, `Failed` or `Aborted`.
    pub state: CopyState,
}

/// Carries copy jobs out. Nothing here blocks: whoever wants to wait uses the job's [`crate::Progress`] or a [`Waker`].
///
/// Each accepted job is reported exactly once, when its state is final, and not before; then it is out of custody.
/// Jobs run in no promised order; restores go before saves where they compete.
pub trait CopyEngine: Send {
    /// Takes a job, or gives it back.
    fn submit(&mut self, job: CopyJob) -> Result<(), Refused>;

    /// Appends the jobs that have ended since the last call.
    fn poll(&mut self, out: &mut Vec<CopyDone>);
}

/// Whether one more job named `id` fits beside those `held` (reported to nobody yet).
pub(crate) fn admit(
    id: CopyId,
    held: impl Iterator<Item = CopyId>,
    max_jobs: usize,
) -> Result<(), CopyError> {
    let mut count = 0;
    for other in held {
        if other == id {
            return Err(CopyError::DuplicateId { id });
        }
        count += 1;
    }
    if count >= max_jobs { Err(CopyError::Busy { max_jobs }) } else { Ok(()) }
}
