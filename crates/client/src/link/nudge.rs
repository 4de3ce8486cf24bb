//! Ends another thread's sleep.

use crate::ClientError;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An eventfd: readable from the first raise until it is cleared.
pub(super) struct Nudge(OwnedFd);

impl Nudge {
    pub(super) fn new() -> Result<Self, ClientError> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self(fd.map_err(|e| ClientError::system("eventfd")(e.into()))?))
    }

    pub(super) fn raise(&self) {
        // Fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn clear(&self) {
        // Empty already: nothing to clear.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Nudge {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
