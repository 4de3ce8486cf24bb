//! Several runs share one manager; the last of them stops it.
//!
//! Each run holds a shared lock on the users file while it lives, so the kernel forgets it however it ends.
//! Finding, starting and stopping take turns by a second lock: no run can find a manager that another one
//! is just stopping. A manager that was killed with its run, or whose run was, is found by the next run and
//! stopped with that one.

use super::Endpoint;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Longest wait for another run that is starting or stopping a manager: both are bounded.
const TURN_PATIENCE: Duration = Duration::from_secs(60);
const TURN_POLL: Duration = Duration::from_millis(20);

/// Why a run cannot take part.
#[derive(Debug, Error)]
pub(crate) enum ShareError {
    /// A file beside the socket.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// Another run holds its turn.
    #[error("another orbitkv run has been starting or stopping a manager for a minute (it holds {0})")]
    Stuck(PathBuf),
}

/// A turn to find, start or stop; ends when dropped.
#[derive(Debug)]
pub(crate) struct Turn(#[allow(dead_code)] File);

/// One run's share in a manager.
#[derive(Debug)]
pub(crate) struct Share {
    endpoint: Endpoint,
    users: File,
}

impl Share {
    /// Takes part, with the turn to find or start the manager.
    pub(crate) fn join(endpoint: &Endpoint) -> Result<(Self, Turn), ShareError> {
        let dir = endpoint.directory();
        // The manager refuses a directory that others can write.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|source| ShareError::Io { path: dir.into(), source })?;
        let turn = take_turn(endpoint)?;
        let path = endpoint.users_file();
        let users = open(&path)?;
        // Exclusive locks on it are taken during a turn only, and this is ours.
        users.lock_shared().map_err(|source| ShareError::Io { path, source })?;
        Ok((Self { endpoint: endpoint.clone(), users }, turn))
    }

    /// Has the last run stop the manager with this pid.
    pub(crate) fn own(&self, pid: u32) -> Result<(), ShareError> {
        let path = self.endpoint.owned_file();
        fs::write(&path, pid.to_string()).map_err(|source| ShareError::Io { path, source })
    }

    /// Ends the part. `Some` for the last run: its turn to stop the manager with this pid.
    pub(crate) fn leave(self) -> Result<Option<(u32, Turn)>, ShareError> {
        let turn = take_turn(&self.endpoint)?;
        // Closing instead of converting the lock: a conversion may not be atomic.
        drop(self.users);
        let users = open(&self.endpoint.users_file())?;
        if users.try_lock().is_err() {
            return Ok(None);
        }
        let owned = self.endpoint.owned_file();
        let pid = fs::read_to_string(&owned).ok().and_then(|text| text.trim().parse().ok());
        Ok(pid.map(|pid| (pid, turn)))
    }
}

fn take_turn(endpoint: &Endpoint) -> Result<Turn, ShareError> {
    let path = endpoint.turn_file();
    let file = open(&path)?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Turn(file)),
            Err(TryLockError::Error(source)) => return Err(ShareError::Io { path, source }),
            Err(TryLockError::WouldBlock) if begun.elapsed() > TURN_PATIENCE => {
                return Err(ShareError::Stuck(path));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(TURN_POLL),
        }
    }
}

/// Lock files are never removed: another run may have one open.
fn open(path: &Path) -> Result<File, ShareError> {
    let opened = File::options().create(true).truncate(false).read(true).write(true).open(path);
    opened.map_err(|source| ShareError::Io { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(dir: &Path) -> Endpoint {
        Endpoint { socket: dir.join("d/m.sock"), socket_given: true, http_given: None, http_configured: None }
    }

    #[test]
    fn the_last_one_stops_what_the_first_one_started() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = endpoint(dir.path());
        let (first, turn) = Share::join(&endpoint).unwrap();
        first.own(7).unwrap();
        drop(turn);
        let (second, turn) = Share::join(&endpoint).unwrap();
        drop(turn);
        assert!(first.leave().unwrap().is_none());
        assert!(matches!(second.leave().unwrap(), Some((7, _))));
    }

    #[test]
    fn nobody_stops_a_manager_that_no_run_started() {
        let dir = tempfile::tempdir().unwrap();
        let (only, turn) = Share::join(&endpoint(dir.path())).unwrap();
        drop(turn);
        assert!(only.leave().unwrap().is_none());
    }
}
