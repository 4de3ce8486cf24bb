//! Who is at the other end of a Unix socket, and whether that process still lives.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Identity of the process that connected (or listened), fixed at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id in our pid namespace; `None` where the peer lives in one that we cannot see.
    pub pid: Option<u32>,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// Why there is no handle on the peer's life.
#[derive(Debug, thiserror::Error)]
pub enum PidfdError {
    /// The peer process is already gone: nothing it started can still be writing.
    #[error("the peer process has already exited")]
    Exited,
    /// Neither the kernel nor the pid namespaces allow it.
    #[error(
        "no pidfd of the peer: {reason}; share the pid namespace (`--pid=host` for containers), or use Linux 6.5 or \
         later"
    )]
    Unsupported {
        /// What was tried and refused.
        reason: String,
    },
    /// Any other refusal.
    #[error("{call} failed: {source}")]
    Syscall {
        /// The refused call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Reads the peer's credentials.
///
/// Not through `rustix`, whose process id type cannot hold the 0 of a foreign pid namespace.
pub fn peer_credentials(sock: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let raw: libc::ucred = socket_option(sock, libc::SO_PEERCRED, libc::ucred { pid: 0, uid: 0, gid: 0 })?;
    Ok(PeerCredentials {
        pid: u32::try_from(raw.pid).ok().filter(|pid| *pid != 0),
        uid: raw.uid,
        gid: raw.gid,
    })
}

/// Opens a handle on the peer process; it is **readable exactly when that process has exited** (all its threads), and
/// not before. Wait for it with epoll.
///
/// First `SO_PEERPIDFD` (Linux 6.5), which is exact. Else `pidfd_open` of the peer's process id: if the peer exited
/// between connect and this call, its id may name a younger process, so the handle may fire late. Late is safe: what
/// the peer may still be writing stays untouched for longer, never for less.
pub fn peer_pidfd(sock: BorrowedFd<'_>) -> Result<OwnedFd, PidfdError> {
    match socket_option::<libc::c_int>(sock, libc::SO_PEERPIDFD, -1) {
        // SAFETY: the kernel has just opened this descriptor for us, and nothing else knows its number.
        Ok(raw) if raw >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
        Ok(_) => open_by_pid(sock, "SO_PEERPIDFD gave no descriptor"),
        Err(error) => match error.raw_os_error() {
            Some(libc::ESRCH) => Err(PidfdError::Exited),
            // Unknown option before Linux 6.5, no data for a peer without identity, refused by a sandbox.
            Some(libc::ENOPROTOOPT | libc::ENODATA | libc::EINVAL | libc::EPERM | libc::ENOSYS) => {
                open_by_pid(sock, &format!("SO_PEERPIDFD: {error}"))
            }
            _ => Err(PidfdError::Syscall { call: "getsockopt(SO_PEERPIDFD)", source: error }),
        },
    }
}

fn open_by_pid(sock: BorrowedFd<'_>, tried: &str) -> Result<OwnedFd, PidfdError> {
    let credentials = peer_credentials(sock)
        .map_err(|source| PidfdError::Syscall { call: "getsockopt(SO_PEERCRED)", source })?;
    let pid = credentials.pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let Some(pid) = pid else {
        let reason = format!("{tried}; the peer lives in another pid namespace");
        return Err(PidfdError::Unsupported { reason });
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Ok(fd),
        Err(Errno::SRCH) => Err(PidfdError::Exited),
        Err(error @ (Errno::NOSYS | Errno::PERM | Errno::INVAL)) => {
            Err(PidfdError::Unsupported { reason: format!("{tried}; pidfd_open: {error}") })
        }
        Err(error) => Err(PidfdError::Syscall { call: "pidfd_open", source: error.into() }),
    }
}

/// Reads a `SOL_SOCKET` option of the kernel type `T`, plain integers throughout.
fn socket_option<T: Copy>(sock: BorrowedFd<'_>, option: libc::c_int, mut value: T) -> io::Result<T> {
    let mut bytes = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: `value` is valid for writes of `bytes`, its exact size; the kernel writes at most that many. `T` is an
    // integer or a struct of integers (both callers are above), for which every bit pattern is valid.
    let result = unsafe {
        libc::getsockopt(sock.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut bytes)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_fallback_by_pid_opens_a_live_peer() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let pidfd = open_by_pid(ours.as_fd(), "test").unwrap();
        let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(poll(&mut polled, Some(&no_wait)).unwrap(), 0, "we are alive");
    }

    #[test]
    fn a_socket_without_a_peer_is_unsupported() {
        use rustix::net::{AddressFamily, SocketType, socket};
        let lonely = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        assert!(matches!(peer_pidfd(lonely.as_fd()), Err(PidfdError::Unsupported { .. })));
    }
}
