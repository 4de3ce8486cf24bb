//! The driver's entry points for kernels. The one kernel that it can run is the one that copies lists: it is known by
//! its name, and does here what its source says.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use crate::device::{Device, HostSide, KernelFault, State};
use crate::entry::{answer, current, put, stream};
use crate::stream::{Move, Work, copy};
use crate::{ILLEGAL_ADDRESS, INVALID_VALUE};

const INVALID_PTX: c_int = 218;
const INVALID_HANDLE: c_int = 400;
const NOT_FOUND: c_int = 500;

const NAME: &CStr = c"orbitkv_copy_list";
/// Bytes that the kernel takes at a time, and the most threads of a block, by its source.
const SLICE_BYTES: u64 = 4096;
const MAX_THREADS: c_uint = 256;

/// What the device's address of registered memory has over the host's: a kernel given the host's touches nothing.
const HOST_ON_DEVICE: usize = 1 << 60;

/// `CUmodule` points to one of these, and `CUfunction` to its module.
struct Module {
    source: String,
}

/// A launch that waits for its turn.
pub(crate) struct Launch {
    list: usize,
    count: u32,
    slices: u32,
}

/// An entry of a list, by the kernel's source.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    src: u64,
    dst: u64,
    bytes: u64,
    unused: u64,
}

impl State {
    /// Where a kernel's access to `bytes` at `address` goes; `None` where it is the end of the context.
    fn reached(&self, address: u64, bytes: usize) -> Option<usize> {
        let address = usize::try_from(address).ok()?;
        match address.checked_sub(HOST_ON_DEVICE) {
            Some(host) => (self.host_side(host, bytes) == HostSide::Registered).then_some(host),
            None => self.is_device_memory(address, bytes).then_some(address),
        }
    }
}

impl Launch {
    /// Reads the list now, and copies what it says.
    pub(crate) fn run(self, device: &Device) {
        let Some(moves) = self.moves(device) else {
            device.lose(ILLEGAL_ADDRESS);
            return;
        };
        // Threads of a kernel run in any order, and hardly ever in that of the list.
        for row in moves.into_iter().rev() {
            let _moving = device.moving();
            if device.is_gone() {
                return;
            }
            copy(row);
            device.lock().stats.listed_copies += 1;
        }
    }

    fn moves(&self, device: &Device) -> Option<Vec<Move>> {
        let state = device.lock();
        let count = self.count as usize;
        let list = state.reached(self.list as u64, count * size_of::<Entry>())?;
        if !list.is_multiple_of(align_of::<[u64; 4]>()) {
            return None;
        }
        let overrun = usize::from(state.kernel_fault == KernelFault::Overruns);
        let mut moves = Vec::with_capacity(count);
        for index in 0..count {
            let list: *const Entry = ptr::with_exposed_provenance(list);
            // SAFETY: `count` entries of memory that is registered, hence mapped.
            let entry = unsafe { list.add(index).read_volatile() };
            // More slices than the launch says are not looked at.
            let bytes = entry.bytes.min(u64::from(self.slices) * SLICE_BYTES) as usize + overrun;
            let (src, dst) = (state.reached(entry.src, bytes)?, state.reached(entry.dst, bytes)?);
            moves.push(Move { src, dst, bytes });
        }
        if state.kernel_fault == KernelFault::Exchanges
            && let [first, second, ..] = &mut moves[..]
        {
            std::mem::swap(&mut first.dst, &mut second.dst);
        }
        Some(moves)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(out: *mut u64, host: *mut c_void, flags: c_uint) -> c_int {
    answer((|| {
        let device = current()?;
        let state = device.enter("cuMemHostGetDevicePointer_v2")?;
        if flags != 0 || state.host_side(host.addr(), 1) != HostSide::Registered {
            return Err(INVALID_VALUE);
        }
        put(out, (host.addr() + HOST_ON_DEVICE) as u64)
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    out: *mut *mut c_void,
    image: *const c_void,
    options: c_uint,
    _names: *mut c_int,
    _values: *mut *mut c_void,
) -> c_int {
    answer((|| {
        let device = current()?;
        let mut state = device.enter("cuModuleLoadDataEx")?;
        if image.is_null() || options != 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes PTX, which is a C string.
        let source = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| INVALID_PTX)?.to_owned();
        if ![".version ", ".target ", ".address_size 64"].iter().all(|needed| source.contains(needed)) {
            return Err(INVALID_PTX);
        }
        state.stats.modules += 1;
        put(out, Box::into_raw(Box::new(Module { source })).cast())
    })())
}

/// The module behind a handle of a module or a function.
fn module<'a>(handle: *mut c_void) -> Result<&'a Module, c_int> {
    if handle.is_null() {
        return Err(INVALID_HANDLE);
    }
    // SAFETY: handles come from `cuModuleLoadDataEx`, and the caller has not unloaded this one.
    Ok(unsafe { &*handle.cast::<Module>() })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(out: *mut *mut c_void, handle: *mut c_void, name: *const c_char) -> c_int {
    answer((|| {
        drop(current()?.enter("cuModuleGetFunction")?);
        // SAFETY: the caller passes a C string.
        let name = unsafe { CStr::from_ptr(name) };
        let entry = format!(".entry {}(", name.to_string_lossy());
        let known = name == NAME && module(handle)?.source.contains(&entry);
        if known { put(out, handle) } else { Err(NOT_FOUND) }
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(handle: *mut c_void) -> c_int {
    answer((|| {
        let device = current()?;
        let mut state = device.enter("cuModuleUnload")?;
        module(handle)?;
        state.stats.modules -= 1;
        // SAFETY: made by `Box::into_raw`, and the caller gives the handle up.
        drop(unsafe { Box::from_raw(handle.cast::<Module>()) });
        Ok(())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    handle: *mut c_void,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    answer((|| {
        let stream = stream(handle)?;
        let mut state = stream.device.enter("cuLaunchKernel")?;
        state.stats.launches += 1;
        module(function)?;
        let flat = [grid_y, grid_z, block_y, block_z] == [1; 4] && grid_x > 0 && shared_bytes == 0;
        let whole_warps = block_x > 0 && block_x <= MAX_THREADS && block_x.is_multiple_of(32);
        if !flat || !whole_warps || arguments.is_null() || !extra.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes the addresses of the kernel's three arguments.
        let (list, count, slices) = unsafe {
            (
                *arguments.read().cast::<u64>(),
                *arguments.add(1).read().cast::<u32>(),
                *arguments.add(2).read().cast::<u32>(),
            )
        };
        stream.push(Work::Kernel(Launch { list: list as usize, count, slices }));
        Ok(())
    })())
}
