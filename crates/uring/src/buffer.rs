//! Memory that a disk may own: a range of a pool segment, or bytes of its own.

use orbitkv_shm::{Region, ShmError};
use orbitkv_store::{BLOCK_BYTES, crc64};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use thiserror::Error;

/// Most bytes of one buffer: a segment is not larger.
const MAX_BYTES: usize = 1 << 30;

/// Memory that cannot be a buffer, or not be reached.
#[derive(Debug, Error)]
pub enum BufferError {
    /// Direct I/O needs both at 4 KiB.
    #[error(
        "a buffer of {bytes} bytes at {offset}: give a positive length and an offset that are multiples of 4096"
    )]
    Unaligned {
        /// Where it would begin.
        offset: usize,
        /// How long it would be.
        bytes: usize,
    },
    /// There is none for it.
    #[error("no memory for a buffer of {bytes} bytes: give at most 1 GiB, or free some")]
    NoMemory {
        /// How long it would be.
        bytes: usize,
    },
    /// Outside of the segment, or of the buffer.
    #[error(transparent)]
    Memory(#[from] ShmError),
}

/// Memory of one request: moved into the disk, and back with the completion.
///
/// It keeps what it lies in mapped. Its bytes are shared with the kernel while the disk has it, and a pool
/// segment's with other processes as well; who may write them is agreed outside.
#[derive(Debug)]
pub struct IoBuffer(Memory);

#[derive(Debug)]
enum Memory {
    Pool { region: Arc<Region>, offset: usize, bytes: usize },
    Heap(Heap),
}

/// Zeroed bytes at a multiple of 4 KiB.
#[derive(Debug)]
struct Heap {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation belongs to this value alone, and may be freed from any thread.
unsafe impl Send for Heap {}
// SAFETY: a `&Heap` gives its address only; bytes are reached through `IoBuffer`, which writes with `&mut self`.
unsafe impl Sync for Heap {}

impl Heap {
    fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, BLOCK_BYTES).ok().filter(|l| l.size() > 0)?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and given up with the only owner.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl IoBuffer {
    /// `bytes` at `offset` of a pool segment; both multiples of 4 KiB.
    ///
    /// # Errors
    /// [`BufferError::Unaligned`]; [`BufferError::Memory`] where they are not all inside, or may not be written.
    pub fn pool(region: &Arc<Region>, offset: usize, bytes: usize) -> Result<Self, BufferError> {
        check(offset, bytes)?;
        region.range_ptr(offset, bytes)?;
        if !region.is_writable() {
            return Err(ShmError::ReadOnly.into());
        }
        Ok(Self(Memory::Pool { region: Arc::clone(region), offset, bytes }))
    }

    /// Zeroed memory of its own, for pages that are moved and for scans: `bytes`, a multiple of 4 KiB.
    ///
    /// # Errors
    /// [`BufferError::Unaligned`]; [`BufferError::NoMemory`].
    pub fn heap(bytes: usize) -> Result<Self, BufferError> {
        check(0, bytes)?;
        let heap = Heap::new(bytes).ok_or(BufferError::NoMemory { bytes })?;
        Ok(Self(Memory::Heap(heap)))
    }

    /// Length in bytes; never zero.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Memory::Pool { bytes, .. } => *bytes,
            Memory::Heap(heap) => heap.layout.size(),
        }
    }

    /// Copies `out.len()` bytes at `offset` of the buffer.
    ///
    /// # Errors
    /// [`BufferError::Memory`] where they are not all inside.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), BufferError> {
        let from = self.range(offset, out.len())?;
        // SAFETY: `range` has checked that the bytes are inside of memory that `self` keeps; `out` is private
        // memory and cannot overlap. Whoever writes a pool page against its custody makes torn bytes, no more.
        unsafe { from.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `data` to `offset` of the buffer.
    ///
    /// # Errors
    /// [`BufferError::Memory`] where it is not all inside.
    pub fn write_at(&mut self, offset: usize, data: &[u8]) -> Result<(), BufferError> {
        let to = self.range(offset, data.len())?;
        // SAFETY: as in `read_at`; the memory is mapped writable, which `pool` has checked.
        unsafe { to.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }

    /// CRC-64/NVME of `len` bytes at `offset` of the buffer, without a copy. Call it while nobody may write them;
    /// otherwise it is of no page at all, which is what a checksum is for.
    ///
    /// # Errors
    /// [`BufferError::Memory`] where they are not all inside.
    pub fn crc64(&self, offset: usize, len: usize) -> Result<u64, BufferError> {
        let start = self.range(offset, len)?;
        // SAFETY: checked by `range` and kept by `self`. The slice does not leave this function, and the checksum
        // only loads from it: a writer that breaks custody changes the sum, nothing else.
        let bytes = unsafe { std::slice::from_raw_parts(start, len) };
        Ok(crc64(bytes))
    }

    /// Address of `len` bytes at `offset`, valid while `self` or what it lies in lives.
    fn range(&self, offset: usize, len: usize) -> Result<*mut u8, BufferError> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(ShmError::OutOfBounds { offset, len, bytes: self.len() }.into());
        }
        Ok(self.start().wrapping_add(offset))
    }

    /// Address of its first byte, valid while `self` or what it lies in lives.
    pub(crate) fn start(&self) -> *mut u8 {
        match &self.0 {
            // Inside, which `pool` has checked.
            Memory::Pool { region, offset, .. } => region.as_ptr().wrapping_add(*offset),
            Memory::Heap(heap) => heap.start.as_ptr(),
        }
    }

    /// The segment that it is a range of.
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        match &self.0 {
            Memory::Pool { region, .. } => Some(region),
            Memory::Heap(_) => None,
        }
    }
}

