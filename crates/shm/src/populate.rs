//! Takes a segment's memory before anyone uses it.

use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::place::HUGE_PAGE_BYTES;
use crate::segment::PAGE_BYTES;
use crate::{Region, ShmError};

/// What one thread takes at a time: large enough for whole huge pages, small enough to share the work evenly.
const CHUNK_BYTES: usize = 16 << 20;

/// More threads than this only contend for the kernel's page allocator.
const MAX_THREADS: usize = 64;

/// State shared by the populating threads.
struct Work<'a> {
    fd: BorrowedFd<'a>,
    region: &'a Region,
    next_offset: AtomicUsize,
    /// Bytes that lie in huge pages.
    huge_bytes: AtomicUsize,
    failed: AtomicBool,
    error: Mutex<Option<ShmError>>,
}

/// Takes all memory of `region`, the map of `fd`, on `threads` threads including the caller's. Returns how many bytes
/// of it lie in huge pages.
pub(crate) fn populate(fd: BorrowedFd<'_>, region: &Region, threads: usize) -> Result<usize, ShmError> {
    let work = Work::new(fd, region);
    let useful = region.bytes().div_ceil(CHUNK_BYTES).min(MAX_THREADS);
    thread::scope(|scope| {
        for _ in 1..threads.clamp(1, useful) {
            // A thread that cannot be started leaves its share to the others; the caller's own always runs.
            let _ =
                thread::Builder::new().name("orbitkv-populate".to_owned()).spawn_scoped(scope, || work.run());
        }
        work.run();
    });
    match work.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(work.huge_bytes.into_inner()),
        Some(error) => Err(error),
    }
}

impl<'a> Work<'a> {
    fn new(fd: BorrowedFd<'a>, region: &'a Region) -> Self {
        Self {
            fd,
            region,
            next_offset: AtomicUsize::new(0),
            huge_bytes: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
        }
    }

    /// Takes chunk after chunk until none is left or any thread failed.
    fn run(&self) {
        while !self.failed.load(Ordering::Relaxed) {
            let offset = self.next_offset.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
            if offset >= self.region.bytes() {
                return;
            }
            let len = CHUNK_BYTES.min(self.region.bytes() - offset);
            if let Err(error) = self.chunk(offset, len) {
                self.failed.store(true, Ordering::Relaxed);
                self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
            self.huge_bytes.fetch_add(self.collapse(offset, len), Ordering::Relaxed);
        }
    }

    /// Moves memory that was just taken into huge pages, as far as the kernel can: nearly all kernels take small
    /// ones for shared memory unless told otherwise by root (`shmem_enabled`), and only this advice needs no word
    /// of root (Linux 6.1, madvise(2)). Reads from an SSD into small pages, each at an address of its own, are
    /// several times slower, and so is their registration with a GPU. Returns the bytes that lie in huge pages.
    fn collapse(&self, offset: usize, len: usize) -> usize {
        let pages = (offset..offset + len).step_by(HUGE_PAGE_BYTES);
        let collapsed = pages.filter(|at| {
            let Ok(start) = self.region.range_ptr(*at, HUGE_PAGE_BYTES) else {
                return false;
            };
            // SAFETY: the range is inside the map (checked), and this advice keeps content, whoever has it mapped.
            unsafe { libc::madvise(start.cast(), HUGE_PAGE_BYTES, libc::MADV_COLLAPSE) == 0 }
        });
        collapsed.count() * HUGE_PAGE_BYTES
    }

    fn chunk(&self, offset: usize, len: usize) -> Result<(), ShmError> {
        let start = self.region.range_ptr(offset, len)?;
        // SAFETY: the range is inside the map (checked), and this advice only faults pages in: content is kept.
        let advised = unsafe { madvise(start.cast(), len, Advice::LinuxPopulateWrite) };
        match advised {
            Ok(()) => Ok(()),
            // Kernels before 5.14 do not know the advice.
            Err(Errno::INVAL) => self.touch(offset, len),
            // What the kernel says when a fault found no page to give.
            Err(source @ Errno::FAULT) => Err(ShmError::OutOfMemory {
                bytes: self.region.bytes(),
                call: "madvise(MADV_POPULATE_WRITE)",
                source,
            }),
            Err(source) => {
                Err(ShmError::from_call("madvise(MADV_POPULATE_WRITE)", self.region.bytes(), source))
            }
        }
    }

    /// Allocates first, so that want of memory is an error and not a SIGBUS, then faults each page in.
    fn touch(&self, offset: usize, len: usize) -> Result<(), ShmError> {
        fallocate(self.fd, FallocateFlags::empty(), offset as u64, len as u64)
            .map_err(|source| ShmError::from_call("fallocate", self.region.bytes(), source))?;
        for page in (offset..offset + len).step_by(PAGE_BYTES) {
            let address = self.region.range_ptr(page, 1)?;
            // SAFETY: the byte is inside the writable map (checked). An atomic "or 0" is a write that changes
            // nothing, even while another process writes the same page.
            unsafe { AtomicU8::from_ptr(address) }.fetch_or(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segment;
    use std::os::fd::AsFd;

    fn allocated_bytes(segment: &Segment) -> u64 {
        u64::try_from(rustix::fs::fstat(segment.as_fd()).unwrap().st_blocks).unwrap() * 512
    }

    #[test]
    fn touching_allocates_exactly_the_range_and_keeps_content() {
        let segment = Segment::create("touch", 8 << 20).unwrap();
        segment.write_at(PAGE_BYTES, b"kept").unwrap();
        let work = Work::new(segment.as_fd(), &segment);
        work.touch(0, 4 << 20).unwrap();
        assert!(allocated_bytes(&segment) >= 4 << 20);
        assert!(allocated_bytes(&segment) < 8 << 20);
        let mut content = [0; 4];
        segment.read_at(PAGE_BYTES, &mut content).unwrap();
        assert_eq!(&content, b"kept");
    }

    #[test]
    fn an_error_of_one_chunk_is_reported_once_and_stops_the_rest() {
        let segment = Segment::create("stop", 4 * CHUNK_BYTES).unwrap();
        let work = Work { failed: AtomicBool::new(true), ..Work::new(segment.as_fd(), &segment) };
        work.run();
        assert_eq!(work.next_offset.load(Ordering::Relaxed), 0, "no chunk starts after a failure");
    }
}
