//! Where in the address space a map goes.

use std::mem;
use std::ptr;

use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A huge page of x86-64 and of arm64 with 4 KiB pages.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A reserved range of addresses that begins at a multiple of [`HUGE_PAGE_BYTES`]: a huge page of a file is mapped as
/// one only where both begin together. Given back on drop.
pub(crate) struct Place {
    reserved: *mut u8,
    reserved_bytes: usize,
    base: *mut u8,
    bytes: usize,
}

impl Place {
    /// Reserves `bytes`, a multiple of 4 KiB.
    pub(crate) fn reserve(bytes: usize) -> io::Result<Self> {
        let reserved_bytes = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(io::Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is asked for, so the kernel picks a free range and no existing map is replaced.
        let reserved = unsafe { mmap_anonymous(ptr::null_mut(), reserved_bytes, ProtFlags::empty(), flags) }?;
        let reserved = reserved.cast::<u8>();
        let before = reserved.align_offset(HUGE_PAGE_BYTES);
        // At most one huge page is passed over, and the reservation has one more than `bytes`.
        let base = reserved.wrapping_add(before);
        Ok(Self { reserved, reserved_bytes, base, bytes })
    }

    /// Its first address.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Something was mapped over its bytes, and is somebody else's to unmap. What lies around them is given back.
    pub(crate) fn taken(self) {
        let before = self.base.addr() - self.reserved.addr();
        let after = self.base.wrapping_add(self.bytes);
        let after_bytes = self.reserved_bytes - before - self.bytes;
        // SAFETY: both ranges are of this reservation and outside of what was mapped over it.
        unsafe {
            unmap(self.reserved, before);
            unmap(after, after_bytes);
        }
        mem::forget(self);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: nothing was mapped over the reservation, and nobody has been told of it.
        unsafe { unmap(self.reserved, self.reserved_bytes) };
    }
}

/// # Safety
/// Nothing may use the range any more.
unsafe fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller's.
        let result = unsafe { munmap(start.cast(), bytes) };
        debug_assert!(result.is_ok(), "munmap of an own map cannot fail: {result:?}");
    }
}
