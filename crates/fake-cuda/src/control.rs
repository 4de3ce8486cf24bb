//! How a test plans a fake device and looks at it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::device::{KernelFault, device};
use crate::plan::{FakeStats, Fault};

type PlanFn = extern "C" fn(usize, *const c_char, u64, u64) -> c_int;
type LaunchFn = extern "C" fn(*mut c_void, extern "C" fn(*mut c_void), *mut c_void) -> c_int;
type CurrentFn = extern "C" fn(*mut *mut c_void) -> c_int;
type StatsFn = extern "C" fn(usize, *mut FakeStats) -> c_int;

/// Plans device `ordinal`; what `verb` is called here is a method of [`FakeDevice`] too.
#[unsafe(no_mangle)]
extern "C" fn fakeCudaPlan(ordinal: usize, verb: *const c_char, first: u64, second: u64) -> c_int {
    let Some(device) = device(ordinal) else { return 1 };
    // SAFETY: `FakeDevice` passes a C string.
    let Ok(verb) = (unsafe { CStr::from_ptr(verb) }).to_str() else { return 1 };
    let code = i32::try_from(second).unwrap_or(1);
    match verb {
        "copy_us" => device.set_copy_us(first),
        "capturing" => device.set_capturing(first != 0),
        "exchange_in_batches" => device.lock().exchange_in_batches = true,
        "exchange_in_lists" => device.lock().kernel_fault = KernelFault::Exchanges,
        "overrun_in_lists" => device.lock().kernel_fault = KernelFault::Overruns,
        "any_memory" => device.lock().any_memory = true,
        "lose" => device.lose(code),
        "destroy" => device.destroy(),
        function => device.lock().faults.push(Fault { function: function.to_owned(), nth: first, code }),
    }
    0
}

/// Copies the counters of device `ordinal` to `out`.
#[unsafe(no_mangle)]
extern "C" fn fakeCudaStats(ordinal: usize, out: *mut FakeStats) -> c_int {
    let Some(device) = device(ordinal) else { return 1 };
    let stats = device.lock().stats;
    // SAFETY: `FakeDevice` passes the address of a value.
    unsafe { out.write(stats) };
    0
}

/// The loaded fake driver.
#[derive(Clone)]
pub struct Fake {
    path: PathBuf,
    plan: PlanFn,
    stats: StatsFn,
    launch: LaunchFn,
    current: CurrentFn,
}

/// One device of it, used by nobody else in the process.
#[derive(Clone)]
pub struct FakeDevice {
    fake: Arc<Fake>,
    /// The number for `cuDeviceGet`.
    pub ordinal: u32,
}

impl Fake {
    /// Loads the shared object that cargo built beside the running test program.
    ///
    /// # Errors
    /// A description of what is missing.
    pub fn load() -> Result<Arc<Fake>, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut folders = program.ancestors().skip(1).take(2);
        let path = folders
            .find_map(|folder| {
                let direct = folder.join("liborbitkv_fake_cuda.so");
                let built = folder.join("deps").join("liborbitkv_fake_cuda.so");
                [direct, built].into_iter().find(|path| path.is_file())
            })
            .ok_or_else(|| format!("liborbitkv_fake_cuda.so is not beside {}", program.display()))?;
        Fake::load_from(&path)
    }

    fn load_from(path: &Path) -> Result<Arc<Fake>, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: the object is ours; loading it runs no code with demands.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let find = |symbol: &CStr| {
            if library.is_null() {
                return Err(format!("{} cannot be loaded", path.display()));
            }
            // SAFETY: a handle from `dlopen` and a C string.
            let address = unsafe { libc::dlsym(library, symbol.as_ptr()) };
            if address.is_null() { Err(format!("{} lacks {symbol:?}", path.display())) } else { Ok(address) }
        };
        let (plan, stats) = (find(c"fakeCudaPlan")?, find(c"fakeCudaStats")?);
        let (launch, current) = (find(c"cuLaunchHostFunc")?, find(c"cuCtxGetCurrent")?);
        // SAFETY: the symbols are the functions above, from the same source.
        let (plan, stats, launch, current) = unsafe {
            (
                std::mem::transmute::<*mut c_void, PlanFn>(plan),
                std::mem::transmute::<*mut c_void, StatsFn>(stats),
                std::mem::transmute::<*mut c_void, LaunchFn>(launch),
                std::mem::transmute::<*mut c_void, CurrentFn>(current),
            )
        };
        Ok(Arc::new(Fake { path: path.to_owned(), plan, stats, launch, current }))
    }

    /// Whether the thread has a current context.
    #[must_use]
    pub fn has_current_context(&self) -> bool {
        let mut context = std::ptr::null_mut();
        (self.current)(&raw mut context);
        !context.is_null()
    }

    /// Where the shared object is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A device that no other test of the process has.
    #[must_use]
    pub fn device(self: &Arc<Self>) -> FakeDevice {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let ordinal = NEXT.fetch_add(1, Ordering::SeqCst) as u32;
        FakeDevice { fake: self.clone(), ordinal }
    }
}

