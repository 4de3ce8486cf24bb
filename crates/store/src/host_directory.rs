//! A directory of the host's file system.

use crate::directory::{Directory, FileEntry, FileId, FileSize, Space};
use crate::error::{DirectoryError, DiskError};
use rustix::fs::{self, Advice, AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory that is held open: names are looked up in it, whatever is renamed or linked around it later.
///
/// Files are read and written through the page cache. Those that `Disk` implementations open with O_DIRECT for
/// pages see the same bytes: no block is written both ways in one use of a segment.
#[derive(Debug)]
pub struct HostDirectory {
    directory: OwnedFd,
    path: PathBuf,
    access: Access,
    /// Held for its lock.
    lock: Option<File>,
    files: BTreeMap<FileId, Arc<File>>,
    next: u32,
}

/// What may be done with the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    ReadWrite,
    ReadOnly,
}

impl From<Errno> for DiskError {
    fn from(errno: Errno) -> Self {
        match errno {
            // The kernel's word for a link where none is followed.
            Errno::LOOP | Errno::ISDIR | Errno::NXIO => Self::NotAFile,
            errno => io::Error::from(errno).into(),
        }
    }
}

impl HostDirectory {
    /// Opens a directory, which is made if missing, for the owner alone.
    ///
    /// # Errors
    /// A link, something that is no directory, or what the file system says.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        Self::with(path, Access::ReadWrite)
    }

    /// Opens a directory that exists, to be read and locked; whatever would change it is refused. It works on a
    /// file system that is mounted read-only. A lock file that is missing is not made: nobody holds it.
    ///
    /// Files are dropped from the page cache when they are opened, as far as they are written back, so that
    /// what is read is what the device holds.
    ///
    /// # Errors
    /// As [`HostDirectory::open`], and a directory that does not exist.
    pub fn open_read_only(path: &Path) -> Result<Self, DirectoryError> {
        Self::with(path, Access::ReadOnly)
    }

    fn with(path: &Path, access: Access) -> Result<Self, DirectoryError> {
        let unusable = |source| DirectoryError::Unusable { path: path.to_owned(), source };
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => return Err(DirectoryError::Link { path: path.to_owned() }),
            Ok(found) if !found.is_dir() => {
                return Err(DirectoryError::NotADirectory { path: path.to_owned() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && access == Access::ReadWrite => {
                DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(unusable)?;
            }
            Err(error) => return Err(unusable(error)),
        }
        // A link that came meanwhile is not followed either.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = fs::open(path, flags, Mode::empty()).map_err(|errno| unusable(errno.into()))?;
        Ok(Self { directory, path: path.to_owned(), access, lock: None, files: BTreeMap::new(), next: 0 })
    }

    /// The path it was opened by, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An open file: for implementations of [`crate::Disk`] on top of this. A request under way keeps it.
    #[must_use]
    pub fn file(&self, id: FileId) -> Option<Arc<File>> {
        self.files.get(&id).cloned()
    }

    /// The same file once more, with further flags (O_DIRECT).
    ///
    /// # Errors
    /// What the kernel says; [`DiskError::BadRequest`] for an unknown id.
    pub fn reopen(&self, id: FileId, flags: OFlags) -> Result<File, DiskError> {
        let link = format!("/proc/self/fd/{}", self.known(id)?.as_raw_fd());
        let opened = fs::open(link, OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::empty())?;
        Ok(opened.into())
    }

    /// An empty file that has no name and goes with its last descriptor: to try things out.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create_unnamed(&mut self) -> Result<FileId, DiskError> {
        self.writable()?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = match fs::openat(&self.directory, ".", flags | OFlags::TMPFILE, mode) {
            Ok(file) => file.into(),
            // Not every file system can: a name for a moment.
            Err(_) => {
                let name = format!("unnamed-{}", std::process::id());
                let file = self.open_at(&name, OFlags::CREATE | OFlags::EXCL)?;
                fs::unlinkat(&self.directory, &*name, AtFlags::empty())?;
                file
            }
        };
        Ok(self.keep(file))
    }

    fn known(&self, id: FileId) -> Result<&File, DiskError> {
        self.files.get(&id).map(Arc::as_ref).ok_or(DiskError::BadRequest("the file is not open"))
    }

    fn keep(&mut self, file: File) -> FileId {
        self.next += 1;
        self.files.insert(FileId(self.next), Arc::new(file));
        FileId(self.next)
    }

    fn open_at(&self, name: &str, flags: OFlags) -> Result<File, DiskError> {
        let access = match self.access {
            Access::ReadWrite => OFlags::RDWR,
            Access::ReadOnly => OFlags::RDONLY,
        };
        let flags = flags | access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(fs::openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)?);
        let kind = FileType::from_raw_mode(fs::fstat(&file)?.st_mode);
        if kind == FileType::RegularFile { Ok(file) } else { Err(DiskError::NotAFile) }
    }

    fn writable(&self) -> Result<(), DiskError> {
        if self.access == Access::ReadWrite { Ok(()) } else { Err(DiskError::ReadOnly) }
    }
}

