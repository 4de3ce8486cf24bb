//! Bytes and file descriptors over a Unix stream socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Most descriptors in one message. The kernel takes 253; a grant names far fewer segments.
pub const MAX_FDS: usize = 64;

/// Control space for [`MAX_FDS`] descriptors.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

/// Sends `parts` in order with `fds` attached to their first byte; returns the number of bytes taken.
///
/// A short count is no error: send the rest again **without** the descriptors, which went with the first byte.
/// `InvalidInput` for more than [`MAX_FDS`] descriptors, or for descriptors without a byte to carry them; `WouldBlock`
/// on a full non-blocking socket, and nothing was sent. A closed peer is `BrokenPipe`, never a signal.
pub fn send_with_fds(
    sock: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    if fds.len() > MAX_FDS {
        let text = format!("{} descriptors in one message: at most {MAX_FDS}, split them", fds.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if !fds.is_empty() && parts.iter().all(|part| part.is_empty()) {
        let text = "descriptors need at least one byte to travel with";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let sent = retry_on_intr(|| {
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fitted = fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(fitted, "the space is sized for MAX_FDS");
        sendmsg(sock, parts, &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(sent)
}

/// Receives into `buf` and appends at most `max_fds` received descriptors (close-on-exec) to `fds`; returns the number
/// of bytes, 0 at end of stream.
///
/// Descriptors past `max_fds` are closed, not kept, so a peer cannot fill this process's table. A caller that expected
/// more than it got treats the message as broken. `InvalidInput` for an empty `buf`, which could not tell end of stream.
pub fn recv_with_fds(
    sock: BorrowedFd<'_>,
    buf: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    max_fds: usize,
) -> io::Result<usize> {
    if buf.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "receive needs a buffer of at least one byte",
        ));
    }
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        retry_on_intr(|| recvmsg(sock, &mut [IoSliceMut::new(buf)], &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let mut kept = 0;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received_fds) = message {
            // An `OwnedFd` that is not kept closes as the loop drops it.
            for fd in received_fds {
                if kept < max_fds {
                    fds.push(fd);
                    kept += 1;
                }
            }
        }
    }
    Ok(received.bytes)
}
