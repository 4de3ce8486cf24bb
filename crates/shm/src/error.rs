//! What can go wrong with a segment or a map of one.

use rustix::fs::SealFlags;
use rustix::io::Errno;

/// Failure of a segment, a map, or an access to one.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// The name cannot be a memfd name.
    #[error("segment name {name:?} is refused: use 1 to 200 bytes without NUL")]
    BadName {
        /// The refused name.
        name: String,
    },
    /// The size is zero or not a multiple of the page size.
    #[error(
        "segment size {bytes} bytes is refused: use a positive multiple of 4096, best of 2097152 (huge pages)"
    )]
    BadSize {
        /// The refused size.
        bytes: usize,
    },
    /// The host or the cgroup has no memory left for the segment.
    #[error(
        "not enough memory for {bytes} bytes of shared memory ({call}: {source}): make the pool smaller, or raise \
         the memory limit of this host, cgroup or container"
    )]
    OutOfMemory {
        /// Size of the whole segment.
        bytes: usize,
        /// The refused call.
        call: &'static str,
        /// The kernel's answer.
        source: Errno,
    },
    /// An access past the end.
    #[error("access to {len} bytes at offset {offset} leaves the segment of {bytes} bytes")]
    OutOfBounds {
        /// First byte asked for.
        offset: usize,
        /// Number of bytes asked for.
        len: usize,
        /// Size of the segment.
        bytes: usize,
    },
    /// A write through a read-only map.
    #[error("this map is read-only: map the segment with `Mapping::from_fd` to write")]
    ReadOnly,
    /// The received file is not as large as the sender said.
    #[error(
        "segment has {actual} bytes, not the {expected} announced: refused, the sender is not to be trusted"
    )]
    WrongSize {
        /// Size announced by the sender.
        expected: usize,
        /// Size of the file.
        actual: u64,
    },
    /// The received file could still be truncated under us.
    #[error(
        "segment lacks the seals that fix its size (it has {found:?}, needed are SHRINK and GROW): refused, a \
         truncate by another process would kill this one with SIGBUS"
    )]
    Unsealed {
        /// Seals of the file; empty for a file that cannot carry seals.
        found: SealFlags,
    },
    /// A kernel file about memory could not be understood.
    #[error("cannot read the available memory from {file}: {reason}")]
    MemoryInfo {
        /// The file that was read.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Any other refused system call.
    #[error("{call} failed: {source}")]
    Syscall {
        /// The refused call.
        call: &'static str,
        /// The kernel's answer.
        source: Errno,
    },
}

impl ShmError {
    /// Error of `call` on a segment of `bytes`: lack of memory gets its own variant, because its fix differs.
    pub(crate) fn from_call(call: &'static str, bytes: usize, source: Errno) -> ShmError {
        match source {
            Errno::NOMEM | Errno::NOSPC => ShmError::OutOfMemory { bytes, call, source },
            _ => ShmError::Syscall { call, source },
        }
    }
}
