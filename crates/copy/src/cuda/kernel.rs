//! The kernel that copies lists of fragments. Calls of the driver cost microseconds each, which small fragments do not
//! repay; a kernel takes thousands of them with one.

use std::ffi::{CStr, c_uint, c_void};
use std::sync::Arc;

use super::abi::DevicePtr;
use super::context::{Context, CudaStreamHandle};
use super::error::CudaError;
use super::function::Function;

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
    function: Function,
    ctas: c_uint,
}

impl Kernel {
    pub(super) fn load(context: &Arc<Context>, ctas: u32) -> Result<Kernel, CudaError> {
        // The zero that ends the source is in it, so there is always text.
        let source = CStr::from_bytes_until_nul(SOURCE.as_bytes()).unwrap_or_default();
        Ok(Kernel { function: Function::load(context, source, NAME)?, ctas })
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
        // SAFETY: arguments of the sizes in the source; the rest by the caller's promise.
        unsafe { self.function.launch(stream, (self.ctas, THREADS), &mut arguments) }
    }
}
