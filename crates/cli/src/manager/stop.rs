//! Stopping a manager: asked first, killed when it does not listen.

use super::{Endpoint, Running};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use thiserror::Error;

/// A manager drains and ends well within this.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why it may still be there.
#[derive(Debug, Error)]
pub(crate) enum StopError {
    /// No handle on the process.
    #[error("no handle on its process: {0}")]
    Handle(#[from] orbitkv_shm::PidfdError),
    /// Signalling or waiting failed.
    #[error("could not be signalled: {0}")]
    Signal(#[from] Errno),
}

/// SIGTERM, and SIGKILL after five seconds. Names the process by its connection, so a younger process with
/// the same id is never hit.
pub(crate) fn stop(endpoint: &Endpoint, running: &Running) -> Result<(), StopError> {
    let process = match orbitkv_shm::peer_pidfd(running.connection.as_fd()) {
        Err(orbitkv_shm::PidfdError::Exited) => return Ok(()),
        other => other?,
    };
    send(&process, Signal::TERM)?;
    if !exits_within(&process, PATIENCE)? {
        send(&process, Signal::KILL)?;
        exits_within(&process, PATIENCE)?;
    }
    // Killed ones leave them behind.
    for file in [endpoint.owned_file(), endpoint.ready_file()] {
        let _ = fs::remove_file(file);
    }
    Ok(())
}

fn send(process: &OwnedFd, signal: Signal) -> Result<(), Errno> {
    match pidfd_send_signal(process, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A process handle is readable when the process has exited.
fn exits_within(process: &OwnedFd, patience: Duration) -> Result<bool, Errno> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}