fn check(offset: usize, bytes: usize) -> Result<(), BufferError> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) || !offset.is_multiple_of(BLOCK_BYTES) {
        return Err(BufferError::Unaligned { offset, bytes });
    }
    if bytes > MAX_BYTES { Err(BufferError::NoMemory { bytes }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_shm::Segment;

    #[test]
    fn case_a45_what_is_not_aligned_or_not_inside_is_refused() {
        let segment = Segment::create("buffers", 16384).unwrap();
        let pool = |offset, bytes| IoBuffer::pool(segment.region(), offset, bytes);
        for (offset, bytes) in [(0, 0), (64, 4096), (512, 4096), (0, 100)] {
            let error = pool(offset, bytes).unwrap_err();
            assert!(matches!(error, BufferError::Unaligned { .. }), "{offset} {bytes}: {error}");
        }
        assert!(matches!(pool(12288, 8192).unwrap_err(), BufferError::Memory(_)));
        assert!(matches!(IoBuffer::heap(1 << 40).unwrap_err(), BufferError::NoMemory { .. }));
        assert!(IoBuffer::heap(0).is_err() && IoBuffer::heap(5000).is_err());
        assert_eq!(pool(4096, 12288).unwrap().len(), 12288);
    }

    #[test]
    fn both_kinds_hold_bytes_and_know_their_checksum() {
        let segment = Segment::create("buffers", 16384).unwrap();
        for mut buffer in
            [IoBuffer::pool(segment.region(), 4096, 8192).unwrap(), IoBuffer::heap(8192).unwrap()]
        {
            assert_eq!(buffer.start() as usize % 4096, 0);
            buffer.write_at(4090, b"over the edge").unwrap();
            let mut seen = [0; 13];
            buffer.read_at(4090, &mut seen).unwrap();
            assert_eq!(&seen, b"over the edge");
            assert_eq!(buffer.crc64(4090, 13).unwrap(), crc64(b"over the edge"));
            assert!(buffer.write_at(8190, b"too long").is_err() && buffer.read_at(8192, &mut [0]).is_err());
            assert!(buffer.crc64(usize::MAX, 2).is_err());
        }
        // In the segment at its place.
        let mut seen = [0; 4];
        segment.read_at(4096 + 4090, &mut seen).unwrap();
        assert_eq!(&seen, b"over");
    }

    #[test]
    fn a_range_keeps_its_segment_mapped() {
        let segment = Segment::create("buffers", 4096).unwrap();
        let mut buffer = IoBuffer::pool(segment.region(), 0, 4096).unwrap();
        drop(segment);
        buffer.write_at(0, b"still there").unwrap();
    }
}
