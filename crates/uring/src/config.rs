//! What a disk is opened with.

use crate::{IoBuffer, OpenError};
use orbitkv_store::{Priority, Request};
use std::time::Duration;

/// Which way pages go to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskEngine {
    /// io_uring where the kernel allows it, threads elsewhere; [`crate::DiskMode::why`] says why.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// Threads, io_uring or not.
    Threads,
}

/// Limits of one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Which way.
    pub engine: DiskEngine,
    /// Requests that the kernel has at once, 1 to 4096, of which background may be half. With threads, no more
    /// than [`DiskConfig::threads`].
    pub queue_depth: u32,
    /// Bytes of background requests that the kernel has at once; one more may be begun below that. A read that comes
    /// waits in the device behind them, so it is as slow as these bytes.
    pub max_background_bytes: u64,
    /// Requests that may be taken at once, waiting or not; more are [`orbitkv_store::DiskError::Busy`].
    pub max_requests: usize,
    /// Threads, 1 to 256, where there is no io_uring.
    pub threads: usize,
    /// Whether to go past the page cache where the file system allows it.
    pub direct: bool,
    /// Whether to register pool segments with the ring where the memory-lock limit allows it.
    pub register: bool,
    /// The most that one step asks of the kernel, a multiple of 4 KiB; longer requests take several steps.
    pub max_transfer_bytes: u32,
    /// How long a disk that is dropped waits for what the kernel has.
    pub drop_wait: Duration,
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self {
            engine: DiskEngine::Auto,
            queue_depth: 64,
            max_background_bytes: 16 << 20,
            max_requests: 1024,
            threads: 16,
            direct: true,
            register: true,
            max_transfer_bytes: 1 << 30,
            drop_wait: Duration::from_secs(10),
        }
    }
}

impl DiskConfig {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let refuse = |name, got: u64, fix| Err(OpenError::Config { name, got, fix });
        if !(1..=4096).contains(&self.queue_depth) {
            return refuse("queue_depth", self.queue_depth.into(), "give 1 to 4096");
        }
        if !(1..=1 << 20).contains(&self.max_requests) {
            return refuse("max_requests", self.max_requests as u64, "give 1 to 1048576");
        }
        if !(1..=256).contains(&self.threads) {
            return refuse("threads", self.threads as u64, "give 1 to 256");
        }
        let step = self.max_transfer_bytes;
        if step == 0 || !step.is_multiple_of(4096) || step > 1 << 30 {
            return refuse("max_transfer_bytes", step.into(), "give a multiple of 4096 up to 1 GiB");
        }
        Ok(())
    }

    /// What background may have of `depth` places.
    pub(crate) fn background_limit(&self, depth: usize) -> BackgroundLimit {
        BackgroundLimit { max_requests: (depth / 2).max(1), max_bytes: self.max_background_bytes }
    }
}

/// How much of the kernel's time may go to those whom nobody waits for: the rest is free for a read that comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackgroundLimit {
    max_requests: usize,
    max_bytes: u64,
}

/// What they have of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BackgroundUse {
    requests: usize,
    bytes: u64,
}

impl BackgroundUse {
    pub(crate) fn is_below(self, limit: BackgroundLimit) -> bool {
        self.requests == 0 || (self.requests < limit.max_requests && self.bytes < limit.max_bytes)
    }

    /// Counts a request that the kernel gets, if it is one of them.
    pub(crate) fn begin(&mut self, request: &Request<IoBuffer>) {
        if request.priority == Priority::Background {
            self.requests += 1;
            self.bytes += u64::from(request.bytes);
        }
    }

    /// Counts it no more.
    pub(crate) fn end(&mut self, request: &Request<IoBuffer>) {
        if request.priority == Priority::Background {
            self.requests -= 1;
            self.bytes -= u64::from(request.bytes);
        }
    }
}
