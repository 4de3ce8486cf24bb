//! Opening the cache directories, before anything is served.

use super::names::MAX_SEGMENTS;
use super::settings::{Capacity, SsdSettings};
use orbitkv_store::{Directory, DirectoryError, HostDirectory, Log, LogConfig, StoreError, lock_holder};
use orbitkv_uring::{DiskConfig, OpenError, PageDisk};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// How pages are read and written: whatever is a `PageDisk` can stand here, and in [`open_one`].
#[cfg(not(feature = "test-hooks"))]
type PageFiles = PageDisk;
#[cfg(feature = "test-hooks")]
type PageFiles = super::hooks::FaultyDisk;

/// A directory with its lock, and what was found at first sight.
#[derive(Debug)]
pub(crate) struct OpenedDirectory<D = PageFiles> {
    pub(super) log: Log<D>,
    pub(super) path: PathBuf,
}

/// A directory that cannot be used.
#[derive(Debug, Error)]
pub enum SsdError {
    /// It is no directory of ours to use.
    #[error("--ssd-cache-path: {0}")]
    Directory(#[from] DirectoryError),
    /// Its size cannot work.
    #[error("--ssd-cache-capacity leaves {capacity_bytes} bytes for {}: {source}", path.display())]
    Capacity {
        /// Which.
        path: PathBuf,
        /// Its part.
        capacity_bytes: u64,
        /// Why not.
        source: StoreError,
    },
    /// More segments than extents can name.
    #[error(
        "--ssd-cache-capacity leaves {capacity_bytes} bytes for {}, more than {MAX_SEGMENTS} segments of \
         {segment_bytes} bytes: lower it to {max_bytes}", path.display()
    )]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// Its part.
        capacity_bytes: u64,
        /// Bytes of a segment.
        segment_bytes: u64,
        /// The most that works.
        max_bytes: u64,
    },
    /// Another manager works there.
    #[error("--ssd-cache-path {}: {source}{}", path.display(), process(*holder))]
    Taken {
        /// Which.
        path: PathBuf,
        /// Its process, where the kernel tells.
        holder: Option<u32>,
        /// As the store says it.
        source: StoreError,
    },
    /// The disk could not be set up.
    #[error("--ssd-cache-path {}: {source}", path.display())]
    Disk {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: OpenError,
    },
    /// What lies in it cannot be used.
    #[error("--ssd-cache-path {}: {source}", path.display())]
    Store {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: StoreError,
    },
}

fn process(holder: Option<u32>) -> String {
    holder.map_or_else(String::new, |pid| format!("; it is process {pid}"))
}

/// Opens all of them, or none: the first that cannot be used gives the others back.
///
/// # Errors
/// See [`SsdError`]; each says what to do.
pub(crate) fn open(settings: &SsdSettings) -> Result<Vec<OpenedDirectory>, SsdError> {
    settings.paths.iter().map(|path| open_one(settings, path)).collect()
}

fn open_one(settings: &SsdSettings, path: &Path) -> Result<OpenedDirectory, SsdError> {
    let mut directory = HostDirectory::open(path)?;
    let space = directory.space().map_err(|source| SsdError::Store {
        path: path.to_owned(),
        source: StoreError::Start { what: "measure", file: "the file system".to_owned(), source },
    })?;
    let capacity_bytes = match settings.capacity {
        Capacity::Each(bytes) => bytes,
        Capacity::Percent(percent) => crate::Amount::Percent(percent).of(space.total_bytes),
    };
    let mut config = LogConfig::for_capacity(capacity_bytes);
    config.min_free_bytes = settings.min_free.of(space.total_bytes);
    if let Some(segment_bytes) = settings.segment_bytes {
        config.segment_bytes = segment_bytes;
    }
    let segment_bytes = config.segment_bytes;
    config.check().map_err(|source| SsdError::Capacity { path: path.to_owned(), capacity_bytes, source })?;
    let max_bytes = u64::from(MAX_SEGMENTS) * segment_bytes;
    if capacity_bytes > max_bytes {
        return Err(SsdError::TooLarge { path: path.to_owned(), capacity_bytes, segment_bytes, max_bytes });
    }
    let config_of_disk = DiskConfig { engine: settings.engine, ..DiskConfig::default() };
    let disk = PageDisk::open(directory, &config_of_disk)
        .map_err(|source| SsdError::Disk { path: path.to_owned(), source })?;
    #[cfg(feature = "test-hooks")]
    let disk = super::hooks::faulty(disk, path);
    let log = Log::open(disk, config).map_err(|source| {
        let path = path.to_owned();
        match source {
            StoreError::Locked(_) => SsdError::Taken { holder: lock_holder(&path), path, source },
            source => SsdError::Store { path, source },
        }
    })?;
    Ok(OpenedDirectory { log, path: path.to_owned() })
}
