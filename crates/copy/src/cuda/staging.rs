//! The registered buffer through which unregistered host memory is copied.

use std::sync::Arc;

use orbitkv_shm::Segment;

use super::abi::DevicePtr;
use super::context::Context;
use super::error::CudaError;

/// Slots a lane has: while one is on the bus, the other is filled or emptied.
pub(super) const SLOTS: usize = 2;

/// Registered memory in slots of equal size.
#[derive(Debug)]
pub(super) struct Staging {
    memory: Registered,
    slot_bytes: usize,
    free: Vec<usize>,
}

/// A registered segment of our own.
#[derive(Debug)]
pub(super) struct Registered {
    context: Arc<Context>,
    segment: Segment,
}

impl Registered {
    pub(super) fn create(context: &Arc<Context>, bytes: usize) -> Result<Registered, CudaError> {
        let host = |error: orbitkv_shm::ShmError| CudaError::Host { reason: error.to_string() };
        let segment = Segment::create("orbitkv-staging", bytes).map_err(host)?;
        segment.populate(1).map_err(host)?;
        // SAFETY: mapped as long as the segment, which this value keeps until it has unregistered it.
        unsafe { context.register(segment.region().as_ptr(), bytes) }?;
        Ok(Registered { context: context.clone(), segment })
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.segment.region().as_ptr()
    }

    /// Where the device sees `start`.
    pub(super) fn device_start(&self) -> Result<DevicePtr, CudaError> {
        self.context.device_pointer(self.start())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // A failure means that the context is gone, and the registration with it.
        let _ = self.context.unregister(self.start());
    }
}

impl Staging {
    pub(super) fn create(context: &Arc<Context>, slot_bytes: usize) -> Result<Staging, CudaError> {
        let memory = Registered::create(context, SLOTS * slot_bytes)?;
        Ok(Staging { memory, slot_bytes, free: (0..SLOTS).collect() })
    }

    pub(super) fn take(&mut self) -> Option<usize> {
        self.free.pop()
    }

    pub(super) fn give_back(&mut self, slot: usize) {
        debug_assert!(slot < SLOTS && !self.free.contains(&slot), "slot {slot} comes back twice");
        self.free.push(slot);
    }

    /// First of the slot's bytes.
    pub(super) fn slot(&self, slot: usize) -> *mut u8 {
        self.memory.start().wrapping_add(slot * self.slot_bytes)
    }
}
