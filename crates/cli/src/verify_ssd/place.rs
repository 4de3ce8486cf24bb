//! Whether a path may be a cache directory at all: nothing is made or locked in one that is not.

use orbitkv_store::{Directory, DirectoryError, DiskError, HostDirectory, StoreError};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a directory was not checked.
#[derive(Debug, Error)]
pub(crate) enum VerifyError {
    /// No such place, a link, a file, or no permission.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Nothing in it.
    #[error(
        "{} is empty: no cache was ever kept there, or the file system that holds it is not mounted",
        path.display()
    )]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// Files, and none of ours.
    #[error(
        "{} is not a cache directory: it has no owner, checkpoint or segment file; name the directory itself, \
         not the one above it",
        path.display()
    )]
    NotACache {
        /// Which.
        path: PathBuf,
    },
    /// A manager works there. Its pages in flight look like damage, so there is nothing to be said meanwhile.
    #[error(
        "a cache manager or another check holds {}: stop it and try again; a running manager checks each page \
         that it reads itself",
        path.display()
    )]
    InUse {
        /// Which.
        path: PathBuf,
    },
    /// The file system does not let us.
    #[error("cannot list {}: {source}", path.display())]
    List {
        /// Which.
        path: PathBuf,
        /// What it said.
        source: DiskError,
    },
    /// A newer format, a link in the place of a file, or files that cannot be opened.
    #[error("cannot check {}: {source}", path.display())]
    Store {
        /// Which.
        path: PathBuf,
        /// What the store said.
        source: StoreError,
    },
}

impl VerifyError {
    /// An error of the store about this directory.
    pub(super) fn store(path: &Path, source: StoreError) -> Self {
        let path = path.to_owned();
        if matches!(source, StoreError::Locked(_)) {
            Self::InUse { path }
        } else {
            Self::Store { path, source }
        }
    }
}

/// Opens a cache directory for reading.
pub(super) fn open(path: &Path) -> Result<HostDirectory, VerifyError> {
    let mut directory = HostDirectory::open_read_only(path)?;
    let entries = directory.list().map_err(|source| VerifyError::List { path: path.to_owned(), source })?;
    if entries.is_empty() {
        return Err(VerifyError::Empty { path: path.to_owned() });
    }
    if !entries.iter().any(|entry| is_ours(&entry.name)) {
        return Err(VerifyError::NotACache { path: path.to_owned() });
    }
    Ok(directory)
}

fn is_ours(name: &str) -> bool {
    name == "owner" || name == "checkpoint" || (name.starts_with("segment-") && name.ends_with(".okv"))
}
