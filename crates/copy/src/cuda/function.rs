//! Functions that run on the device, compiled by the driver from PTX.

use std::ffi::{CStr, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use super::abi::Handle;
use super::call::{call, check};
use super::context::{Context, CudaStreamHandle};
use super::error::CudaError;

/// The only function of a module that is used; unloads its module with itself.
#[derive(Debug)]
pub(super) struct Function {
    context: Arc<Context>,
    module: Handle,
    raw: Handle,
}

// SAFETY: modules and functions may be used from any thread of the process.
unsafe impl Send for Function {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Function {}

impl Function {
    /// Has the driver compile `source` for its device. Takes tens of milliseconds at a host's first start; the driver
    /// keeps what it has compiled.
    pub(super) fn load(context: &Arc<Context>, source: &CStr, name: &CStr) -> Result<Function, CudaError> {
        let _entered = context.enter()?;
        let driver = &context.driver;
        let (mut module, no_options, no_values) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let source: *const c_void = source.as_ptr().cast();
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
        let mut function = Function { context: context.clone(), module, raw: ptr::null_mut() };
        let raw = &raw mut function.raw;
        // SAFETY: a place for a handle, a module that the driver has just made, and a C string.
        unsafe { call!(driver, module_function, "cuModuleGetFunction", raw, module, name.as_ptr()) }?;
        Ok(function)
    }

    /// Queues it on `blocks` blocks of `threads` threads. The thread is in the context.
    ///
    /// # Safety
    /// `arguments` point to values of the sizes that the source declares, and what these name stays valid until an
    /// event recorded after this call is complete.
    pub(super) unsafe fn launch(
        &self,
        stream: CudaStreamHandle,
        (blocks, threads): (c_uint, c_uint),
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let stream: Handle = ptr::without_provenance_mut(stream.0);
        let (arguments, no_extra) = (arguments.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the arguments are read before the call returns; the rest by the caller's promise.
        unsafe {
            call!(
                self.context.driver,
                launch_kernel,
                "cuLaunchKernel",
                self.raw,
                blocks,
                1,
                1,
                threads,
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

impl Drop for Function {
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
