//! What can go wrong, and what to do about it.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// What the owner of the tier should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// This page only: answer with a miss, drop it from the index, go on.
    Miss,
    /// Not now: drop this write, go on, try again later.
    Retry,
    /// Write nothing more; go on reading.
    ReadOnly,
    /// Use the tier no more in this process; go on without it.
    TierOff,
    /// The configuration or the directory is wrong: say so and do not start.
    Fatal,
}

/// Failure of one operation on a disk.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DiskError {
    /// Another manager has it.
    #[error("another manager holds the lock: stop it, or give this one another directory")]
    Locked,
    /// No such name.
    #[error("no such file")]
    NotFound,
    /// The name is taken.
    #[error("the file exists already")]
    Exists,
    /// Not a regular file.
    #[error("not a regular file: links and devices are not followed, remove it")]
    NotAFile,
    /// The file system or the quota is full.
    #[error("no space left on the device or in the quota")]
    NoSpace,
    /// Mounted read-only, or turned so by the kernel after errors.
    #[error("the file system is read-only")]
    ReadOnly,
    /// The file is shorter than it should be.
    #[error("the file ends early")]
    Short,
    /// Not aligned, empty, larger than its buffer, or of a file that is not open.
    #[error("request is refused: {0}")]
    BadRequest(&'static str),
    /// The queue is full.
    #[error("the queue of the disk is full")]
    Busy,
    /// Access denied.
    #[error("permission denied: the directory and its files must belong to the manager's user")]
    Denied,
    /// Anything else, EIO above all.
    #[error("I/O error {errno} ({})", io::Error::from_raw_os_error(*errno))]
    Io {
        /// As the kernel numbers them.
        errno: i32,
    },
}

impl DiskError {
    /// For a read or write of a page, as [`crate::Completion`] reports it.
    #[must_use]
    pub fn advice(&self, direction: crate::Direction) -> Advice {
        match (self, direction) {
            (Self::Busy | Self::NoSpace, _) => Advice::Retry,
            (_, crate::Direction::Read) => Advice::Miss,
            _ => Advice::ReadOnly,
        }
    }

    /// Somebody protects the file, or has mounted something there: it says nothing about any other file.
    pub(crate) fn is_of_one_file(&self) -> bool {
        const EBUSY: i32 = 16;
        matches!(self, Self::Denied | Self::Io { errno: EBUSY })
    }
}

impl From<io::Error> for DiskError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound,
            io::ErrorKind::AlreadyExists => Self::Exists,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            io::ErrorKind::UnexpectedEof => Self::Short,
            io::ErrorKind::PermissionDenied => Self::Denied,
            // Not an error of the kernel: nothing in this crate makes one, EIO is the careful guess.
            _ => Self::Io { errno: error.raw_os_error().unwrap_or(5) },
        }
    }
}

/// Failure of the store.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The configuration cannot work.
    #[error("{name} is {got}; {fix}")]
    Config {
        /// Which value.
        name: &'static str,
        /// What it is.
        got: u64,
        /// What would do.
        fix: String,
    },
    /// Another manager works here.
    #[error(transparent)]
    Locked(DiskError),
    /// Written by a newer release.
    #[error(
        "{file} has format {found}, this release knows formats up to {supported}: use the newer release, or give \
         this one another directory; nothing was changed"
    )]
    NewerFormat {
        /// Which file.
        file: String,
        /// Its format.
        found: u32,
        /// The newest known here.
        supported: u32,
    },
    /// A file of ours is something else.
    #[error("{file} in the cache directory is not a regular file: links are not followed, remove it")]
    NotAFile {
        /// Which file.
        file: String,
    },
    /// The file system refused something at start.
    #[error("cannot {what} {file}: {source}")]
    Start {
        /// What was done.
        what: &'static str,
        /// To which file.
        file: String,
        /// What it said.
        source: DiskError,
    },
    /// The file system refused something while running.
    #[error("cannot {what} {file}: {source}")]
    Run {
        /// What was done.
        what: &'static str,
        /// To which file.
        file: String,
        /// What it said.
        source: DiskError,
    },
    /// A segment that somebody protects from being written or removed. It is passed over.
    #[error(
        "cannot {what} {file}: {source}; it is passed over, and counts against the capacity until that can be done"
    )]
    Barred {
        /// What was done.
        what: &'static str,
        /// To which file.
        file: String,
        /// What the file system said.
        source: DiskError,
    },
    /// More namespaces were forgotten than are kept.
    #[error(
        "{count} namespaces are forgotten and not yet overwritten, as many as are kept: clear the cache directory"
    )]
    TooManyForgotten {
        /// How many.
        count: usize,
    },
    /// The epochs are used up, or damaged beyond use.
    #[error("the owner epoch cannot grow beyond {epoch}: clear the cache directory")]
    Epoch {
        /// The last one.
        epoch: u32,
    },
}

