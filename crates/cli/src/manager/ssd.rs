//! `--ssd`: a directory for pages, looked at before anything is started.

use bytesize::ByteSize;
use rustix::fs::statvfs;
use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// More would surprise somebody who has only said `--ssd`.
const MOST_BYTES: u64 = 64 << 30;
/// A quarter of what is free is taken at most.
const SHARE: u64 = 4;
/// The least that a manager can work with: two segments and what describes them.
const LEAST_BYTES: u64 = 129 << 20;
/// What a manager leaves free for others, of the whole file system, unless it is told otherwise.
const KEPT_PERCENT: u64 = 5;

/// A directory for pages, and the most that it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ssd {
    pub(crate) directory: PathBuf,
    pub(crate) capacity: String,
}

/// Why there is no such directory.
#[derive(Debug, Error)]
pub(crate) enum SsdError {
    /// Nobody says where home is.
    #[error("--ssd: neither XDG_CACHE_HOME nor HOME is set; name a directory: --ssd=DIR")]
    NoHome,
    /// Something else is in its place.
    #[error("--ssd: {path} is no directory; name one, or one that can be made: --ssd=DIR")]
    NotADirectory {
        /// What.
        path: PathBuf,
    },
    /// It cannot be made, or looked at.
    #[error("--ssd: {path}: {source}; name another directory: --ssd=DIR")]
    Directory {
        /// Where.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// No file can be made in it.
    #[error(
        "--ssd: nothing can be written in {path}: {source}; name a directory that you may write: --ssd=DIR"
    )]
    NotWritable {
        /// Where.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// Nothing would ever be written.
    #[error(
        "--ssd: the file system of {path} has too little room: {free} of {total} are free, {KEPT_PERCENT} % stay free \
         for others, and the cache needs {least} at least; free some space, or name a directory elsewhere: --ssd=DIR"
    )]
    Full {
        /// Where.
        path: PathBuf,
        /// What is free.
        free: String,
        /// All of it.
        total: String,
        /// The least.
        least: String,
    },
}

impl Ssd {
    /// In that directory or the user's cache directory, with that capacity or a sane one. Makes the directory.
    pub(crate) fn open(directory: Option<&Path>, capacity: Option<&str>) -> Result<Self, SsdError> {
        let directory = match directory {
            Some(directory) => directory.to_owned(),
            None => default_directory(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))?,
        };
        let directory = made(&directory)?;
        require_writable(&directory)?;
        let room =
            Room::of(&directory).map_err(|source| SsdError::Directory { path: directory.clone(), source })?;
        let Some(default) = room.capacity_bytes() else {
            let shown = |bytes| ByteSize(bytes).display().iec().to_string();
            let (free, total) = (shown(room.free_bytes), shown(room.total_bytes));
            return Err(SsdError::Full { path: directory, free, total, least: shown(LEAST_BYTES) });
        };
        Ok(Self { directory, capacity: capacity.map_or_else(|| default.to_string(), str::to_owned) })
    }
}

/// `orbitkv/ssd` in the user's cache directory, from the values of XDG_CACHE_HOME and HOME.
pub(crate) fn default_directory(
    cache: Option<OsString>,
    home: Option<OsString>,
) -> Result<PathBuf, SsdError> {
    // A relative one is to be ignored, says the XDG base directory specification.
    let cache = cache.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || home.map(PathBuf::from).filter(|path| path.is_absolute()).map(|path| path.join(".cache"));
    cache.or_else(home).map(|path| path.join("orbitkv/ssd")).ok_or(SsdError::NoHome)
}

/// The directory, absolute and without links: the manager follows none.
fn made(path: &Path) -> Result<PathBuf, SsdError> {
    let failed = |source| SsdError::Directory { path: path.to_owned(), source };
    if fs::metadata(path).is_ok_and(|found| !found.is_dir()) {
        return Err(SsdError::NotADirectory { path: path.to_owned() });
    }
    // Pages are as private as the prompts that they were computed from.
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    fs::canonicalize(path).map_err(failed)
}

/// Makes a file and removes it: modes alone do not tell of a file system that is mounted read-only.
fn require_writable(directory: &Path) -> Result<(), SsdError> {
    let probe = directory.join(format!(".orbitkv-run-{}", std::process::id()));
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&probe) {
        Ok(_) => {}
        // Of a process with the same id that was killed here.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(SsdError::NotWritable { path: directory.to_owned(), source }),
    }
    fs::remove_file(&probe).map_err(|source| SsdError::NotWritable { path: directory.to_owned(), source })
}

