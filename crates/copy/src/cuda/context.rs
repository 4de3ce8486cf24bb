//! The device's context, and the events and memory in it.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;

use super::abi::{self, DevicePtr, Handle};
use super::call::{call, check};
use super::driver::CudaDriver;
use super::error::CudaError;

/// A stream of the serving engine (`CUstream`, `torch.cuda.Stream.cuda_stream`); 0 is the legacy default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaStreamHandle(pub usize);

/// The primary context of a device: the one that the serving engine's runtime uses as well.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) driver: Arc<CudaDriver>,
    device: c_int,
    raw: Handle,
}

// SAFETY: contexts may be used from any thread that makes them current; `raw` is an opaque handle.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn retain(driver: &Arc<CudaDriver>, ordinal: u32) -> Result<Arc<Context>, CudaError> {
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let (mut device, mut raw) = (0, ptr::null_mut());
        // SAFETY: a place for a number.
        unsafe { call!(driver, device_get, "cuDeviceGet", &raw mut device, number) }?;
        // SAFETY: a place for a handle, and a device that the driver has just named.
        unsafe { call!(driver, primary_ctx_retain, "cuDevicePrimaryCtxRetain", &raw mut raw, device) }?;
        Ok(Arc::new(Context { driver: driver.clone(), device, raw }))
    }

    pub(super) fn driver(&self) -> &CudaDriver {
        &self.driver
    }

    /// Makes the context current on this thread until the guard is dropped. Costs one look where it already is.
    pub(super) fn enter(&self) -> Result<Entered<'_>, CudaError> {
        let mut before = ptr::null_mut();
        // SAFETY: a place for a handle.
        unsafe { call!(self.driver, ctx_get_current, "cuCtxGetCurrent", &raw mut before) }?;
        let restore = before != self.raw;
        if restore {
            // SAFETY: retained by this value.
            unsafe { call!(self.driver, ctx_set_current, "cuCtxSetCurrent", self.raw) }?;
        }
        Ok(Entered { context: self, before, restore })
    }

    /// Whether the context was destroyed, by a reset of the device or at the end of the process: nothing that was
    /// queued on it moves a byte any more.
    pub(super) fn is_gone(&self) -> bool {
        let (mut flags, mut active): (c_uint, c_int) = (0, 0);
        // SAFETY: places for two numbers.
        let asked = unsafe {
            call!(
                self.driver,
                primary_ctx_get_state,
                "cuDevicePrimaryCtxGetState",
                self.device,
                &raw mut flags,
                &raw mut active
            )
        };
        match asked {
            Ok(()) => active == 0,
            Err(error) => matches!(error.code(), abi::DEINITIALIZED | abi::CONTEXT_IS_DESTROYED),
        }
    }

    /// Registers host memory for direct access by the device.
    ///
    /// # Safety
    /// `start` is mapped for `bytes` and stays so until [`Context::unregister`].
    pub(super) unsafe fn register(&self, start: *mut u8, bytes: usize) -> Result<(), CudaError> {
        let _entered = self.enter()?;
        let flags = abi::HOST_REGISTER_FLAGS;
        // SAFETY: mapped, by the caller's promise.
        unsafe { call!(self.driver, host_register, "cuMemHostRegister", start.cast(), bytes, flags) }
    }

    /// The reverse of [`Context::register`], for the same start. No copy may be under way there.
    pub(super) fn unregister(&self, start: *mut u8) -> Result<(), CudaError> {
        let _entered = self.enter()?;
        // SAFETY: an address that the driver looks up among its registrations.
        unsafe { call!(self.driver, host_unregister, "cuMemHostUnregister", start.cast()) }
    }

    /// The address under which the device reaches registered host memory.
    pub(super) fn device_pointer(&self, start: *mut u8) -> Result<DevicePtr, CudaError> {
        let _entered = self.enter()?;
        let mut device = 0;
        // SAFETY: a place for an address; the other one is looked up among the registrations.
        unsafe {
            call!(
                self.driver,
                host_device_pointer,
                "cuMemHostGetDevicePointer",
                &raw mut device,
                start.cast(),
                0
            )
        }?;
        Ok(device)
    }

    /// Orders all later work of `stream` after what was before `event`'s last record. Without a record it does
    /// nothing, and says so to nobody.
    pub(super) fn wait(&self, stream: CudaStreamHandle, event: &Event) -> Result<(), CudaError> {
        let _entered = self.enter()?;
        let stream = ptr::without_provenance_mut(stream.0);
        // SAFETY: the event lives; the stream is the caller's, who hands over live ones.
        unsafe { call!(self.driver, stream_wait_event, "cuStreamWaitEvent", stream, event.raw, 0) }
    }

    /// Records `event` after all work of `stream` so far.
    pub(super) fn record(&self, event: &Event, stream: CudaStreamHandle) -> Result<(), CudaError> {
        let _entered = self.enter()?;
        let stream = ptr::without_provenance_mut(stream.0);
        // SAFETY: as for `wait`.
        unsafe { call!(self.driver, event_record, "cuEventRecord", event.raw, stream) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Nothing can be done about a failure: the context is gone already.
        // SAFETY: retained once by this value.
        let _ = unsafe { call!(self.driver, primary_ctx_release, "cuDevicePrimaryCtxRelease", self.device) };
    }
}

