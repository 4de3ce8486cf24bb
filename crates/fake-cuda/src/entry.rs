//! The driver's entry points, under the driver's names.
//!
//! Their shapes are written down here a second time, from NVIDIA's documentation of the driver API and not from the
//! code under test: a slip in either shows in the tests.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{Device, HostSide, State, device};
use crate::event::Event;
use crate::stream::{Move, Stream, Work, copy};
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
fn answer(outcome: Result<(), c_int>) -> c_int {
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

fn current() -> Result<Arc<Device>, c_int> {
    if !INITIALISED.load(Ordering::SeqCst) {
        return Err(NOT_INITIALIZED);
    }
    of_context(CURRENT.get())
}

/// The stream behind a handle. The default stream is not modelled.
fn stream<'a>(handle: *mut c_void) -> Result<&'a Stream, c_int> {
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
fn put<T>(out: *mut T, value: T) -> Result<(), c_int> {
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

/// Which side of a copy is the host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Host {
    Source,
    Destination,
}

/// Checks a copy as the driver does, and enqueues it or, where its host side is pageable, carries it out.
fn enqueue(
    stream: &Stream,
    mut state: std::sync::MutexGuard<'_, State>,
    host: Host,
    moves: Vec<Move>,
) -> Result<(), c_int> {
    let mut pageable = false;
    for row in &moves {
        let (host_start, device_start) = match host {
            Host::Source => (row.src, row.dst),
            Host::Destination => (row.dst, row.src),
        };
        match state.host_side(host_start, row.bytes) {
            HostSide::Torn => return Err(INVALID_VALUE),
            HostSide::Pageable => pageable = true,
            HostSide::Registered => {}
        }
        if !state.is_device_memory(device_start, row.bytes) {
            return Err(INVALID_VALUE);
        }
    }
    if pageable {
        state.stats.synchronous_copies += 1;
        drop(state);
        stream.drain();
        moves.into_iter().for_each(copy);
    } else {
        stream.push(Work::Copy(moves));
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(dst: u64, src: *const c_void, bytes: usize, handle: *mut c_void) -> c_int {
    answer((|| {
        let stream = stream(handle)?;
        let mut state = stream.device.enter("cuMemcpyHtoDAsync_v2")?;
        state.stats.plain_copies += 1;
        enqueue(
            stream,
            state,
            Host::Source,
            vec![Move { src: src.expose_provenance(), dst: dst as usize, bytes }],
        )
    })())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: u64, bytes: usize, handle: *mut c_void) -> c_int {
    answer((|| {
        let stream = stream(handle)?;
        let mut state = stream.device.enter("cuMemcpyDtoHAsync_v2")?;
        state.stats.plain_copies += 1;
        let row = Move { src: src as usize, dst: dst.expose_provenance(), bytes };
        enqueue(stream, state, Host::Destination, vec![row])
    })())
}

/// `CUDA_MEMCPY2D_v2`.
#[repr(C)]
struct Rows {
    src_x: usize,
    src_y: usize,
    src_type: c_uint,
    src_host: *const c_void,
    src_device: u64,
    src_array: *mut c_void,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_type: c_uint,
    dst_host: *mut c_void,
    dst_device: u64,
    dst_array: *mut c_void,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DAsync_v2(rows: *const c_void, handle: *mut c_void) -> c_int {
    answer((|| {
        let stream = stream(handle)?;
        let mut state = stream.device.enter("cuMemcpy2DAsync_v2")?;
        state.stats.row_copies += 1;
        // SAFETY: the caller passes a `CUDA_MEMCPY2D`.
        let rows = unsafe { &*rows.cast::<Rows>() };
        let offsets = [rows.src_x, rows.src_y, rows.dst_x, rows.dst_y];
        let longest = rows.src_pitch.max(rows.dst_pitch);
        if offsets != [0; 4] || rows.width > rows.src_pitch.min(rows.dst_pitch) || longest > i32::MAX as usize
        {
            return Err(INVALID_VALUE);
        }
        // CU_MEMORYTYPE_HOST is 1, CU_MEMORYTYPE_DEVICE is 2.
        let (host, src, dst) = match (rows.src_type, rows.dst_type) {
            (1, 2) => (Host::Source, rows.src_host.expose_provenance(), rows.dst_device as usize),
            (2, 1) => (Host::Destination, rows.src_device as usize, rows.dst_host.expose_provenance()),
            _ => return Err(INVALID_VALUE),
        };
        let moves = (0..rows.height).map(|row| Move {
            src: src + row * rows.src_pitch,
            dst: dst + row * rows.dst_pitch,
            bytes: rows.width,
        });
        enqueue(stream, state, host, moves.collect())
    })())
}

/// `CUmemcpyAttributes_v1`, whose locations are a type and an id each.
#[repr(C)]
struct Attributes {
    src_access_order: c_uint,
    src_location: [c_int; 2],
    dst_location: [c_int; 2],
    flags: c_uint,
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyBatchAsync_v2(
    dsts: *const u64,
    srcs: *const u64,
    sizes: *const usize,
    count: usize,
    attributes: *const c_void,
    first_of_each: *const usize,
    num_attributes: usize,
    handle: *mut c_void,
) -> c_int {
    answer((|| {
        // The default stream is refused here too: `stream` does not know it.
        let stream = stream(handle)?;
        let mut state = stream.device.enter("cuMemcpyBatchAsync")?;
        state.stats.batch_calls += 1;
        state.stats.largest_batch = state.stats.largest_batch.max(count as u64);
        if count == 0 || num_attributes != 1 || first_of_each.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passes one attribute and its first index, and `count` of everything else.
        let (attributes, first, dsts, srcs, sizes) = unsafe {
            (
                &*attributes.cast::<Attributes>(),
                *first_of_each,
                std::slice::from_raw_parts(dsts, count),
                std::slice::from_raw_parts(srcs, count),
                std::slice::from_raw_parts(sizes, count),
            )
        };
        let hints = [attributes.src_location, attributes.dst_location];
        // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM is 1: a save in any other order would read what is not yet computed.
        if first != 0 || attributes.src_access_order != 1 || hints != [[0; 2]; 2] || attributes.flags != 0 {
            return Err(INVALID_VALUE);
        }
        let moves: Vec<Move> = (dsts.iter().zip(srcs).zip(sizes))
            .map(|((dst, src), bytes)| Move { src: *src as usize, dst: *dst as usize, bytes: *bytes })
            .collect();
        // Pointers say by themselves which side is the host.
        let host = match moves.first() {
            Some(row) if state.host_side(row.src, row.bytes) == HostSide::Registered => Host::Source,
            _ => Host::Destination,
        };
        enqueue(stream, state, host, moves)
    })())
}

/// The form of CUDA 12.8 and 12.9.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyBatchAsync(
    dsts: *const u64,
    srcs: *const u64,
    sizes: *const usize,
    count: usize,
    attributes: *const c_void,
    first_of_each: *const usize,
    num_attributes: usize,
    failed: *mut usize,
    handle: *mut c_void,
) -> c_int {
    if failed.is_null() {
        return INVALID_VALUE;
    }
    cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attributes, first_of_each, num_attributes, handle)
}
