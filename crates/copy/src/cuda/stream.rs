//! Streams of ours, and what is queued on them.

use std::ptr;
use std::sync::Arc;

use super::abi::{self, DevicePtr, Handle, MemcpyAttributes};
use super::call::{call, check};
use super::context::{Context, CudaStreamHandle};
use super::driver::BatchForm;
use super::error::CudaError;

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
