//! A segment received from another process.

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::{Region, ShmError};

/// A map of a segment that another process created. Dereferences to [`Region`] for access.
///
/// Not inherited by a fork: a child would otherwise keep pages alive, and could write them, unseen by the manager.
#[derive(Debug)]
pub struct Mapping {
    region: Arc<Region>,
}

impl Mapping {
    /// Maps `fd` for reading and writing, once its size is `expected_bytes` and can no longer change.
    ///
    /// The descriptor is closed; the map does not need it. [`ShmError::WrongSize`] and [`ShmError::Unsealed`] mean
    /// that the sender did not create it as [`crate::Segment`] does: drop the connection.
    pub fn from_fd(fd: OwnedFd, expected_bytes: usize) -> Result<Mapping, ShmError> {
        Mapping::checked(fd, expected_bytes, true)
    }

    /// As [`Mapping::from_fd`], but a write through the map faults.
    pub fn from_fd_read_only(fd: OwnedFd, expected_bytes: usize) -> Result<Mapping, ShmError> {
        Mapping::checked(fd, expected_bytes, false)
    }

    /// Seals first, size second: a size read before the seals could change between the two.
    // Taken by value: the descriptor is done with once mapped, and a kept one would count against the process's limit.
    #[allow(clippy::needless_pass_by_value)]
    fn checked(fd: OwnedFd, expected_bytes: usize, writable: bool) -> Result<Mapping, ShmError> {
        let found = match fcntl_get_seals(&fd) {
            Ok(seals) => seals,
            // The kernel's answer for a file that cannot carry seals.
            Err(Errno::INVAL) => SealFlags::empty(),
            Err(source) => {
                return Err(ShmError::Syscall { call: "fcntl(F_GET_SEALS)", source });
            }
        };
        if !found.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(ShmError::Unsealed { found });
        }
        let actual = fstat(&fd).map_err(|source| ShmError::Syscall { call: "fstat", source })?.st_size;
        let actual = u64::try_from(actual).unwrap_or(0);
        if expected_bytes == 0 {
            return Err(ShmError::BadSize { bytes: expected_bytes });
        }
        if actual != expected_bytes as u64 {
            return Err(ShmError::WrongSize { expected: expected_bytes, actual });
        }
        let region = Region::map(fd.as_fd(), expected_bytes, writable)?;
        region
            .advise(Advice::LinuxDontFork)
            .map_err(|source| ShmError::Syscall { call: "madvise(MADV_DONTFORK)", source })?;
        Ok(Mapping { region: Arc::new(region) })
    }

    /// The mapped memory, to be held by whoever keeps an address into it (a copy in flight, for one).
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Deref for Mapping {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}
