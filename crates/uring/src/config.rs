//! What a disk is opened with.

use crate::OpenError;
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
    /// Bytes of background requests that the kernel has at once; one more may be begun below that.
    pub max_background_bytes: u64,
    /// Background requests that the kernel has at once beside reads that somebody waits for, and shortly after
    /// them: a read is as slow as what is in the device before it. Zero counts as one: nothing is starved.
    pub background_beside_reads: usize,
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
    /// The same for background requests, where it is less: a read that somebody waits for is behind one such step at
    /// most, and not behind a whole page.
    pub max_background_transfer_bytes: u32,
    /// How long a page may take in the self-test.
    pub self_test_wait: Duration,
    /// How long a disk that is dropped waits for what the kernel has.
    pub drop_wait: Duration,
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self {
            engine: DiskEngine::Auto,
            queue_depth: 64,
            max_background_bytes: 16 << 20,
            background_beside_reads: 1,
            max_requests: 1024,
            threads: 16,
            direct: true,
            register: true,
            max_transfer_bytes: 1 << 30,
            max_background_transfer_bytes: 256 << 10,
            self_test_wait: Duration::from_secs(10),
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
        for (name, step) in [
            ("max_transfer_bytes", self.max_transfer_bytes),
            ("max_background_transfer_bytes", self.max_background_transfer_bytes),
        ] {
            if step == 0 || !step.is_multiple_of(4096) || step > 1 << 30 {
                return refuse(name, step.into(), "give a multiple of 4096 up to 1 GiB");
            }
        }
        Ok(())
    }
}
