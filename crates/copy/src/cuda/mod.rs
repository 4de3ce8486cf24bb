//! Copies between device memory and pool pages, through the CUDA driver.
//!
//! The driver is loaded when the first engine is made ([`CudaDriver::load`]); nothing here needs CUDA to build, and
//! nothing panics without a driver. The engine uses the primary context of its device, which is the one that the
//! serving engine's runtime uses, so it costs no device memory of its own.
//!
//! One thread owns two streams a direction, which take turns so that the serving engine's own copies get theirs, and
//! queues jobs on them one after the other. A step enters its job's gate before its first copy is queued and leaves it
//! when the event behind its last copy is complete: that event, or the end of the context, is the only evidence that
//! ends custody. A device that is lost fails every job at once for those who wait, and reports each only on that
//! evidence.
//!
//! Completed saves are in host memory when they are reported, so [`crate::page_crc64`] sums them on any thread.

mod abi;
mod active;
mod bus;
mod call;
mod choice;
mod config;
mod context;
mod driver;
mod error;
mod function;
mod kernel;
mod kernel_test;
mod lane;
mod layers;
mod lists;
mod order;
mod plan;
mod pool;
#[cfg(feature = "test-hooks")]
mod probe;
mod registry;
mod self_test;
mod staging;
mod stream;
mod turns;
mod worker;

use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use orbitkv_shm::Region;

use crate::engine::admit;
use crate::{CopyDirection, CopyDone, CopyEngine, CopyError, CopyJob, Refused};

use choice::Choice;
use context::Context;
use kernel::Kernel;
use lane::Lane;
use worker::{Shared, Worker};

pub use choice::{CopyMethod, UnknownMethod};
pub use config::{BatchNotice, CudaCopyConfig, KernelNotice};
pub use context::CudaStreamHandle;
pub use driver::{BatchForm, CudaDriver};
pub use error::CudaError;
pub use kernel_test::KernelRefusal;
pub(crate) use layers::Layers;
pub use layers::{LayerEvents, LayerWait};
pub use order::StreamOrder;
pub(crate) use pool::PooledEvent;
#[cfg(feature = "test-hooks")]
pub use probe::{CudaProbe, ProbeFunction, ProbeMemory};
pub use registry::Registration;
pub use self_test::BatchRefusal;

/// The engine for KV in device memory.
///
/// The layouts of its jobs name device addresses (`CUdeviceptr`), valid in the primary context of its device.
///
/// Dropping it aborts what is left and waits for copies under way, `drop_wait_ms` at most; what has not ended then, or
/// lies on a lost device, stays in custody for as long as the process lives.
pub struct CudaCopy {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
    registrar: Option<JoinHandle<()>>,
}

impl CudaCopy {
    /// Takes the device's primary context, tries the driver's batch call, and starts the threads.
    ///
    /// # Errors
    /// A setting that cannot work, a device that is not there, or limits of the host.
    pub fn new(driver: &Arc<CudaDriver>, config: CudaCopyConfig) -> Result<CudaCopy, CudaError> {
        config.check()?;
        let _relaxed = driver.relax_captures()?;
        let context = Context::retain(driver, config.device)?;
        let shared = Arc::new(Shared::new(context.clone(), config));
        let kernel = shared.allow_kernel();
        let choice = Choice::new(&shared.config, kernel.is_some(), shared.allow_batches(), driver.has_rows());
        let lane = |direction| Lane::create(&context, direction, &shared.config, kernel.as_ref());
        let lanes = [lane(CopyDirection::Restore)?, lane(CopyDirection::Save)?];
        let worker = Worker { shared: shared.clone(), lanes, choice };
        let mut engine = CudaCopy { shared: shared.clone(), worker: None, registrar: None };
        engine.worker = Some(spawn("orbitkv-cuda-copy", move || worker.run())?);
        engine.registrar = Some(spawn("orbitkv-cuda-pin", move || shared.registry.run())?);
        Ok(engine)
    }

    /// What other threads need of the engine.
    #[must_use]
    pub fn handle(&self) -> CudaHandle {
        CudaHandle { shared: self.shared.clone() }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, CudaError> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map_err(|error| CudaError::Host { reason: format!("no thread: {error}") })
}

impl Shared {
    /// Whether the batch call is wanted, is there, and works.
    fn allow_batches(&self) -> bool {
        let driver = self.context.driver();
        let tried = if !matches!(self.config.method, CopyMethod::Auto | CopyMethod::Batch) {
            Err(BatchRefusal::Configured)
        } else if driver.batch_form().is_none() {
            Err(BatchRefusal::Missing)
        } else {
            self_test::run(&self.context, self.config.batch_max_descriptors)
        };
        match tried {
            Ok(()) => true,
            Err(refusal) => {
                self.refuse_batches(&refusal);
                false
            }
        }
    }

