//! What an I/O thread needs of a disk, beside its requests.

use crate::{DiskMode, IoBuffer, Waker};
use orbitkv_shm::Region;
use orbitkv_store::Disk;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A disk that a thread can wait for. [`crate::PageDisk`] is one; so is a faulty disk around it, for tests.
pub trait PageIo: Disk<Buffer = IoBuffer> {
    /// Waits until a request has ended, a [`Waker`] was used, or the time is over (`None`: never). False if it was
    /// the time. Wakes are taken by it, requests by [`Disk::poll`]: call that after each wait. It may return early.
    ///
    /// # Errors
    /// The kernel cannot wait; nothing is lost.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool>;

    /// Readable when [`PageIo::wait`] would return: for a thread that waits for other descriptors as well. Such a
    /// thread calls `wait` with a timeout of zero and then `poll`, or it stays readable.
    fn wakes(&self) -> BorrowedFd<'_>;

    /// For those who have something for the thread that waits.
    fn waker(&self) -> Waker;

    /// How long the kernel has had the request that it has had longest, at `now`; `None` if it has none. Requests
    /// that wait for their turn do not count, and those that have ended count until the next `poll`.
    fn oldest_in_flight(&self, now: Instant) -> Option<Duration>;

    /// How it works. It may change for the worse when a file is opened or a segment added.
    fn mode(&self) -> &DiskMode;

    /// Registers a pool segment, which must have its memory already. Requests on it work without, a little slower.
    /// Its memory is pinned, and stays mapped, until it is removed.
    fn add_segment(&mut self, region: &Arc<Region>);

    /// Gives a segment up. Requests on it go on. Call it before the segment's memory is given back by
    /// [`orbitkv_shm::Segment::punch_all`]: what is registered stays the old memory, which nobody else sees then.
    fn remove_segment(&mut self, region: &Arc<Region>);
}
