//! A ring that the kernel grants, or why it does not.

use crate::waker::Waker;
use io_uring::{IoUring, Probe, opcode};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A ring for `depth` requests that reports completions to `waker`.
pub(super) fn ring(depth: u32, waker: &Waker) -> Result<IoUring, String> {
    // A child process must not have the queues of this one.
    let ring = IoUring::builder().dontfork().build(depth).map_err(|error| refusal(&error))?;
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| format!("io_uring cannot be asked: {error}"))?;
    let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::ReadFixed::CODE, opcode::WriteFixed::CODE];
    if !needed.into_iter().all(|code| probe.is_supported(code)) {
        return Err("this kernel's io_uring cannot read and write: Linux 5.6 can".to_owned());
    }
    ring.submitter()
        .register_eventfd(waker.as_fd().as_raw_fd())
        .map_err(|error| format!("io_uring takes no eventfd: {error}"))?;
    Ok(ring)
}

fn refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            "io_uring_setup is not permitted: seccomp profile of the container, or kernel.io_uring_disabled"
                .to_owned()
        }
        Some(libc::ENOSYS) => "this kernel has no io_uring".to_owned(),
        Some(libc::ENOMEM) => format!("io_uring_setup: {error}: raise the memory-lock limit (ulimit -l)"),
        _ => format!("io_uring_setup: {error}"),
    }
}
