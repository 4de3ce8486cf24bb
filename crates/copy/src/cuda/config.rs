//! How a CUDA engine is built.

use std::fmt;
use std::sync::Arc;

use super::choice::CopyMethod;
use super::error::CudaError;
use super::kernel_test::KernelRefusal;
use super::self_test::BatchRefusal;
use crate::Waker;

const MIB: usize = 1 << 20;

/// Called once, on the thread that makes the engine or on one of the engine's, when batches are not or no longer used.
pub type BatchNotice = Arc<dyn Fn(&BatchRefusal) + Send + Sync>;

/// The same of the copy kernel.
pub type KernelNotice = Arc<dyn Fn(&KernelRefusal) + Send + Sync>;

/// Settings of a [`super::CudaCopy`]: `CudaCopyConfig { max_jobs: 8, ..CudaCopyConfig::new(0) }`.
#[derive(Clone)]
pub struct CudaCopyConfig {
    /// Device as the process numbers them, after `CUDA_VISIBLE_DEVICES`.
    pub device: u32,
    /// Jobs held at most, from submission until polled.
    pub max_jobs: usize,
    /// Called after jobs have ended, and when the device is lost.
    pub waker: Option<Waker>,
    /// How fragments below `plain_min_bytes` are copied.
    pub method: CopyMethod,
    /// Copies in one batch call, 1 to 512: drivers have crashed with tens of thousands.
    pub batch_max_descriptors: usize,
    /// With [`CopyMethod::Auto`], smaller fragments in registered memory are copied by the kernel; 0 for none. On an
    /// idle H200 it is faster than batches at 16 KiB too, but beside work that keeps every multiprocessor busy it is
    /// slower there, and costs that work more.
    pub kernel_below_bytes: usize,
    /// The same where batches are not used. One by one, fragments of 64 KiB reach 0.3 of a plain copy's speed.
    pub kernel_unbatched_below_bytes: usize,
    /// Blocks of 256 threads that the kernel runs with, 1 to 64. 16 are enough for the bus (4 are not, and 32 are no
    /// faster), and leave 9 of 10 multiprocessors of an H200 alone.
    pub kernel_ctas: u32,
    /// From this size on a fragment is copied by a call of its own, which then costs less than it moves: on an H200
    /// fragments of 1 MiB reach 0.84 to 0.88 of a plain copy's speed so, and 0.96 to 0.98 in batches; of 4 MiB both
    /// are alike.
    pub plain_min_bytes: usize,
    /// Bytes queued on a stream at most when a further step is queued: what an abort may have to wait for.
    pub max_ahead_bytes: usize,
    /// Bytes restored on one stream before the other has its turn: how long the engine's own small copies may have to
    /// wait. On an H200 32 MiB take 0.6 ms, and cost a two-hundredth of the speed.
    pub restore_turn_bytes: usize,
    /// The same of saves. Nobody waits for a save, so their turns are shorter: 8 MiB take 0.2 ms, and cost a hundredth
    /// of the speed.
    pub save_turn_bytes: usize,
    /// Size of one of the four slots through which unregistered memory is copied; a multiple of 4 KiB.
    pub staging_slot_bytes: usize,
    /// What is registered with one call; a multiple of 4 KiB. The engine's own calls may have to wait that long.
    pub register_chunk_bytes: usize,
    /// How often completions are looked for while copies are under way.
    pub poll_us: u64,
    /// How long dropping the engine waits for copies under way. What has not ended then is never given back.
    pub drop_wait_ms: u64,
    /// Told why batches are not used.
    pub batch_notice: Option<BatchNotice>,
    /// Told why the kernel is not used.
    pub kernel_notice: Option<KernelNotice>,
    /// Called before each job's first copy is queued, while an abort still stops it whole.
    #[cfg(feature = "test-hooks")]
    pub before_fragment: Option<crate::BeforeFragment>,
}

impl fmt::Debug for CudaCopyConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("CudaCopyConfig").field("device", &self.device).finish_non_exhaustive()
    }
}

impl CudaCopyConfig {
    /// 64 jobs; the kernel below 16 KiB, batches of 512 below 4 MiB; 1 GiB ahead, in turns of 32 MiB for restores and
    /// 8 MiB for saves; slots of 2 MiB; chunks of 64 MiB.
    #[must_use]
    pub fn new(device: u32) -> CudaCopyConfig {
        CudaCopyConfig {
            device,
            max_jobs: 64,
            waker: None,
            method: CopyMethod::Auto,
            batch_max_descriptors: 512,
            kernel_below_bytes: 16 << 10,
            kernel_unbatched_below_bytes: 128 << 10,
            kernel_ctas: 16,
            plain_min_bytes: 4 * MIB,
            max_ahead_bytes: 1024 * MIB,
            restore_turn_bytes: 32 * MIB,
            save_turn_bytes: 8 * MIB,
            staging_slot_bytes: 2 * MIB,
            register_chunk_bytes: 64 * MIB,
            poll_us: 50,
            drop_wait_ms: 10_000,
            batch_notice: None,
            kernel_notice: None,
            #[cfg(feature = "test-hooks")]
            before_fragment: None,
        }
    }

    /// With turns of so many bytes in both directions.
    #[must_use]
    pub fn with_turns(self, bytes: usize) -> CudaCopyConfig {
        CudaCopyConfig { restore_turn_bytes: bytes, save_turn_bytes: bytes, ..self }
    }

    pub(super) fn check(&self) -> Result<(), CudaError> {
        let page = orbitkv_shm::PAGE_BYTES;
        let sizes = |bytes: usize| bytes > 0 && bytes.is_multiple_of(page) && bytes <= 256 * MIB;
        let wants_pages = "a multiple of 4096 up to 256 MiB";
        let rules = [
            ("max_jobs", self.max_jobs, self.max_jobs > 0, "at least 1"),
            (
                "batch_max_descriptors",
                self.batch_max_descriptors,
                (1..=512).contains(&self.batch_max_descriptors),
                "1 to 512",
            ),
            ("kernel_ctas", self.kernel_ctas as usize, (1..=64).contains(&self.kernel_ctas), "1 to 64"),
            ("max_ahead_bytes", self.max_ahead_bytes, self.max_ahead_bytes > 0, "at least 1"),
            ("restore_turn_bytes", self.restore_turn_bytes, self.restore_turn_bytes > 0, "at least 1"),
            ("save_turn_bytes", self.save_turn_bytes, self.save_turn_bytes > 0, "at least 1"),
            ("staging_slot_bytes", self.staging_slot_bytes, sizes(self.staging_slot_bytes), wants_pages),
            (
                "register_chunk_bytes",
                self.register_chunk_bytes,
                sizes(self.register_chunk_bytes),
                wants_pages,
            ),
        ];
        match rules.into_iter().find(|(_, _, fits, _)| !fits) {
            Some((field, value, _, wants)) => Err(CudaError::Config { field, value: value as u64, wants }),
            None => Ok(()),
        }
    }
}
