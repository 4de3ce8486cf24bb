//! Copies between the KV memory of a serving engine and pages of the shared pool.
//!
//! A [`CopyJob`] moves the KV of some blocks, layer after layer; a [`CopyEngine`] carries jobs out; a [`Progress`]
//! tells everyone else how far a job is and whether its bytes may still move. Engines never block their caller:
//! submission, completion and waiting are three separate things, as they are on a GPU.
//!
//! Where pages come from, and who may read them, is decided elsewhere.

mod crc;
mod cuda;
mod engine;
#[cfg(feature = "fake")]
mod fake;
mod fragment;
mod host;
mod job;
mod layout;
#[cfg(loom)]
pub mod model;
mod progress;
mod sync;

pub use crc::{Crc64, crc64, crc64_sources, page_crc64};
pub use cuda::{
    BatchForm, BatchNotice, BatchRefusal, CopyMethod, CudaCopy, CudaCopyConfig, CudaDriver, CudaError,
    CudaHandle, CudaStreamHandle, KernelNotice, KernelRefusal, LayerEvents, LayerWait, Registration,
    StreamOrder, UnknownMethod,
};
#[cfg(feature = "test-hooks")]
pub use cuda::{CudaProbe, ProbeFunction, ProbeMemory};
pub use engine::{CopyDone, CopyEngine, CopyError, Refused, Waker};
#[cfg(feature = "fake")]
pub use fake::{FAKE_FAILURE_CODE, FakeCopy, FakePlan};
pub use fragment::{Fragment, Step};
#[cfg(feature = "test-hooks")]
pub use host::BeforeFragment;
pub use host::{HostCopy, HostCopyConfig, HostCopyError};
pub use job::{CopyDirection, CopyId, CopyJob, JobError, MAX_FRAGMENTS, PagePair};
pub use layout::{KvLayout, KvRegion, LayoutError, MAX_REGIONS};
pub use progress::{CopyFailure, CopyState, Progress, WaitOutcome};
