//! One descriptor for everything that the I/O thread waits for.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Wakes the thread that waits for a disk. Any number of wakes before it looks count as one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Wakes. What the thread is to find must be in its place before.
    pub fn wake(&self) {
        // Fails only when the counter is at its end, and then the other side is awake already.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Takes all wakes. To be called before anything is looked at.
    pub(crate) fn clear(&self) {
        // Fails only when there is none.
        let _ = rustix::io::read(&*self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
