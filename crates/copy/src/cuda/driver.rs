//! The driver, loaded at run time, and what it hands out. Every call into it is in this file.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use super::abi::{self, CuResult, DevicePtr, Handle, MemcpyAttributes, Table};
use super::error::CudaError;

/// A stream of the serving engine (`CUstream`, `torch.cuda.Stream.cuda_stream`); 0 is the legacy default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaStreamHandle(pub usize);

/// Which form of the batch call a driver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchForm {
    /// `cuMemcpyBatchAsync` of CUDA 12.8 and 12.9, which takes nine arguments.
    Cuda12,
    /// `cuMemcpyBatchAsync_v2` of CUDA 13, which takes eight.
    Cuda13,
}

/// One contiguous copy between host and device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// The host's side; the source of a restore is only read.
    pub(super) host: *mut u8,
    /// The device's side.
    pub(super) device: DevicePtr,
    pub(super) bytes: usize,
}

// SAFETY: two addresses and a length, promised to `Fragment::new` for any thread of the engine.
unsafe impl Send for Piece {}

/// Copies of the same length at constant distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) first: Piece,
    pub(super) count: usize,
    pub(super) host_pitch: usize,
    pub(super) device_pitch: usize,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    ToDevice,
    ToHost,
}

/// `libcuda.so.1`, and which functions it has. Never unloaded: the driver starts threads of its own.
pub struct CudaDriver {
    table: Table,
    version: i32,
}

impl std::fmt::Debug for CudaDriver {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("CudaDriver").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Calls a function of the driver, or says that there is none. Expands to code that needs `unsafe`.
macro_rules! call {
    ($driver:expr, $field:ident, $name:literal $(, $argument:expr)*) => {
        match $driver.table.$field {
            Some(function) => check($name, function($($argument),*)),
            None => Err(CudaError::MissingSymbol { symbol: $name, version: $driver.version }),
        }
    };
}

fn check(call: &'static str, code: CuResult) -> Result<(), CudaError> {
    if code == abi::SUCCESS { Ok(()) } else { Err(CudaError::Call { call, code }) }
}

impl CudaDriver {
    /// Loads and initialises the driver of this host. Costs nothing where it is already loaded.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`] on a host without one, [`CudaError::MissingSymbol`] where it is too old.
    pub fn load() -> Result<Arc<CudaDriver>, CudaError> {
        CudaDriver::load_from(Path::new("libcuda.so.1"))
    }

    /// The same, from a given file.
    ///
    /// # Errors
    /// As [`CudaDriver::load`].
    pub fn load_from(library: &Path) -> Result<Arc<CudaDriver>, CudaError> {
        CudaDriver::resolve(library, &[])
    }

    /// The same, as if the driver lacked the symbols in `hidden`.
    ///
    /// # Errors
    /// As [`CudaDriver::load`].
    #[cfg(feature = "test-hooks")]
    pub fn load_without(library: &Path, hidden: &[&CStr]) -> Result<Arc<CudaDriver>, CudaError> {
        CudaDriver::resolve(library, hidden)
    }

    fn resolve(library: &Path, hidden: &[&CStr]) -> Result<Arc<CudaDriver>, CudaError> {
        let handle = open(library)?;
        let find = |symbol: &CStr| {
            if hidden.contains(&symbol) {
                return ptr::null_mut();
            }
            // SAFETY: `handle` is from `dlopen` and never closed; the name is a C string.
            unsafe { libc::dlsym(handle, symbol.as_ptr()) }
        };
        // SAFETY: `find` answers with what the driver exports under that name, and it is never unloaded.
        let table = unsafe { Table::resolve(&find) };
        let mut driver = CudaDriver { table, version: 0 };
        let mut version = 0;
        // SAFETY: `version` is a place for a number.
        unsafe { call!(driver, driver_get_version, "cuDriverGetVersion", &raw mut version) }?;
        driver.version = version;
        let missing = |(symbol, there): &(&CStr, bool)| !there && !abi::OPTIONAL.contains(symbol);
        if let Some((symbol, _)) = driver.table.symbols().find(missing) {
            return Err(CudaError::MissingSymbol { symbol: symbol.to_str().unwrap_or("?"), version });
        }
        // SAFETY: no pointers.
        unsafe { call!(driver, init, "cuInit", 0) }?;
        Ok(Arc::new(driver))
    }

