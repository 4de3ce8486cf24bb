//! Where KV memory is, and what copies it.

use super::copier::MAX_RUNNING;
use crate::{ClientError, hooks};
use orbitkv_copy::{
    BatchRefusal, CopyEngine, CopyMethod, CudaCopy, CudaCopyConfig, CudaDriver, CudaError, CudaHandle,
    CudaStreamHandle, HostCopy, HostCopyConfig, KernelRefusal, KvLayout, Registration, StreamOrder,
    UnknownMethod, Waker,
};
use orbitkv_shm::Region;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Where the addresses of layouts point to.
#[derive(Clone, Default)]
pub enum Device {
    /// Memory of this process.
    #[default]
    Host,
    /// Memory of a CUDA device, in its primary context.
    Cuda(CudaDevice),
}

/// A CUDA device, and how copies from and to it are made.
#[derive(Clone)]
pub struct CudaDevice {
    driver: Arc<CudaDriver>,
    config: CudaCopyConfig,
}

impl Device {
    /// The device that the process numbers so; loads the driver.
    ///
    /// # Errors
    /// No driver on this host, or one that is too old. Whether there is such a device is seen when it is used.
    pub fn cuda(ordinal: u32) -> Result<Self, ClientError> {
        let driver = match hooks::switch(hooks::CUDA_DRIVER) {
            Some(path) => CudaDriver::load_from(Path::new(&path)),
            None => CudaDriver::load(),
        };
        let driver = driver.map_err(of_cuda)?;
        Ok(Self::Cuda(CudaDevice::new(&driver, CudaCopyConfig::new(ordinal))))
    }

    /// The same, with fragments copied by `method`: `auto`, `plain`, `rows`, `batch` or `kernel`. In host memory there is
    /// one way only.
    ///
    /// # Errors
    /// Another method.
    pub fn copied_by(mut self, method: &str) -> Result<Self, ClientError> {
        let method: CopyMethod =
            method.parse().map_err(|e: UnknownMethod| ClientError::Copy(e.to_string()))?;
        if let Self::Cuda(cuda) = &mut self {
            cuda.config.method = method;
        }
        Ok(self)
    }
}

impl CudaDevice {
    /// As `config` says, apart from its limit of jobs and its waker, which are the worker's.
    #[must_use]
    pub fn new(driver: &Arc<CudaDriver>, config: CudaCopyConfig) -> Self {
        Self { driver: Arc::clone(driver), config }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("cpu"),
            Self::Cuda(cuda) => write!(f, "cuda:{}", cuda.config.device),
        }
    }
}

impl FromStr for Device {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        if text == "cpu" {
            return Ok(Self::Host);
        }
        match text.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()) {
            Some(ordinal) => Self::cuda(ordinal),
            None => {
                let got: String = text.chars().take(80).collect();
                Err(ClientError::value(
                    "device",
                    format!("{got:?}"),
                    "cpu, or cuda:N with the device's number",
                ))
            }
        }
    }
}

/// An engine, and what other threads need of it where it is one of CUDA.
pub(super) struct Engine {
    pub(super) copies: Box<dyn CopyEngine>,
    pub(super) cuda: Option<Cuda>,
}

impl Engine {
    pub(super) fn new(device: &Device, copy_threads: usize, waker: Waker) -> Result<Self, ClientError> {
        let max_jobs = MAX_RUNNING * 2;
        match device {
            Device::Host => {
                let config =
                    HostCopyConfig { max_jobs, waker: Some(waker), ..HostCopyConfig::new(copy_threads) };
                let copies = HostCopy::new(config).map_err(|e| ClientError::Copy(e.to_string()))?;
                Ok(Self { copies: Box::new(copies), cuda: None })
            }
            Device::Cuda(CudaDevice { driver, config }) => {
                let config = CudaCopyConfig { max_jobs, waker: Some(waker), ..config.clone() };
                let copies = CudaCopy::new(driver, config).map_err(of_cuda)?;
                let cuda = Cuda::start(copies.handle())?;
                Ok(Self { copies: Box::new(copies), cuda: Some(cuda) })
            }
        }
    }

