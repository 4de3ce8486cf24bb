//! The driver, loaded at run time.

use std::ffi::{CStr, CString, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use super::abi::{self, Table};
use super::call::{call, check};
use super::error::CudaError;

/// Which form of the batch call a driver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchForm {
    /// `cuMemcpyBatchAsync` of CUDA 12.8 and 12.9, which takes nine arguments.
    Cuda12,
    /// `cuMemcpyBatchAsync_v2` of CUDA 13, which takes eight.
    Cuda13,
}

/// `libcuda.so.1`, and which functions it has. Never unloaded: the driver starts threads of its own.
pub struct CudaDriver {
    pub(super) table: Table,
    pub(super) version: i32,
}

impl std::fmt::Debug for CudaDriver {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("CudaDriver").field("version", &self.version).finish_non_exhaustive()
    }
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

    /// Whether it has all that a kernel of ours needs.
    pub(super) fn has_kernels(&self) -> bool {
        let table = &self.table;
        let module =
            table.module_load.is_some() && table.module_function.is_some() && table.module_unload.is_some();
        module && table.launch_kernel.is_some() && table.host_device_pointer.is_some()
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
