//! Device memory and plain copies beside an engine, for tests and measurements.

use std::ffi::CStr;
use std::sync::Arc;

use super::context::{Context, CudaStreamHandle, DeviceMemory, Event};
use super::driver::CudaDriver;
use super::error::CudaError;
use super::function::Function;
use super::stream::{Piece, Stream, Way};

/// A stream of its own in the device's primary context.
pub struct CudaProbe {
    context: Arc<Context>,
    stream: Stream,
    event: Event,
}

/// A function that runs on the device.
pub struct ProbeFunction(Function);

/// Device memory, freed with the last use.
pub struct ProbeMemory(DeviceMemory);

impl ProbeMemory {
    /// `CUdeviceptr` of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.start() as usize
    }
}

impl CudaProbe {
    /// A probe of device `ordinal`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(driver: &Arc<CudaDriver>, ordinal: u32) -> Result<CudaProbe, CudaError> {
        let context = Context::retain(driver, ordinal)?;
        let stream = Stream::create(&context, false)?;
        let event = Event::create(&context)?;
        Ok(CudaProbe { context, stream, event })
    }

    /// The stream, to stand in for one of a serving engine.
    #[must_use]
    pub fn stream(&self) -> CudaStreamHandle {
        self.stream.handle()
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn allocate(&self, bytes: usize) -> Result<ProbeMemory, CudaError> {
        DeviceMemory::allocate(&self.context, bytes).map(ProbeMemory)
    }

    /// Registers host memory with one call.
    ///
    /// # Safety
    /// `start` stays mapped for `bytes` until [`CudaProbe::unregister`].
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn register(&self, start: *mut u8, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.context.register(start, bytes) }
    }

    /// The reverse of [`CudaProbe::register`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn unregister(&self, start: *mut u8) -> Result<(), CudaError> {
        self.context.unregister(start)
    }

    /// Queues one plain copy to the device.
    ///
    /// # Safety
    /// Both sides are valid for `bytes`, and unused by others, until [`CudaProbe::finish`].
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn to_device(&self, host: *mut u8, device: usize, bytes: usize) -> Result<(), CudaError> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.stream.copy(Way::ToDevice, Piece { host, device: device as u64, bytes }) }
    }

    /// Queues one plain copy to the host.
    ///
    /// # Safety
    /// As for [`CudaProbe::to_device`].
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn to_host(&self, host: *mut u8, device: usize, bytes: usize) -> Result<(), CudaError> {
        let _entered = self.context.enter()?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.stream.copy(Way::ToHost, Piece { host, device: device as u64, bytes }) }
    }

    /// Has the driver compile the function `name` of some PTX.
    ///
    /// # Errors
    /// What the driver says.
    pub fn load(&self, source: &CStr, name: &CStr) -> Result<ProbeFunction, CudaError> {
        Function::load(&self.context, source, name).map(ProbeFunction)
    }

    /// Queues a function on `blocks` blocks of `threads` threads.
    ///
    /// # Safety
    /// It takes `arguments`, 8 bytes each, and what they name stays valid until [`CudaProbe::finish`].
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn launch(
        &self,
        function: &ProbeFunction,
        (blocks, threads): (u32, u32),
        arguments: &[u64],
    ) -> Result<(), CudaError> {
        let _entered = self.context.enter()?;
        let mut values = arguments.to_vec();
        let mut places: Vec<_> = values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        // SAFETY: the caller's promise is the same.
        unsafe { function.0.launch(self.stream.handle(), (blocks, threads), &mut places) }
    }

    /// Waits for everything on the stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn finish(&self) -> Result<(), CudaError> {
        let _entered = self.context.enter()?;
        self.context.record(&self.event, self.stream.handle())?;
        self.event.synchronize()
    }
}