    /// The kernel, if it is wanted and works.
    fn allow_kernel(&self) -> Option<Arc<Kernel>> {
        let tried = if !Choice::wants_kernel(&self.config) {
            Err(KernelRefusal::Configured)
        } else if !self.context.driver().has_kernels() {
            Err(KernelRefusal::Missing)
        } else {
            kernel_test::run(&self.context, self.config.kernel_ctas)
        };
        tried.inspect_err(|refusal| self.refuse_kernel(refusal)).ok()
    }
}

impl CopyEngine for CudaCopy {
    fn submit(&mut self, job: CopyJob) -> Result<(), Refused> {
        let mut queue = self.shared.lock();
        let admitted = if queue.lost {
            Err(CopyError::DeviceLost)
        } else {
            admit(job.id(), queue.held.iter().copied(), self.shared.config.max_jobs)
        };
        if let Err(error) = admitted {
            return Err(Refused { job, error });
        }
        queue.held.push(job.id());
        queue.incoming.push_back(job);
        drop(queue);
        self.shared.notify();
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<CopyDone>) {
        let mut queue = self.shared.lock();
        let done = std::mem::take(&mut queue.done);
        queue.held.retain(|held| !done.iter().any(|done| done.id == *held));
        out.extend(done);
    }
}

impl Drop for CudaCopy {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        queue.incoming.iter().for_each(|job| job.progress().request_abort());
        drop(queue);
        self.shared.notify();
        if let Some(worker) = self.worker.take() {
            // The worker catches its panics, so there is nothing to learn from its end.
            let _ = worker.join();
        }
        let _relaxed = self.shared.context.driver().relax_captures();
        self.shared.registry.close();
        if let Some(registrar) = self.registrar.take() {
            let _ = registrar.join();
        }
    }
}

/// What the threads of a serving engine need of a [`CudaCopy`] that another thread drives. Clones are the same.
#[derive(Clone)]
pub struct CudaHandle {
    shared: Arc<Shared>,
}

impl CudaHandle {
    /// Marks what is on `stream` now: jobs given the mark ([`CopyJob::after`]) come after it.
    ///
    /// Call it on the thread that feeds the stream, outside of graph captures. It costs one record.
    ///
    /// # Errors
    /// What the driver says. Without a mark the copy must not be submitted.
    pub fn order_after(&self, stream: CudaStreamHandle) -> Result<StreamOrder, CudaError> {
        StreamOrder::mark(&self.shared.pool, stream)
    }

    /// Gives `job` an event for each of its steps, for streams that wait for single layers.
    ///
    /// # Errors
    /// What the driver says; the job is then as it was, and can be waited for on the host.
    pub fn layer_events(&self, job: &mut CopyJob) -> Result<LayerEvents, CudaError> {
        let layers = Arc::new(Layers::new(&self.shared.pool, job.steps().len())?);
        job.set_layers(layers.clone());
        Ok(LayerEvents::new(layers, job.progress().clone()))
    }

    /// Registers a pool segment in the background, so that the device reaches it directly. A segment that is known
    /// is left as it is, and so is one beyond 4096 of them.
    pub fn register(&self, region: &Arc<Region>) {
        self.shared.registry.add(region);
    }

    /// Forgets a segment. It stays mapped and registered until the jobs that use it have ended, and can be registered
    /// again after that.
    pub fn unregister(&self, region: &Arc<Region>) {
        let _relaxed = self.shared.context.driver().relax_captures();
        self.shared.registry.remove(region);
    }

    /// How far registration has come.
    #[must_use]
    pub fn registration(&self) -> Registration {
        self.shared.registry.status()
    }

    /// Waits at most `timeout` until nothing waits for registration.
    #[must_use]
    pub fn wait_registered(&self, timeout: Duration) -> Registration {
        self.shared.registry.wait(timeout)
    }

    /// Why batches are not used; `None` while they are.
    #[must_use]
    pub fn batch_refusal(&self) -> Option<BatchRefusal> {
        self.shared.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the copy kernel is not used; `None` while it is.
    #[must_use]
    pub fn kernel_refusal(&self) -> Option<KernelRefusal> {
        self.shared.kernel_refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Which fragments are copied how, for a log: `below 16 KiB by a kernel, below 4 MiB in batches, others one by one`.
    #[must_use]
    pub fn method_by_size(&self) -> String {
        let rows = self.shared.context.driver().has_rows();
        let (kernel, batch) = (self.kernel_refusal().is_none(), self.batch_refusal().is_none());
        Choice::new(&self.shared.config, kernel, batch, rows).to_string()
    }

    /// Whether the device is lost. Nothing is taken any more then.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.shared.lock().lost
    }
}
