//! The socket's place in the file system, and the lock that gives it to one manager.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Longest path of a Unix socket, its final zero byte left out.
const MAX_PATH_BYTES: usize = 107;

/// Why a socket cannot be had.
#[derive(Debug, Error)]
pub enum ClaimError {
    /// Somebody else serves there.
    #[error(
        "another manager (pid {pid}) serves on {path}; engines can use that one, or stop it, or give this one another \
         --socket"
    )]
    Taken {
        /// The socket.
        path: PathBuf,
        /// Its manager, or `unknown`.
        pid: String,
    },
    /// The kernel would not take it.
    #[error(
        "--socket {path} has {got} bytes; a socket path has at most {MAX_PATH_BYTES}: choose a shorter one"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        got: usize,
    },
    /// No directory part, or no name.
    #[error(
        "--socket {path} names no file in a directory; write a path such as /run/user/1000/orbitkv/manager.sock"
    )]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },
    /// Others could replace the socket.
    #[error("directory {dir} of the socket {problem}; use a directory of your own with mode 0700")]
    UnsafeDirectory {
        /// The directory.
        dir: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Something else is there.
    #[error("{path} exists and is not a socket; remove it or choose another --socket")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("{what} {path}: {source}; choose a --socket in a directory that you may write")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
}

/// The right to serve on a path. Dropping it removes socket and lock.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    lock_path: PathBuf,
    /// Whether the socket at the path is ours.
    bound: bool,
    /// Held for its lock alone: the kernel releases it with the process, however that ends.
    _lock: File,
}

impl Claim {
    /// Takes the path and listens on it. A socket left behind by a dead manager is replaced.
    ///
    /// # Errors
    /// See [`ClaimError`]; nothing is left behind.
    pub fn take(path: &Path) -> Result<(Self, UnixListener), ClaimError> {
        let got = path.as_os_str().len();
        if got > MAX_PATH_BYTES {
            return Err(ClaimError::TooLong { path: path.into(), got });
        }
        let (dir, name) = match (path.parent(), path.file_name()) {
            (Some(dir), Some(name)) if dir != Path::new("") => (dir, name),
            _ => return Err(ClaimError::NoDirectory { path: path.into() }),
        };
        prepare_directory(dir)?;
        let mut lock_name = name.to_owned();
        lock_name.push(".lock");
        let lock_path = dir.join(lock_name);
        let lock = take_lock(path, &lock_path)?;
        let mut claim = Self { path: path.into(), lock_path, bound: false, _lock: lock };
        claim.clear_stale()?;
        let listener = UnixListener::bind(path).map_err(|e| io_error("bind", path, e))?;
        claim.bound = true;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .map_err(|e| io_error("set the mode of", path, e))?;
        Ok((claim, listener))
    }

    /// The socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the socket away, so that engines wait for the next manager instead of queueing here. The
    /// lock stays.
    pub fn remove_socket(&mut self) {
        if std::mem::take(&mut self.bound) {
            // Gone already is as good.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Under the lock, what is at the path is nobody's, unless its manager lost its lock file.
    fn clear_stale(&self) -> Result<(), ClaimError> {
        let found = match fs::symlink_metadata(&self.path) {
            Ok(found) => found,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(io_error("look at", &self.path, e)),
        };
        if !found.file_type().is_socket() {
            return Err(ClaimError::NotASocket { path: self.path.clone() });
        }
        if let Ok(stream) = UnixStream::connect(&self.path) {
            let pid = orbitkv_shm::peer_credentials(stream.as_fd()).ok().and_then(|c| c.pid);
            let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
            return Err(ClaimError::Taken { path: self.path.clone(), pid });
        }
        fs::remove_file(&self.path).map_err(|e| io_error("remove", &self.path, e))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Both while the lock is held, so neither can be another manager's.
        self.remove_socket();
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Creates the directory, or checks that nobody else can put another socket into it.
fn prepare_directory(dir: &Path) -> Result<(), ClaimError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(dir).map_err(|e| io_error("create the directory", dir, e))?;
    let found = fs::symlink_metadata(dir).map_err(|e| io_error("look at", dir, e))?;
    let us = rustix::process::geteuid().as_raw();
    let problem = if !found.is_dir() {
        Some("is not a directory itself".to_owned())
    } else if found.uid() != us {
        Some(format!("belongs to user {}, not to user {us} who runs this", found.uid()))
    } else if found.mode() & 0o022 != 0 {
        Some(format!("can be written by others (mode {:04o})", found.mode() & 0o7777))
    } else {
        None
    };
    match problem {
        None => Ok(()),
        Some(problem) => Err(ClaimError::UnsafeDirectory { dir: dir.into(), problem }),
    }
}

/// Takes the lock and writes our pid into it.
fn take_lock(path: &Path, lock_path: &Path) -> Result<File, ClaimError> {
    let failed = |e: Errno| io_error("lock", lock_path, e.into());
    loop {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut file = File::from(open(lock_path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let read = (&file).take(32).read_to_string(&mut pid).is_ok();
                let known = read && pid.trim().parse::<u32>().is_ok();
                let pid = if known { pid.trim().to_owned() } else { "unknown".to_owned() };
                return Err(ClaimError::Taken { path: path.into(), pid });
            }
            Err(e) => return Err(failed(e)),
        }
        // A manager that ends removes its lock file: what we locked may be a file without a name by
        // now, and another manager may have made the next one.
        let same = fs::metadata(lock_path).is_ok_and(|named| {
            file.metadata().is_ok_and(|held| held.ino() == named.ino() && held.dev() == named.dev())
        });
        if same {
            let written = file
                .set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| writeln!(file, "{}", std::process::id()));
            written.map_err(|e| io_error("write", lock_path, e))?;
            return Ok(file);
        }
    }
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> ClaimError {
    ClaimError::Io { what, path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_exclusive_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own/manager.sock");
        let (claim, listener) = Claim::take(&path).unwrap();
        let error = Claim::take(&path).unwrap_err();
        assert!(matches!(&error, ClaimError::Taken { pid, .. } if *pid == std::process::id().to_string()));
        assert!(path.exists(), "the refused claim left the socket alone");
        drop(listener);
        drop(claim);
        assert_eq!(fs::read_dir(dir.path().join("own")).unwrap().count(), 0);
        Claim::take(&path).unwrap();
    }

    #[test]
    fn modes_keep_others_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("own/manager.sock");
        let _claim = Claim::take(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    }

    #[test]
    fn a_directory_that_others_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = Claim::take(&dir.path().join("manager.sock")).unwrap_err();
        assert!(error.to_string().contains("written by others (mode 0777)"), "{error}");
    }

    #[test]
    fn a_symlink_is_not_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        let error = Claim::take(&dir.path().join("link/manager.sock")).unwrap_err();
        assert!(matches!(error, ClaimError::UnsafeDirectory { .. }), "{error}");
    }

    #[test]
    fn a_file_that_is_no_socket_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manager.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Claim::take(&path), Err(ClaimError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_long_path_is_refused_by_its_length() {
        let path = PathBuf::from(format!("/tmp/{}/s", "x".repeat(200)));
        assert!(matches!(Claim::take(&path), Err(ClaimError::TooLong { got: 207, .. })));
    }
}
