//! What of a file the kernel keeps in memory.

use orbitkv_store::BLOCK_BYTES;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;

/// Whether the first block of a file is in the page cache. False also where that cannot be seen.
pub(crate) fn holds_start_of(file: &File) -> bool {
    // SAFETY: a new mapping at an address of the kernel's choice; nothing reads through it, so that it does not
    // matter what the file holds, and how long it is.
    let mapped =
        unsafe { mmap(std::ptr::null_mut(), BLOCK_BYTES, ProtFlags::READ, MapFlags::SHARED, file, 0) };
    let Ok(start) = mapped else { return false };
    // A byte for each page of memory, and pages of memory are not smaller than a block.
    let mut resident = [0u8];
    // SAFETY: `start` and the length are those of the mapping above, and there is a byte for its one page.
    let seen = unsafe { libc::mincore(start, BLOCK_BYTES, resident.as_mut_ptr()) };
    // SAFETY: the mapping is ours alone, and is not used after this.
    let _ = unsafe { munmap(start, BLOCK_BYTES) };
    seen == 0 && resident[0] & 1 == 1
}