    /// 1000 * major + 10 * minor of the newest CUDA the driver serves.
    #[must_use]
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The form of the batch call to use, if the driver has one.
    #[must_use]
    pub fn batch_form(&self) -> Option<BatchForm> {
        if self.table.copy_batch_13.is_some() {
            Some(BatchForm::Cuda13)
        } else {
            self.table.copy_batch_12.map(|_| BatchForm::Cuda12)
        }
    }

    pub(super) fn has_rows(&self) -> bool {
        self.table.copy_rows.is_some()
    }

    /// Keeps what this thread does out of the graph captures of others, until the guard is dropped.
    ///
    /// Serving engines capture graphs in the mode in which a call like `cuMemHostRegister` or `cuEventQuery` on any
    /// thread of the process spoils the capture, unless that thread has said that it is not concerned.
    pub(super) fn relax_captures(&self) -> Result<Relaxed<'_>, CudaError> {
        let mut mode = abi::CAPTURE_RELAXED;
        // SAFETY: a place for a number, which is exchanged for the mode before.
        unsafe { call!(self, exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", &raw mut mode) }?;
        Ok(Relaxed { driver: self, before: mode })
    }

    /// Number of devices that the process may see.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device_count(&self) -> Result<u32, CudaError> {
        let mut count = 0;
        // SAFETY: a place for a number.
        unsafe { call!(self, device_get_count, "cuDeviceGetCount", &raw mut count) }?;
        Ok(u32::try_from(count).unwrap_or(0))
    }
}

/// A thread that is not concerned by graph captures; puts back the mode before.
pub(super) struct Relaxed<'a> {
    driver: &'a CudaDriver,
    before: c_uint,
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        // SAFETY: as in `relax_captures`.
        let _ = unsafe {
            call!(
                self.driver,
                exchange_capture_mode,
                "cuThreadExchangeStreamCaptureMode",
                &raw mut self.before
            )
        };
    }
}

fn open(library: &Path) -> Result<*mut c_void, CudaError> {
    let no_driver = |reason: String| CudaError::NoDriver { library: library.display().to_string(), reason };
    let name = CString::new(library.as_os_str().as_bytes())
        .map_err(|_| no_driver("the name has a zero byte".to_owned()))?;
    // SAFETY: the name is a C string. Initialisers of the library run; it is the host's own driver.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: no demands; the answer is null or a C string that stays until the thread's next call of this family.
    let reason = unsafe { libc::dlerror() };
    let reason = if reason.is_null() {
        "no reason given".to_owned()
    } else {
        // SAFETY: not null, so a C string, copied before the next call.
        unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned()
    };
    Err(no_driver(reason))
}

/// The primary context of a device: the one that the serving engine's runtime uses as well.
#[derive(Debug)]
pub(super) struct Context {
    driver: Arc<CudaDriver>,
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

/// A stream of ours.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<Context>,
    raw: Handle,
}

// SAFETY: streams may be used from any thread of the process.
unsafe impl Send for Stream {}

impl Stream {
    /// `urgent` streams are served before others, the engine's own included.
    pub(super) fn create(context: &Arc<Context>, urgent: bool) -> Result<Stream, CudaError> {
        let _entered = context.enter()?;
        let driver = &context.driver;
        let (mut least, mut greatest, mut raw) = (0, 0, ptr::null_mut());
        // SAFETY: places for two numbers.
        unsafe {
            call!(
                driver,
                stream_priority_range,
                "cuCtxGetStreamPriorityRange",
                &raw mut least,
                &raw mut greatest
            )
        }?;
        let priority = if urgent { greatest } else { least };
        let flags = abi::STREAM_NON_BLOCKING;
        // SAFETY: a place for a handle.
        unsafe { call!(driver, stream_create, "cuStreamCreateWithPriority", &raw mut raw, flags, priority) }?;
        Ok(Stream { context: context.clone(), raw })
    }

    pub(super) fn handle(&self) -> CudaStreamHandle {
        CudaStreamHandle(self.raw.addr())
    }