    /// An engine for single blocks of memory that no request uses: no batches to try, little memory to register.
    pub(super) fn for_blocks(device: &Device) -> Result<Box<dyn CopyEngine>, ClientError> {
        const SLOT_BYTES: usize = 256 << 10;
        match device {
            Device::Host => {
                let engine =
                    HostCopy::new(HostCopyConfig::new(1)).map_err(|e| ClientError::Copy(e.to_string()))?;
                Ok(Box::new(engine))
            }
            Device::Cuda(CudaDevice { driver, config }) => {
                let config = CudaCopyConfig {
                    method: CopyMethod::Plain,
                    staging_slot_bytes: SLOT_BYTES,
                    batch_notice: None,
                    kernel_notice: None,
                    ..config.clone()
                };
                Ok(Box::new(CudaCopy::new(driver, config).map_err(of_cuda)?))
            }
        }
    }
}

/// The parts of a CUDA engine that its own thread does not need.
pub(super) struct Cuda {
    pub(super) handle: CudaHandle,
    /// Segments whose registration is taken back: it takes milliseconds, for which nobody else should wait.
    gone: Sender<Arc<Region>>,
}

impl Cuda {
    fn start(handle: CudaHandle) -> Result<Self, ClientError> {
        let (gone, regions) = channel();
        let unpin = handle.clone();
        std::thread::Builder::new()
            .name("orbitkv-unpin".to_owned())
            .spawn(move || unregister(&unpin, &regions))
            .map_err(ClientError::system("cannot start a thread of the worker"))?;
        Ok(Self { handle, gone })
    }

    /// Marks what is on `stream` now.
    pub(super) fn mark(&self, stream: usize) -> Result<StreamOrder, ClientError> {
        self.handle.order_after(CudaStreamHandle(stream)).map_err(of_cuda)
    }

    pub(super) fn register(&self, region: &Arc<Region>) {
        self.handle.register(region);
    }

    /// Returns at once.
    pub(super) fn unregister(&self, region: Arc<Region>) {
        // Without the thread the engine is being dropped, and all registrations end.
        let _ = self.gone.send(region);
    }

    pub(super) fn registration(&self) -> Registration {
        self.handle.registration()
    }

    /// How the layout's blocks are copied.
    pub(super) fn method(&self, layout: &KvLayout) -> String {
        let sizes = layout.regions().iter().map(|region| region.block_bytes);
        let (smallest, largest) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        let bytes = if smallest == largest {
            size(smallest)
        } else {
            format!("{} to {}", size(smallest), size(largest))
        };
        let batches = self.handle.batch_refusal().filter(|refusal| *refusal != BatchRefusal::Configured);
        let kernel = self.handle.kernel_refusal().filter(|refusal| *refusal != KernelRefusal::Configured);
        let refused = [batches.map(|why| why.to_string()), kernel.map(|why| why.to_string())];
        let refused = refused.into_iter().flatten().map(|why| format!("; {why}")).collect::<String>();
        format!("blocks of {bytes} a layer, copied {}{refused}", self.handle.method_by_size())
    }

    /// What makes copies slower than they could be, or ends them.
    pub(super) fn trouble(&self) -> Option<String> {
        if self.handle.is_lost() {
            return Some(LOST.to_owned());
        }
        let failure = self.registration().failure?;
        Some(format!("pool memory is copied by way of a small buffer, as it cannot be registered: {failure}"))
    }
}

/// What is said of a device that is lost.
pub(super) const LOST: &str = "the copy device is lost: restart the serving engine";

fn unregister(handle: &CudaHandle, regions: &Receiver<Arc<Region>>) {
    while let Ok(region) = regions.recv() {
        handle.unregister(&region);
    }
}

#[allow(clippy::needless_pass_by_value)] // For `map_err`.
pub(super) fn of_cuda(error: CudaError) -> ClientError {
    ClientError::Copy(error.to_string())
}

fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}
