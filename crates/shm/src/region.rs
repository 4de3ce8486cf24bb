//! One mapped range of shared memory, with checked access to its bytes.

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::ShmError;
use crate::place::{HUGE_PAGE_BYTES, Place};

/// A mapped segment: the memory behind a [`crate::Segment`] and a [`crate::Mapping`]. Unmapped on drop.
///
/// Other processes read and write the same bytes. Nothing here orders those accesses: who may touch which range is
/// agreed outside, and a reader that breaks the agreement gets torn bytes, never an access outside the map.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: the map belongs to this value alone, is valid in every thread, and is only unmapped by `Drop`.
unsafe impl Send for Region {}
// SAFETY: all access goes through raw pointers into shared memory; a `&Region` hands out no reference to the bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the first `bytes` of `fd`, shared. The caller has checked that the file has that size and keeps it.
    pub(crate) fn map(fd: BorrowedFd<'_>, bytes: usize, writable: bool) -> Result<Region, ShmError> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let failed = |source| ShmError::from_call("mmap", bytes, source);
        let base = if bytes < HUGE_PAGE_BYTES {
            // SAFETY: no address is asked for, so the kernel picks a free range and no existing map is replaced.
            unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0) }
                .map_err(failed)?
                .cast()
        } else {
            let place = Place::reserve(bytes).map_err(failed)?;
            let base = place.base();
            // SAFETY: the range is a part of the reservation, which nobody else knows of, so the map replaces
            // nothing but that.
            unsafe { mmap(base.cast(), bytes, protection, MapFlags::SHARED | MapFlags::FIXED, fd, 0) }
                .map_err(failed)?;
            place.taken();
            base
        };
        let base =
            NonNull::new(base).ok_or(ShmError::Syscall { call: "mmap", source: rustix::io::Errno::FAULT })?;
        let region = Region { base, bytes, writable };
        // Best effort: a kernel without huge pages for shared memory serves 4 KiB pages, which are correct as well.
        let _ = region.advise(Advice::LinuxHugepage);
        Ok(region)
    }

    /// Advises the kernel about the whole map.
    pub(crate) fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        debug_assert!(
            matches!(advice, Advice::LinuxHugepage | Advice::LinuxDontFork),
            "an advice that discards content must not come through here"
        );
        // SAFETY: the range is exactly this map, and neither advice changes its content.
        unsafe { madvise(self.base.as_ptr().cast(), self.bytes, advice) }
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of the first byte; valid for [`Region::bytes`] while this value lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Whether this map may be written through.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Address of `len` bytes at `offset`; [`ShmError::OutOfBounds`] where they are not all inside.
    pub fn range_ptr(&self, offset: usize, len: usize) -> Result<*mut u8, ShmError> {
        match offset.checked_add(len) {
            // SAFETY: `offset <= end <= bytes`, so the address is inside the map or one past its end.
            Some(end) if end <= self.bytes => Ok(unsafe { self.base.as_ptr().add(offset) }),
            _ => Err(ShmError::OutOfBounds { offset, len, bytes: self.bytes }),
        }
    }

    /// Copies `out.len()` bytes at `offset` into `out`.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), ShmError> {
        let source = self.range_ptr(offset, out.len())?;
        // SAFETY: `source` is valid for `out.len()` bytes (checked), and `out` is private memory, so they cannot
        // overlap. Another process may write the range meanwhile; the bytes are then torn, as documented above.
        unsafe { ptr::copy_nonoverlapping(source, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies `data` to `offset`; [`ShmError::ReadOnly`] on a read-only map.
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<(), ShmError> {
        if !self.writable {
            return Err(ShmError::ReadOnly);
        }
        let target = self.range_ptr(offset, data.len())?;
        // SAFETY: `target` is valid for `data.len()` bytes (checked) and mapped writable, and `data` is private
        // memory, so they cannot overlap.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), target, data.len()) };
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this value owns the map, and nothing uses it after drop: users of its addresses hold the value.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "munmap of an own map cannot fail: {result:?}");
    }
}