    /// Queues one copy. The thread is in the context.
    ///
    /// # Safety
    /// Both sides stay valid, and the destination unused, until an event recorded after this call is complete.
    pub(super) unsafe fn copy(&self, way: Way, piece: Piece) -> Result<(), CudaError> {
        let Piece { host, device, bytes } = piece;
        let driver = &self.context.driver;
        // SAFETY: by the caller's promise.
        unsafe {
            match way {
                Way::ToDevice => {
                    call!(driver, copy_to_device, "cuMemcpyHtoDAsync", device, host.cast(), bytes, self.raw)
                }
                Way::ToHost => {
                    call!(driver, copy_to_host, "cuMemcpyDtoHAsync", host.cast(), device, bytes, self.raw)
                }
            }
        }
    }

    /// Queues a copy of rows. The thread is in the context.
    ///
    /// # Safety
    /// As for [`Stream::copy`], for every row.
    pub(super) unsafe fn copy_rows(&self, way: Way, rows: Rows) -> Result<(), CudaError> {
        let Rows { first, count, host_pitch, device_pitch } = rows;
        let to_device = way == Way::ToDevice;
        let side = |host: bool| if host { abi::MEMORY_HOST } else { abi::MEMORY_DEVICE };
        let pitch = |host: bool| if host { host_pitch } else { device_pitch };
        // The driver reads of each side only the field that its memory type names.
        let request = abi::Memcpy2d {
            src_x_bytes: 0,
            src_y: 0,
            src_memory_type: side(to_device),
            src_host: first.host.cast_const().cast(),
            src_device: first.device,
            src_array: ptr::null_mut(),
            src_pitch: pitch(to_device),
            dst_x_bytes: 0,
            dst_y: 0,
            dst_memory_type: side(!to_device),
            dst_host: first.host.cast(),
            dst_device: first.device,
            dst_array: ptr::null_mut(),
            dst_pitch: pitch(!to_device),
            width_bytes: first.bytes,
            height: count,
        };
        // SAFETY: by the caller's promise; the request is read before the call returns.
        unsafe { call!(self.context.driver, copy_rows, "cuMemcpy2DAsync", &raw const request, self.raw) }
    }

    /// Queues many copies with one call; they run in any order. The thread is in the context.
    ///
    /// # Safety
    /// As for [`Stream::copy`], for every piece.
    pub(super) unsafe fn copy_batch(&self, way: Way, pieces: &[Piece]) -> Result<(), CudaError> {
        let host: Vec<DevicePtr> = pieces.iter().map(|piece| piece.host.expose_provenance() as u64).collect();
        let device: Vec<DevicePtr> = pieces.iter().map(|piece| piece.device).collect();
        let sizes: Vec<usize> = pieces.iter().map(|piece| piece.bytes).collect();
        let (dst, src) = match way {
            Way::ToDevice => (device.as_ptr(), host.as_ptr()),
            Way::ToHost => (host.as_ptr(), device.as_ptr()),
        };
        let (sizes, count) = (sizes.as_ptr(), pieces.len());
        // One set of attributes, which holds from the first copy on.
        let attributes = MemcpyAttributes {
            source_access_order: abi::SOURCE_IN_STREAM_ORDER,
            ..MemcpyAttributes::default()
        };
        let (attributes, first, mut failed) = (&raw const attributes, 0_usize, 0_usize);
        let first = &raw const first;
        let driver = &self.context.driver;
        // SAFETY: arrays of `count` elements and one set of attributes that live until the call has returned, and
        // copies by the caller's promise.
        unsafe {
            match driver.batch_form() {
                Some(BatchForm::Cuda12) => {
                    let failed = &raw mut failed;
                    call!(
                        driver,
                        copy_batch_12,
                        "cuMemcpyBatchAsync",
                        dst,
                        src,
                        sizes,
                        count,
                        attributes,
                        first,
                        1,
                        failed,
                        self.raw
                    )
                }
                _ => call!(
                    driver,
                    copy_batch_13,
                    "cuMemcpyBatchAsync",
                    dst,
                    src,
                    sizes,
                    count,
                    attributes,
                    first,
                    1,
                    self.raw
                ),
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.is_gone() {
            return;
        }
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: created by this value; what is queued still runs.
            let _ = unsafe { call!(self.context.driver, stream_destroy, "cuStreamDestroy", self.raw) };
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

    /// Waits for it, without a limit.
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
