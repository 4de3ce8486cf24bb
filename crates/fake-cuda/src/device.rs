//! One device: its memory, its registrations, its faults.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use crate::DEVICES;
use crate::copies::Host;
use crate::copy_engine::CopyEngine;
use crate::entry::minds_captures;
use crate::plan::{FakeStats, Fault};

/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
const CONTEXT_IS_DESTROYED: i32 = 709;

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
const CAPTURE_UNSUPPORTED: i32 = 900;

/// Calls that NVIDIA's reference holds to be unsafe while a graph is captured.
const UNSAFE_IN_CAPTURES: [&str; 9] = [
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamSynchronize",
];

/// A device and its primary context. `CUcontext` points to one of these.
pub(crate) struct Device {
    pub(crate) ordinal: usize,
    pub(crate) state: Mutex<State>,
    /// The sticky error, or 0.
    lost: AtomicI32,
    gone: AtomicBool,
    copy_us: AtomicU64,
    /// Whether somebody captures a graph in the global mode.
    capturing: AtomicBool,
    /// To the device, and to the host.
    to_device: CopyEngine,
    to_host: CopyEngine,
    /// Held while a row moves; whoever destroys the context takes it alone.
    motion: RwLock<()>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) stats: FakeStats,
    pub(crate) faults: Vec<Fault>,
    /// Start and length of what is registered.
    pub(crate) registered: BTreeMap<usize, usize>,
    /// Start and length of each allocation.
    pub(crate) allocations: BTreeMap<usize, usize>,
    /// Whether batches exchange the destinations of their first two copies.
    pub(crate) exchange_in_batches: bool,
    /// What the kernel does wrong.
    pub(crate) kernel_fault: KernelFault,
    /// Whether any address counts as device memory.
    pub(crate) any_memory: bool,
}

/// A defect of the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum KernelFault {
    #[default]
    None,
    /// The first two copies of a list go to each other's destination.
    Exchanges,
    /// Each copy writes one byte behind its destination.
    Overruns,
}

/// Where the host side of a copy lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostSide {
    Registered,
    Pageable,
    /// Partly registered, or in two registrations.
    Torn,
}

/// The device of that number.
pub(crate) fn device(ordinal: usize) -> Option<Arc<Device>> {
    static ALL: OnceLock<Vec<Arc<Device>>> = OnceLock::new();
    ALL.get_or_init(|| (0..DEVICES).map(|ordinal| Arc::new(Device::new(ordinal))).collect())
        .get(ordinal)
        .cloned()
}

impl Device {
    fn new(ordinal: usize) -> Device {
        Device {
            ordinal,
            state: Mutex::new(State::default()),
            lost: AtomicI32::new(0),
            gone: AtomicBool::new(false),
            copy_us: AtomicU64::new(0),
            capturing: AtomicBool::new(false),
            to_device: CopyEngine::default(),
            to_host: CopyEngine::default(),
            motion: RwLock::new(()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What every call does first: the sticky error, or a planned one.
    pub(crate) fn enter(&self, function: &str) -> Result<MutexGuard<'_, State>, i32> {
        if self.is_gone() {
            return Err(CONTEXT_IS_DESTROYED);
        }
        let lost = self.lost.load(Ordering::SeqCst);
        if lost != 0 {
            return Err(lost);
        }
        let mut state = self.lock();
        if self.capturing.load(Ordering::SeqCst) && UNSAFE_IN_CAPTURES.contains(&function) && minds_captures()
        {
            state.stats.spoiled_captures += 1;
            return Err(CAPTURE_UNSUPPORTED);
        }
        let mut hit = None;
        state.faults.retain_mut(|fault| {
            if hit.is_none() && fault.function == function {
                fault.nth -= 1;
                if fault.nth == 0 {
                    hit = Some(fault.code);
                    return false;
                }
            }
            true
        });
        match hit {
            // Those of the driver that no later call recovers from.
            Some(code) if (700..=720).contains(&code) && code != 712 && code != 713 => {
                self.lose(code);
                Err(code)
            }
            Some(code) => Err(code),
            None => Ok(state),
        }
    }

    pub(crate) fn lose(&self, code: i32) {
        self.lost.store(code, Ordering::SeqCst);
    }

    /// Destroys the context: when this returns, no byte moves any more.
    pub(crate) fn destroy(&self) {
        self.gone.store(true, Ordering::SeqCst);
        drop(self.motion.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(crate) fn moving(&self) -> RwLockReadGuard<'_, ()> {
        self.motion.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine for copies whose host side is this.
    pub(crate) fn engine(&self, host: Host) -> &CopyEngine {
        match host {
            Host::Source => &self.to_device,
            Host::Destination => &self.to_host,
        }
    }

    pub(crate) fn set_capturing(&self, capturing: bool) {
        self.capturing.store(capturing, Ordering::SeqCst);
    }

    pub(crate) fn copy_us(&self) -> u64 {
        self.copy_us.load(Ordering::SeqCst)
    }

    pub(crate) fn set_copy_us(&self, us: u64) {
        self.copy_us.store(us, Ordering::SeqCst);
    }
}

impl State {
    pub(crate) fn host_side(&self, start: usize, bytes: usize) -> HostSide {
        let end = start + bytes;
        let before = self.registered.range(..end).next_back();
        match before {
            Some((base, len)) if *base <= start && end <= base + len => HostSide::Registered,
            Some((base, len)) if base + len > start => HostSide::Torn,
            _ => HostSide::Pageable,
        }
    }

    pub(crate) fn is_device_memory(&self, start: usize, bytes: usize) -> bool {
        self.any_memory
            || self
                .allocations
                .range(..=start)
                .next_back()
                .is_some_and(|(base, len)| start.checked_add(bytes).is_some_and(|end| end <= base + len))
    }
}
