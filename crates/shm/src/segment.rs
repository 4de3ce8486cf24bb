//! A memfd segment, seen by its owner.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};

use crate::{Region, ShmError, populate};

/// Unit of a segment's size.
pub const PAGE_BYTES: usize = 4096;

/// Longest name: the kernel takes 249 bytes, and names come from configuration.
const MAX_NAME_BYTES: usize = 200;

/// Shared memory created, sized and sealed here, to be sent to other processes by its descriptor.
///
/// Dereferences to [`Region`] for access. The memory is given back when the descriptor and every map in every process
/// is gone, or at once by [`Segment::punch_all`].
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
    region: Arc<Region>,
}

impl Segment {
    /// Creates a zeroed segment of `bytes` (a positive multiple of 4 KiB; of 2 MiB for huge pages).
    ///
    /// Its size is sealed at once, so it can be sent to a process that does not trust this one. `name` shows in
    /// `/proc/PID/maps`. No memory is taken before the first access: see [`Segment::populate`].
    pub fn create(name: &str, bytes: usize) -> Result<Segment, ShmError> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('\0') {
            return Err(ShmError::BadName { name: name.to_owned() });
        }
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) || i64::try_from(bytes).is_err() {
            return Err(ShmError::BadSize { bytes });
        }
        let failed = |call| move |source| ShmError::from_call(call, bytes, source);
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(failed("memfd_create"))?;
        ftruncate(&fd, bytes as u64).map_err(failed("ftruncate"))?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        // Sealed last: no peer can then add a write seal and stop its owner from using it.
        fcntl_add_seals(&fd, SealFlags::SEAL).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        let region = Arc::new(Region::map(fd.as_fd(), bytes, true)?);
        Ok(Segment { fd, region })
    }

    /// The mapped memory, to be held by whoever keeps an address into it.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Takes the memory now, on `threads` threads (1 to 64; the caller's is one of them), so that no later access
    /// can fail for want of memory, and so that it is charged to this process's cgroup. Content is kept. Returns how
    /// many bytes lie in huge pages; the rest is as good, and slower.
    ///
    /// [`ShmError::OutOfMemory`] where host or cgroup cannot give it; what was taken stays until the segment drops.
    pub fn populate(&self, threads: usize) -> Result<usize, ShmError> {
        populate::populate(self.fd.as_fd(), &self.region, threads)
    }

    /// Gives all memory back, even while other processes still map the segment; it reads as zeros from then on.
    pub fn punch_all(&self) -> Result<(), ShmError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.fd, flags, 0, self.region.bytes() as u64)
            .map_err(|source| ShmError::from_call("fallocate(PUNCH_HOLE)", self.region.bytes(), source))
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Deref for Segment {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}