impl FakeDevice {
    fn plan(&self, verb: &str, first: u64, second: i32) {
        let verb = CString::new(verb).unwrap_or_default();
        let code = u64::try_from(second).unwrap_or(1);
        let refused = (self.fake.plan)(self.ordinal as usize, verb.as_ptr(), first, code);
        assert!(refused == 0, "the fake host has no device {}", self.ordinal);
    }

    /// Each copy takes this long before its bytes move, in microseconds.
    pub fn set_copy_us(&self, us: u64) {
        self.plan("copy_us", us, 0);
    }

    /// Somebody captures a graph from now on, or no longer.
    pub fn set_capturing(&self, capturing: bool) {
        self.plan("capturing", u64::from(capturing), 0);
    }

    /// Batches deliver their first two copies to each other's destination from now on.
    pub fn exchange_in_batches(&self) {
        self.plan("exchange_in_batches", 0, 0);
    }

    /// Kernels deliver the first two copies of a list to each other's destination from now on.
    pub fn exchange_in_lists(&self) {
        self.plan("exchange_in_lists", 0, 0);
    }

    /// Kernels write one byte behind each copy of a list from now on.
    pub fn overrun_in_lists(&self) {
        self.plan("overrun_in_lists", 0, 0);
    }

    /// Any address counts as device memory from now on.
    pub fn take_any_memory(&self) {
        self.plan("any_memory", 0, 0);
    }

    /// The `nth` next call of `function` (1 is the next; both forms of the batch call are `cuMemcpyBatchAsync`)
    /// returns `code`. A code that is sticky on the driver loses the device.
    pub fn fail(&self, function: &str, nth: u64, code: i32) {
        self.plan(function, nth, code);
    }

    /// Every call fails with `code` from now on, while what was queued goes on moving bytes.
    pub fn lose(&self, code: i32) {
        self.plan("lose", 0, code);
    }

    /// Destroys the primary context: when this returns no byte moves any more.
    pub fn destroy_context(&self) {
        self.plan("destroy", 0, 0);
    }

    /// Runs `body` on `stream` (`CUstream`) in its turn, as a kernel would run: what is queued behind it waits.
    pub fn run_on(&self, stream: usize, body: impl FnOnce() + Send + 'static) {
        let body: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(body));
        let stream = std::ptr::with_exposed_provenance_mut(stream);
        let code = (self.fake.launch)(stream, call_body, Box::into_raw(body).cast());
        assert!(code == 0, "cuLaunchHostFunc reports {code}");
    }

    /// The counters now.
    #[must_use]
    pub fn stats(&self) -> FakeStats {
        let mut stats = FakeStats::default();
        (self.fake.stats)(self.ordinal as usize, &raw mut stats);
        stats
    }
}

extern "C" fn call_body(body: *mut c_void) {
    // SAFETY: `run_on` gave this box away, and the stream calls once.
    let body = unsafe { Box::from_raw(body.cast::<Box<dyn FnOnce() + Send>>()) };
    body();
}
