//! The part of the CUDA driver's binary interface that is used, after NVIDIA's reference of the driver API.
//!
//! Each name is the versioned symbol that the library exports, so one table serves drivers of CUDA 12 and 13. A symbol
//! that a driver lacks is `None`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `CUresult`; 0 is success.
pub(super) type CuResult = c_int;
/// `CUdeviceptr`.
pub(super) type DevicePtr = u64;
/// `CUcontext`, `CUstream`, `CUevent`, `CUmodule`, `CUfunction`: handles that only the driver looks behind.
pub(super) type Handle = *mut c_void;

pub(super) const SUCCESS: CuResult = 0;
pub(super) const DEINITIALIZED: CuResult = 4;
pub(super) const CONTEXT_IS_DESTROYED: CuResult = 709;
pub(super) const NOT_READY: CuResult = 600;

/// `CU_STREAM_NON_BLOCKING`: not ordered with the legacy default stream, which serving engines use.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`: such events are the cheapest to record and to wait for.
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
pub(super) const HOST_REGISTER_FLAGS: c_uint = 3;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(super) const CAPTURE_RELAXED: c_uint = 2;
/// `CU_MEMORYTYPE_HOST`.
pub(super) const MEMORY_HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`.
pub(super) const MEMORY_DEVICE: c_uint = 2;
/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`: sources are read in the order of the stream, not when the driver likes.
pub(super) const SOURCE_IN_STREAM_ORDER: c_uint = 1;

/// `CUmemLocation`: a type and an id. Zeros are "no hint".
#[repr(C)]
#[derive(Default)]
pub(super) struct MemLocation {
    kind: c_uint,
    id: c_int,
}

/// `CUmemcpyAttributes_v1`: how the copies of a batch may be carried out.
#[repr(C)]
#[derive(Default)]
pub(super) struct MemcpyAttributes {
    pub(super) source_access_order: c_uint,
    pub(super) source_location: MemLocation,
    pub(super) destination_location: MemLocation,
    pub(super) flags: c_uint,
}

/// `CUDA_MEMCPY2D_v2`: `height` rows of `width_bytes`, `pitch` bytes apart on either side.
#[repr(C)]
pub(super) struct Memcpy2d {
    pub(super) src_x_bytes: usize,
    pub(super) src_y: usize,
    pub(super) src_memory_type: c_uint,
    pub(super) src_host: *const c_void,
    pub(super) src_device: DevicePtr,
    pub(super) src_array: Handle,
    pub(super) src_pitch: usize,
    pub(super) dst_x_bytes: usize,
    pub(super) dst_y: usize,
    pub(super) dst_memory_type: c_uint,
    pub(super) dst_host: *mut c_void,
    pub(super) dst_device: DevicePtr,
    pub(super) dst_array: Handle,
    pub(super) dst_pitch: usize,
    pub(super) width_bytes: usize,
    pub(super) height: usize,
}

// The sizes that C compilers give them on the 64-bit targets that have a driver.
const _: () = assert!(size_of::<MemcpyAttributes>() == 24 && size_of::<Memcpy2d>() == 128);

/// What an engine does without where it must: a newer driver only makes it faster.
pub(super) const OPTIONAL: [&CStr; 8] = [
    c"cuMemcpy2DAsync_v2",
    c"cuMemcpyBatchAsync",
    c"cuMemcpyBatchAsync_v2",
    c"cuMemHostGetDevicePointer_v2",
    c"cuModuleLoadDataEx",
    c"cuModuleGetFunction",
    c"cuModuleUnload",
    c"cuLaunchKernel",
];

