//! What a manager that is started is told.

use rustix::fs::statvfs;
use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// More would surprise somebody who has only said `--ssd`.
const MOST_BYTES: u64 = 64 << 30;
/// A quarter of what is free is taken at most.
const SHARE: u64 = 4;

/// Size of the pool, and the SSD behind it.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) pool_size: String,
    pub(crate) ssd: Option<Ssd>,
}

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
    /// It cannot be made, or looked at.
    #[error("--ssd: {path}: {source}; name another directory: --ssd=DIR")]
    Directory {
        /// Where.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
}

impl Launch {
    /// The manager's own flags.
    pub(crate) fn flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = vec!["--pool-size".into(), self.pool_size.clone().into()];
        if let Some(Ssd { directory, capacity }) = &self.ssd {
            flags.extend(["--ssd-cache-path".into(), directory.clone().into()]);
            flags.extend(["--ssd-cache-capacity".into(), capacity.clone().into()]);
        }
        flags
    }
}

impl Ssd {
    /// In that directory or the user's cache directory, with that capacity or a sane one. Makes the directory.
    pub(crate) fn open(directory: Option<&Path>, capacity: Option<&str>) -> Result<Self, SsdError> {
        let directory = match directory {
            Some(directory) => directory.to_owned(),
            None => default_directory(env::var_os("XDG_CACHE_HOME"), env::var_os("HOME"))?,
        };
        let failed = |source| SsdError::Directory { path: directory.clone(), source };
        // Pages are as private as the prompts that they were computed from.
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        let directory = fs::canonicalize(&directory).map_err(failed)?;
        let capacity = match capacity {
            Some(capacity) => capacity.to_owned(),
            None => {
                let space = statvfs(&directory).map_err(|error| failed(error.into()))?;
                default_capacity(space.f_bavail.saturating_mul(space.f_frsize)).to_string()
            }
        };
        Ok(Self { directory, capacity })
    }
}

fn default_directory(cache: Option<OsString>, home: Option<OsString>) -> Result<PathBuf, SsdError> {
    // A relative one is to be ignored, says the XDG base directory specification.
    let cache = cache.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || home.map(PathBuf::from).filter(|path| path.is_absolute()).map(|path| path.join(".cache"));
    cache.or_else(home).map(|path| path.join("orbitkv/ssd")).ok_or(SsdError::NoHome)
}

fn default_capacity(free_bytes: u64) -> u64 {
    (free_bytes / SHARE).min(MOST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_quarter_of_what_is_free_is_taken_and_64_gib_at_most() {
        assert_eq!([8 << 30, 1 << 40].map(default_capacity), [2 << 30, 64 << 30]);
    }

    #[test]
    fn a_directory_is_made_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let wanted = dir.path().join("a/b");
        let ssd = Ssd::open(Some(&wanted), Some("5gb")).unwrap();
        assert_eq!(ssd.capacity, "5gb");
        assert_eq!(fs::metadata(&wanted).unwrap().permissions().mode() & 0o777, 0o700);
        let flags = Launch { pool_size: "1gb".to_owned(), ssd: Some(ssd) }.flags();
        let words: Vec<_> = flags.iter().map(|flag| flag.to_string_lossy()).collect();
        assert_eq!(words[..3], ["--pool-size", "1gb", "--ssd-cache-path"]);
        assert_eq!(words[4..], ["--ssd-cache-capacity", "5gb"]);
        fs::write(dir.path().join("file"), "").unwrap();
        let text = Ssd::open(Some(&dir.path().join("file/x")), None).unwrap_err().to_string();
        assert!(text.contains("file/x") && text.contains("--ssd=DIR"), "{text}");
    }
}