/// What the file system has given to a cache in the directory.
fn cache_bytes(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0u64;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // Nobody else's files; and what is evicted meanwhile takes nothing.
        if entry.file_name().as_encoded_bytes().starts_with(b"segment-")
            && let Ok(found) = entry.metadata()
        {
            bytes = bytes.saturating_add(found.blocks().saturating_mul(512));
        }
    }
    Ok(bytes)
}

/// What a file system has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// To whoever may not use what is kept for root.
    pub(crate) free_bytes: u64,
    pub(crate) total_bytes: u64,
    /// What earlier runs left in the directory: it is the cache's already.
    cache_bytes: u64,
}

impl Room {
    /// Of the file system of a directory that exists.
    pub(crate) fn of(directory: &Path) -> io::Result<Self> {
        let disk = statvfs(directory)?;
        Ok(Self {
            free_bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
            total_bytes: disk.f_blocks.saturating_mul(disk.f_frsize),
            cache_bytes: cache_bytes(directory)?,
        })
    }

    /// A sane capacity. `None` if the least that works is not there.
    pub(crate) fn capacity_bytes(self) -> Option<u64> {
        // Without what is there already each start would take less than the one before.
        let ours = self.free_bytes.saturating_add(self.cache_bytes);
        let usable = ours.saturating_sub(self.total_bytes / 100 * KEPT_PERCENT);
        (usable >= LEAST_BYTES).then(|| (ours / SHARE).min(MOST_BYTES).min(usable).max(LEAST_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_store::LogConfig;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_directory_is_the_users_own() {
        let at = |cache: Option<&str>, home: Option<&str>| {
            default_directory(cache.map(Into::into), home.map(Into::into)).ok()
        };
        assert_eq!(at(Some("/c"), Some("/h")), Some("/c/orbitkv/ssd".into()));
        assert_eq!(at(None, Some("/h")), Some("/h/.cache/orbitkv/ssd".into()));
        assert_eq!(at(Some("relative"), Some("/h")), Some("/h/.cache/orbitkv/ssd".into()));
        assert_eq!(at(None, None), None);
    }

    fn capacity(free_bytes: u64, total_bytes: u64, cache_bytes: u64) -> Option<u64> {
        Room { free_bytes, total_bytes, cache_bytes }.capacity_bytes()
    }

    #[test]
    fn a_quarter_of_what_is_free_is_taken_and_64_gib_at_most() {
        assert_eq!(capacity(8 << 30, 10 << 30, 0), Some(2 << 30));
        assert_eq!(capacity(1 << 40, 2 << 40, 0), Some(64 << 30));
        assert_eq!(capacity(300 << 20, 1 << 30, 0), Some(LEAST_BYTES), "a quarter of it would not work");
    }

    #[test]
    fn what_the_cache_holds_counts_as_free() {
        let before = capacity(40 << 30, 100 << 30, 0);
        assert_eq!(capacity(30 << 30, 100 << 30, 10 << 30), before);
        // Full of our own pages, and nobody else's.
        assert!(capacity(5 << 30, 100 << 30, 10 << 30).is_some());
    }

    #[test]
    fn a_full_file_system_has_no_capacity() {
        assert_eq!(capacity(5 << 30, 100 << 30, 0), None);
        assert_eq!(capacity(0, 100 << 30, 0), None);
        assert_eq!(capacity(LEAST_BYTES - 1, 1 << 20, 0), None);
    }

    #[test]
    fn the_least_is_what_the_store_can_work_with() {
        assert!(LogConfig::for_capacity(LEAST_BYTES).check().is_ok());
        assert!(LogConfig::for_capacity(LEAST_BYTES - (1 << 20)).check().is_err());
    }

    #[test]
    fn a_directory_is_made_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = dir.path().join("a/b");
        let ssd = Ssd::open(Some(&wanted), Some("5gb")).unwrap();
        assert_eq!(ssd.capacity, "5gb");
        assert_eq!(fs::metadata(&wanted).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&wanted).unwrap().count(), 0, "nothing is left of the test of writing");
    }

    #[test]
    fn a_link_is_followed_here_because_the_manager_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let ssd = Ssd::open(Some(&link), None).unwrap();
        assert_eq!(ssd.directory, fs::canonicalize(&real).unwrap());
    }

    #[test]
    fn what_cannot_be_a_cache_directory_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        // Nobody can make a file in /proc, whoever they are and whatever its mode says.
        for (path, part) in [
            (file.clone(), "is no directory"),
            (file.join("x"), "file/x"),
            ("/proc".into(), "written in /proc"),
        ] {
            let text = Ssd::open(Some(&path), None).unwrap_err().to_string();
            assert!(text.contains(part) && text.contains("--ssd=DIR"), "{path:?}: {text}");
        }
    }
}