macro_rules! symbols {
    ($($field:ident = $symbol:literal($($argument:ty),*);)*) => {
        /// What a driver exports.
        pub(super) struct Table {
            $(pub(super) $field: Option<unsafe extern "C" fn($($argument),*) -> CuResult>,)*
        }

        impl Table {
            /// Looks every symbol up; a null address is a symbol that is not there.
            ///
            /// # Safety
            /// `find` returns null, or the driver's function of that name, which stays loaded for ever.
            pub(super) unsafe fn resolve(find: &dyn Fn(&CStr) -> *mut c_void) -> Table {
                Table {
                    // SAFETY: null is `None`; any other address is, by the caller's promise, the driver's function
                    // of that name, and its shape is the one that the reference gives.
                    $($field: unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn($($argument),*) -> CuResult>,
                        >(find($symbol))
                    },)*
                }
            }

            /// Every symbol, and whether the driver has it.
            pub(super) fn symbols(&self) -> impl Iterator<Item = (&'static CStr, bool)> {
                [$(($symbol, self.$field.is_some())),*].into_iter()
            }
        }
    };
}

symbols! {
    init = c"cuInit"(c_uint);
    driver_get_version = c"cuDriverGetVersion"(*mut c_int);
    device_get_count = c"cuDeviceGetCount"(*mut c_int);
    device_get = c"cuDeviceGet"(*mut c_int, c_int);
    primary_ctx_retain = c"cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    primary_ctx_release = c"cuDevicePrimaryCtxRelease_v2"(c_int);
    primary_ctx_get_state = c"cuDevicePrimaryCtxGetState"(c_int, *mut c_uint, *mut c_int);
    exchange_capture_mode = c"cuThreadExchangeStreamCaptureMode"(*mut c_uint);
    ctx_get_current = c"cuCtxGetCurrent"(*mut Handle);
    ctx_set_current = c"cuCtxSetCurrent"(Handle);
    stream_priority_range = c"cuCtxGetStreamPriorityRange"(*mut c_int, *mut c_int);
    stream_create = c"cuStreamCreateWithPriority"(*mut Handle, c_uint, c_int);
    stream_destroy = c"cuStreamDestroy_v2"(Handle);
    stream_wait_event = c"cuStreamWaitEvent"(Handle, Handle, c_uint);
    event_create = c"cuEventCreate"(*mut Handle, c_uint);
    event_destroy = c"cuEventDestroy_v2"(Handle);
    event_record = c"cuEventRecord"(Handle, Handle);
    event_query = c"cuEventQuery"(Handle);
    event_synchronize = c"cuEventSynchronize"(Handle);
    mem_alloc = c"cuMemAlloc_v2"(*mut DevicePtr, usize);
    mem_free = c"cuMemFree_v2"(DevicePtr);
    host_register = c"cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    host_unregister = c"cuMemHostUnregister"(*mut c_void);
    copy_to_device = c"cuMemcpyHtoDAsync_v2"(DevicePtr, *const c_void, usize, Handle);
    copy_to_host = c"cuMemcpyDtoHAsync_v2"(*mut c_void, DevicePtr, usize, Handle);
    copy_rows = c"cuMemcpy2DAsync_v2"(*const Memcpy2d, Handle);
    // Destinations, sources, sizes, their number; attributes, the first copy of each, their number. The form of CUDA
    // 12.8 also says which copy failed; that of CUDA 13 does not.
    copy_batch_12 = c"cuMemcpyBatchAsync"(
        *const DevicePtr, *const DevicePtr, *const usize, usize,
        *const MemcpyAttributes, *const usize, usize, *mut usize, Handle
    );
    copy_batch_13 = c"cuMemcpyBatchAsync_v2"(
        *const DevicePtr, *const DevicePtr, *const usize, usize,
        *const MemcpyAttributes, *const usize, usize, Handle
    );
    host_device_pointer = c"cuMemHostGetDevicePointer_v2"(*mut DevicePtr, *mut c_void, c_uint);
    // Options of the compiler: their number, names and values.
    module_load = c"cuModuleLoadDataEx"(*mut Handle, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    module_function = c"cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    module_unload = c"cuModuleUnload"(Handle);
    // The function; the grid, then the block, in x, y and z; shared memory; the stream; addresses of the arguments.
    launch_kernel = c"cuLaunchKernel"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void
    );
}