impl StoreError {
    /// The file system refused something while running.
    pub(crate) fn run(what: &'static str, file: String, source: DiskError) -> Self {
        if source.is_of_one_file() {
            return Self::Barred { what, file, source };
        }
        Self::Run { what, file, source }
    }

    /// What to do.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Run { source: DiskError::NoSpace | DiskError::Busy, .. } | Self::Barred { .. } => {
                Advice::Retry
            }
            Self::Run { .. } | Self::TooManyForgotten { .. } => Advice::ReadOnly,
            Self::Start {
                source: DiskError::Io { .. } | DiskError::NoSpace | DiskError::ReadOnly, ..
            } => Advice::TierOff,
            _ => Advice::Fatal,
        }
    }
}

/// Why a page was not taken. The page is dropped; nothing else changes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// Recovery has not ended.
    #[error("the directory is still being read: drop the page, write the next ones after recovery")]
    Recovering,
    /// No segment is free.
    #[error("no segment is free: evict one, or drop the page")]
    NoRoom,
    /// After a write error.
    #[error("the tier is read-only after a write error")]
    ReadOnly,
    /// Never fits.
    #[error(
        "a page of {payload_bytes} bytes does not fit a segment: at most {max_bytes} do; make segments larger"
    )]
    TooLarge {
        /// Its payload.
        payload_bytes: u32,
        /// The most.
        max_bytes: u64,
    },
    /// A segment could not be begun.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AppendError {
    /// What to do.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Recovering | Self::NoRoom | Self::TooLarge { .. } => Advice::Retry,
            Self::ReadOnly => Advice::ReadOnly,
            Self::Store(error) => error.advice(),
        }
    }
}

/// Why bytes that were read are not the page that was asked for. Always a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// The place has been reused since, or never was one.
    #[error("the extent is not there any more")]
    Gone,
    /// No whole header there.
    #[error("the page header is damaged")]
    Header,
    /// A header of another place: a misdirected read or write.
    #[error("the page header belongs to another place")]
    Place,
    /// A header of an earlier use of the segment.
    #[error("the page is of another generation of its segment")]
    Generation,
    /// Another page.
    #[error("another page lies there")]
    Name,
    /// The right page, with other bytes than the index knows.
    #[error("the page has another length or checksum than the index says")]
    Record,
    /// The bytes are damaged.
    #[error("the payload is damaged")]
    Payload,
}

/// Why a directory cannot be used.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// Someone put a link there; following it could write anywhere.
    #[error("the cache directory {} is a symbolic link: name the directory that it points to", path.display())]
    Link {
        /// Which.
        path: PathBuf,
    },
    /// A file or a device.
    #[error("the cache directory {} is not a directory: remove it, or name another place", path.display())]
    NotADirectory {
        /// Which.
        path: PathBuf,
    },
    /// It cannot be made or opened.
    #[error("cannot use the cache directory {}: {source}", path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// What the file system said.
        source: io::Error,
    },
}
