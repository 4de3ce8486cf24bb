//! The driver's entry points for copies.

use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use std::sync::MutexGuard;

use crate::INVALID_VALUE;
use crate::device::{HostSide, State};
use crate::entry::{answer, stream};
use crate::stream::{Move, Stream, Work, copy};

/// Which side of a copy is the host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Source,
    Destination,
}

/// Checks a copy as the driver does, and enqueues it or, where its host side is pageable, carries it out.
fn enqueue(
    stream: &Stream,
    mut state: MutexGuard<'_, State>,
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
        stream.push(Work::Copy(host, moves));
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
                slice::from_raw_parts(dsts, count),
                slice::from_raw_parts(srcs, count),
                slice::from_raw_parts(sizes, count),
            )
        };
        let hints = [attributes.src_location, attributes.dst_location];
        // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM is 1: a save in any other order would read what is not yet computed.
        if first != 0 || attributes.src_access_order != 1 || hints != [[0; 2]; 2] || attributes.flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mut moves: Vec<Move> = (dsts.iter().zip(srcs).zip(sizes))
            .map(|((dst, src), bytes)| Move { src: *src as usize, dst: *dst as usize, bytes: *bytes })
            .collect();
        if state.exchange_in_batches
            && let [first, second, ..] = &mut moves[..]
        {
            std::mem::swap(&mut first.dst, &mut second.dst);
        }
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