/// A thread's stay in a context; puts back what was current before.
pub(super) struct Entered<'a> {
    context: &'a Context,
    before: Handle,
    restore: bool,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.restore {
            // SAFETY: it was current before, so it is null or a context that somebody else keeps.
            let _ = unsafe { call!(self.context.driver, ctx_set_current, "cuCtxSetCurrent", self.before) };
        }
    }
}

/// An event: a mark in a stream that the host and other streams can look at.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    raw: Handle,
}

// SAFETY: events may be used from any thread of the process.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn create(context: &Arc<Context>) -> Result<Event, CudaError> {
        let _entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: a place for a handle.
        unsafe {
            call!(context.driver, event_create, "cuEventCreate", &raw mut raw, abi::EVENT_DISABLE_TIMING)
        }?;
        Ok(Event { context: context.clone(), raw })
    }

    /// Whether everything before the last record has ended. True where nothing was ever recorded.
    pub(super) fn is_complete(&self) -> Result<bool, CudaError> {
        // SAFETY: the event lives.
        match unsafe { call!(self.context.driver, event_query, "cuEventQuery", self.raw) } {
            Ok(()) => Ok(true),
            Err(CudaError::Call { code: abi::NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits for it, without a limit. The engine itself never does.
    #[cfg(feature = "test-hooks")]
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the event lives.
        unsafe { call!(self.context.driver, event_synchronize, "cuEventSynchronize", self.raw) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // A destroyed context has taken its events with it, and their handles mean nothing any more.
        if self.context.is_gone() {
            return;
        }
        // SAFETY: created by this value.
        let _ = unsafe { call!(self.context.driver, event_destroy, "cuEventDestroy", self.raw) };
    }
}

/// Device memory of ours.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    context: Arc<Context>,
    start: DevicePtr,
}

impl DeviceMemory {
    pub(super) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<DeviceMemory, CudaError> {
        let _entered = context.enter()?;
        let mut start = 0;
        // SAFETY: a place for an address.
        unsafe { call!(context.driver, mem_alloc, "cuMemAlloc", &raw mut start, bytes) }?;
        Ok(DeviceMemory { context: context.clone(), start })
    }

    pub(super) fn start(&self) -> DevicePtr {
        self.start
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.context.is_gone() {
            return;
        }
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: allocated by this value; whoever used it has seen its copies end.
            let _ = unsafe { call!(self.context.driver, mem_free, "cuMemFree", self.start) };
        }
    }
}