impl Directory for HostDirectory {
    fn lock(&mut self, name: &str) -> Result<(), DiskError> {
        if self.lock.is_some() {
            return Ok(());
        }
        let file = match self.access {
            Access::ReadWrite => self.open_at(name, OFlags::CREATE)?,
            Access::ReadOnly => match self.open_at(name, OFlags::empty()) {
                Err(DiskError::NotFound) => return Ok(()),
                other => other?,
            },
        };
        match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.lock = Some(file);
                Ok(())
            }
            Err(Errno::WOULDBLOCK) => Err(DiskError::Locked),
            Err(errno) => Err(errno.into()),
        }
    }

    fn list(&mut self) -> Result<Vec<FileEntry>, DiskError> {
        let mut entries = Vec::new();
        for entry in fs::Dir::read_from(&self.directory)? {
            let entry = entry?;
            // Names that are not UTF-8 are not ours.
            let Ok(name) = entry.file_name().to_str().map(str::to_owned) else {
                continue;
            };
            if name == "." || name == ".." {
                continue;
            }
            let regular = match entry.file_type() {
                FileType::Unknown => match fs::statat(&self.directory, &*name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
                    Err(_) => false,
                },
                kind => kind == FileType::RegularFile,
            };
            entries.push(FileEntry { name, regular });
        }
        Ok(entries)
    }

    fn open(&mut self, name: &str) -> Result<FileId, DiskError> {
        let file = self.open_at(name, OFlags::empty())?;
        if self.access == Access::ReadOnly {
            // Advice: without it the page cache may answer for the device, which is all that is lost.
            let _ = fs::fadvise(&file, 0, None, Advice::DontNeed);
            let _ = fs::fadvise(&file, 0, None, Advice::Sequential);
        }
        Ok(self.keep(file))
    }

    fn create(&mut self, name: &str, bytes: u64) -> Result<FileId, DiskError> {
        self.writable()?;
        let file = self.open_at(name, OFlags::CREATE | OFlags::EXCL)?;
        let allocated = match fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            // Not every file system can: its files grow, and are charged in full all the same.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => fs::ftruncate(&file, bytes),
            other => other,
        };
        if let Err(errno) = allocated {
            fs::unlinkat(&self.directory, name, AtFlags::empty())?;
            return Err(errno.into());
        }
        Ok(self.keep(file))
    }

    fn close(&mut self, file: FileId) {
        self.files.remove(&file);
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.writable()?;
        Ok(fs::unlinkat(&self.directory, name, AtFlags::empty())?)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.writable()?;
        Ok(fs::renameat(&self.directory, from, &self.directory, to)?)
    }

    fn read(&mut self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        Ok(self.known(file)?.read_exact_at(bytes, offset)?)
    }

    fn write(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.writable()?;
        Ok(self.known(file)?.write_all_at(bytes, offset)?)
    }

    fn sync(&mut self, file: FileId) -> Result<(), DiskError> {
        Ok(self.known(file)?.sync_all()?)
    }

    fn sync_directory(&mut self) -> Result<(), DiskError> {
        Ok(fs::fsync(&self.directory)?)
    }

    fn size(&mut self, file: FileId) -> Result<FileSize, DiskError> {
        let stat = fs::fstat(self.known(file)?)?;
        let number = |value: i64| u64::try_from(value).unwrap_or(0);
        Ok(FileSize { bytes: number(stat.st_size), allocated_bytes: number(stat.st_blocks) * 512 })
    }

    fn own_bytes(&mut self) -> Result<u64, DiskError> {
        let stat = fs::fstat(&self.directory)?;
        Ok(u64::try_from(stat.st_blocks).unwrap_or(0) * 512)
    }

    fn space(&mut self) -> Result<Space, DiskError> {
        let stat = fs::fstatvfs(&self.directory)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space { free_bytes: bytes(stat.f_bavail), total_bytes: bytes(stat.f_blocks) })
    }
}
