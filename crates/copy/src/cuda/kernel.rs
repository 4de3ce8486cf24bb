//! The kernel that copies lists of fragments. Calls of the driver cost microseconds each, which small fragments do not
//! repay; a kernel takes thousands of them with one.

use std::ffi::{CStr, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use super::abi::{DevicePtr, Handle};
use super::call::{call, check};
use super::context::{Context, CudaStreamHandle};
use super::error::CudaError;

/// PTX, which the driver compiles for its device and keeps in its cache.
const SOURCE: &str = concat!(include_str!("copy_list.ptx"), "\0");
const NAME: &CStr = c"orbitkv_copy_list";

/// What a warp takes at a time; written in the source as well.
const SLICE_BYTES: usize = 4096;
/// Of a block, whose limit is written in the source. At 54 registers a thread it takes a fifth of a multiprocessor's.
const THREADS: c_uint = 256;

/// One fragment, as the kernel reads it. Aligned, so that an entry is one read over the bus.
#[repr(C, align(32))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) src: DevicePtr,
    pub(super) dst: DevicePtr,
    pub(super) bytes: u64,
    pub(super) unused: u64,
}

/// The kernel, compiled for a context.
#[derive(Debug)]
pub(super) struct Kernel {
    context: Arc<Context>,
    module: Handle,
    function: Handle,
    ctas: c_uint,
}

// SAFETY: modules and functions may be used from any thread of the process.
unsafe impl Send for Kernel {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Has the driver compile it. Takes tens of milliseconds at a host's first start.
    pub(super) fn load(context: &Arc<Context>, ctas: u32) -> Result<Kernel, CudaError> {
        let _entered = context.enter()?;
        let driver = &context.driver;
        let (mut module, no_options, no_values) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let source: *const c_void = SOURCE.as_ptr().cast();
        // SAFETY: a place for a handle, text with a zero at its end, and no options.
        unsafe {
            call!(
                driver,
                module_load,
                "cuModuleLoadDataEx",
                &raw mut module,
                source,
                0,
                no_options,
                no_values
            )
        }?;
        let mut kernel = Kernel { context: context.clone(), module, function: ptr::null_mut(), ctas };
        let function = &raw mut kernel.function;
        // SAFETY: a place for a handle, a module that the driver has just made, and a C string.
        unsafe { call!(driver, module_function, "cuModuleGetFunction", function, module, NAME.as_ptr()) }?;
        Ok(kernel)
    }

    /// Queues the copies of a list whose longest has `longest_bytes`. The thread is in the context.
    ///
    /// # Safety
    /// `list` is the device's address of `count` entries. They stay as they are, both sides of each stay valid, and
    /// destinations unused, until an event recorded after this call is complete.
    pub(super) unsafe fn launch(
        &self,
        stream: CudaStreamHandle,
        list: DevicePtr,
        count: usize,
        longest_bytes: usize,
    ) -> Result<(), CudaError> {
        // Neither comes near the type's end: lists have a limit, and no copy is longer than a registration.
        let number = |value: usize| c_uint::try_from(value).unwrap_or(c_uint::MAX);
        let (mut list, mut count) = (list, number(count));
        let mut slices = number(longest_bytes.div_ceil(SLICE_BYTES));
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut list).cast(), (&raw mut count).cast(), (&raw mut slices).cast()];
        let stream: Handle = ptr::without_provenance_mut(stream.0);
        let (arguments, no_extra) = (arguments.as_mut_ptr(), ptr::null_mut());
        // SAFETY: arguments of the sizes in the source, read before the call returns; the rest by the caller's promise.
        unsafe {
            call!(
                self.context.driver,
                launch_kernel,
                "cuLaunchKernel",
                self.function,
                self.ctas,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                arguments,
                no_extra
            )
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if self.context.is_gone() {
            return;
        }
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: loaded by this value; whoever launched it has seen its launches end.
            let _ = unsafe { call!(self.context.driver, module_unload, "cuModuleUnload", self.module) };
        }
    }
}
