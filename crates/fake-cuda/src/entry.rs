//! The driver's entry points for contexts, streams, events and memory, under the driver's names.
//!
//! Their shapes are written down here a second time, from NVIDIA's documentation of the driver API and not from the
//! code under test: a slip in either shows in the tests.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{Device, HostSide, device};
use crate::event::Event;
use crate::stream::{Stream, Work};
use crate::{DEVICES, INVALID_VALUE};

const OUT_OF_MEMORY: c_int = 2;
const NOT_INITIALIZED: c_int = 3;
const INVALID_DEVICE: c_int = 101;
const INVALID_CONTEXT: c_int = 201;
const NOT_READY: c_int = 600;
const ALREADY_REGISTERED: c_int = 712;
const NOT_REGISTERED: c_int = 713;

static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// `CUcontext` of the thread.
    static CURRENT: Cell<*mut c_void> = const { Cell::new(ptr::null_mut()) };
    /// `CUstreamCaptureMode` of the thread; 0 is global, 2 is relaxed.
    static CAPTURE_MODE: Cell<c_uint> = const { Cell::new(0) };
}

/// Whether the thread's calls spoil the captures of others.
pub(crate) fn minds_captures() -> bool {
    CAPTURE_MODE.get() != 2
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> c_int {
    // SAFETY: the caller passes the address of a mode.
    match unsafe { mode.as_mut() } {
        Some(mode) if *mode <= 2 => {
            *mode = CAPTURE_MODE.replace(*mode);
            0
        }
        _ => INVALID_VALUE,
    }
}

/// Turns a function's outcome into a `CUresult`.
pub(crate) fn answer(outcome: Result<(), c_int>) -> c_int {
    outcome.err().unwrap_or(0)
}

/// The device behind a context. Contexts are made from devices that live for ever.
fn of_context(context: *mut c_void) -> Result<Arc<Device>, c_int> {
    let ordinal = context.addr().checked_sub(CONTEXT_BASE).ok_or(INVALID_CONTEXT)?;
    device(ordinal).ok_or(INVALID_CONTEXT)
}

/// Handles of contexts are numbers: nothing can be read through one.
const CONTEXT_BASE: usize = 0x1000;

fn context_of(device: &Device) -> *mut c_void {
    ptr::without_provenance_mut(CONTEXT_BASE + device.ordinal)
}

pub(crate) fn current() -> Result<Arc<Device>, c_int> {
    if !INITIALISED.load(Ordering::SeqCst) {
        return Err(NOT_INITIALIZED);
    }
    of_context(CURRENT.get())
}

/// The stream behind a handle. The default stream is not modelled.
pub(crate) fn stream<'a>(handle: *mut c_void) -> Result<&'a Stream, c_int> {
    if handle.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: handles come from `cuStreamCreateWithPriority`, and the caller has not destroyed this one.
    Ok(unsafe { &*handle.cast::<Stream>() })
}

fn event<'a>(handle: *mut c_void) -> Result<&'a Event, c_int> {
    if handle.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: handles come from `cuEventCreate`, and the caller has not destroyed this one.
    Ok(unsafe { &*handle.cast::<Event>() })
}

/// Writes an out parameter.
pub(crate) fn put<T>(out: *mut T, value: T) -> Result<(), c_int> {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller of the driver promises room for a value there.
    unsafe { out.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> c_int {
    INITIALISED.store(true, Ordering::SeqCst);
    if flags == 0 { 0 } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    answer(put(version, 13_000))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    answer(put(count, DEVICES as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(out: *mut c_int, ordinal: c_int) -> c_int {
    let known = usize::try_from(ordinal).is_ok_and(|ordinal| ordinal < DEVICES);
    answer(if known { put(out, ordinal) } else { Err(INVALID_DEVICE) })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(out: *mut *mut c_void, ordinal: c_int) -> c_int {
    answer((|| {
        let device = device(usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?).ok_or(INVALID_DEVICE)?;
        device.enter("cuDevicePrimaryCtxRetain")?.stats.context_references += 1;
        put(out, context_of(&device))
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) -> c_int {
    answer((|| {
        let device = device(usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?).ok_or(INVALID_DEVICE)?;
        let references = &mut device.lock().stats.context_references;
        *references = references.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        Ok(())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(ordinal: c_int, flags: *mut c_uint, active: *mut c_int) -> c_int {
    answer((|| {
        let device = device(usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?).ok_or(INVALID_DEVICE)?;
        put(flags, 0)?;
        put(active, c_int::from(!device.is_gone()))
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(out: *mut *mut c_void) -> c_int {
    answer(put(out, CURRENT.get()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> c_int {
    CURRENT.set(context);
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> c_int {
    answer(current().and_then(|_| put(least, 0)).and_then(|()| put(greatest, -5)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(out: *mut *mut c_void, flags: c_uint, priority: c_int) -> c_int {
    answer((|| {
        let device = current()?;
        device.enter("cuStreamCreateWithPriority")?.stats.streams += 1;
        // A blocking stream would wait for the legacy default stream, and an engine uses that one.
        if flags != 1 || !(-5..=0).contains(&priority) {
            return Err(INVALID_VALUE);
        }
        let stream = Stream::new(device).map_err(|_| OUT_OF_MEMORY)?;
        put(out, Box::into_raw(Box::new(stream)).cast())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(handle: *mut c_void) -> c_int {
    answer((|| {
        stream(handle)?.device.lock().stats.streams -= 1;
        // SAFETY: made by `Box::into_raw`, and the caller gives the handle up.
        drop(unsafe { Box::from_raw(handle.cast::<Stream>()) });
        Ok(())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: *mut c_void) -> c_int {
    answer((|| {
        let stream = stream(handle)?;
        drop(stream.device.enter("cuStreamSynchronize")?);
        stream.drain();
        Ok(())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(handle: *mut c_void, waited: *mut c_void, flags: c_uint) -> c_int {
    answer((|| {
        let (stream, event) = (stream(handle)?, event(waited)?);
        let mut state = stream.device.enter("cuStreamWaitEvent")?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        match event.latest() {
            Some((counts, recording)) => stream.push(Work::Wait(counts, recording)),
            None => state.stats.waits_without_record += 1,
        }
        Ok(())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(
    handle: *mut c_void,
    function: Option<extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> c_int {
    answer((|| {
        let stream = stream(handle)?;
        drop(stream.device.enter("cuLaunchHostFunc")?);
        stream.push(Work::Call(function.ok_or(INVALID_VALUE)?, argument.expose_provenance()));
        Ok(())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(out: *mut *mut c_void, _flags: c_uint) -> c_int {
    answer((|| {
        let device = current()?;
        device.enter("cuEventCreate")?.stats.events += 1;
        put(out, Box::into_raw(Box::new(Event::new(device))).cast())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(handle: *mut c_void) -> c_int {
    answer((|| {
        event(handle)?.device.lock().stats.events -= 1;
        // SAFETY: made by `Box::into_raw`, and the caller gives the handle up.
        drop(unsafe { Box::from_raw(handle.cast::<Event>()) });
        Ok(())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(recorded: *mut c_void, handle: *mut c_void) -> c_int {
    answer((|| {
        let (stream, event) = (stream(handle)?, event(recorded)?);
        let _state = stream.device.enter("cuEventRecord")?;
        let (counts, recording) = event.record();
        stream.push(Work::Record(counts, recording));
        Ok(())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(handle: *mut c_void) -> c_int {
    answer((|| {
        let event = event(handle)?;
        drop(event.device.enter("cuEventQuery")?);
        if event.is_complete() { Ok(()) } else { Err(NOT_READY) }
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(handle: *mut c_void) -> c_int {
    answer((|| {
        let event = event(handle)?;
        drop(event.device.enter("cuEventSynchronize")?);
        if let Some((counts, recording)) = event.latest() {
            counts.wait(recording, &|| event.device.is_gone());
        }
        Ok(())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(out: *mut u64, bytes: usize) -> c_int {
    answer((|| {
        let device = current()?;
        let mut state = device.enter("cuMemAlloc_v2")?;
        // SAFETY: the alignment is a power of two, and the size a multiple of it.
        let memory = unsafe { libc::aligned_alloc(4096, bytes.max(1).next_multiple_of(4096)) };
        if memory.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        let start = memory.expose_provenance();
        state.allocations.insert(start, bytes);
        state.stats.allocations += 1;
        put(out, start as u64)
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(start: u64) -> c_int {
    answer((|| {
        let device = current()?;
        let mut state = device.enter("cuMemFree_v2")?;
        state.allocations.remove(&(start as usize)).ok_or(INVALID_VALUE)?;
        state.stats.allocations -= 1;
        // SAFETY: allocated above, and freed once: it was in the map.
        unsafe { libc::free(ptr::with_exposed_provenance_mut(start as usize)) };
        Ok(())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(start: *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    answer((|| {
        let device = current()?;
        let mut state = device.enter("cuMemHostRegister_v2")?;
        if bytes == 0 || flags & !3 != 0 {
            return Err(INVALID_VALUE);
        }
        if state.host_side(start.addr(), bytes) != HostSide::Pageable {
            return Err(ALREADY_REGISTERED);
        }
        state.registered.insert(start.addr(), bytes);
        state.stats.registered_bytes += bytes as u64;
        state.stats.largest_registration = state.stats.largest_registration.max(bytes as u64);
        Ok(())
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(start: *mut c_void) -> c_int {
    answer((|| {
        let device = current()?;
        let mut state = device.enter("cuMemHostUnregister")?;
        let bytes = state.registered.remove(&start.addr()).ok_or(NOT_REGISTERED)?;
        state.stats.registered_bytes -= bytes as u64;
        Ok(())
    })())
}
