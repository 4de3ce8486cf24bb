//! One attempt to reach the manager.

use orbitkv_shm::peer_credentials;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Connects without waiting. The error is one line for people.
pub(super) fn attempt(path: &Path) -> Result<OwnedFd, String> {
    let shown = path.display();
    let address = SocketAddrUnix::new(path).map_err(|e| format!("{shown} cannot be a socket: {e}"))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|e| format!("no socket: {e}"))?;
    connect(&socket, &address).map_err(|error| match error {
        Errno::NOENT | Errno::CONNREFUSED => {
            format!("no manager at {shown}: start orbitkv-cache-manager (trying again)")
        }
        Errno::AGAIN => format!("the manager at {shown} accepts nobody at the moment (trying again)"),
        Errno::ACCESS | Errno::PERM => format!("no right to use {shown}: the manager runs as another user"),
        other => format!("cannot connect to {shown}: {other} (trying again)"),
    })?;
    // Whoever listens is told block hashes and is trusted with descriptors.
    let peer = peer_credentials(socket.as_fd()).map_err(|e| format!("who listens at {shown}? {e}"))?;
    let own = rustix::process::geteuid().as_raw();
    if peer.uid != own {
        return Err(format!("{shown} belongs to user {}, not to {own}: refused", peer.uid));
    }
    Ok(socket)
}
