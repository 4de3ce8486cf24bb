//! Files of one cache directory: rare, small and synchronous.

use crate::error::DiskError;

/// An open file of the directory; given by [`Directory::open`] and [`Directory::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// What lies under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// The name, without a directory.
    pub name: String,
    /// Whether it is a regular file. Symbolic links are not followed.
    pub regular: bool,
}

/// Size of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSize {
    /// As a reader sees it.
    pub bytes: u64,
    /// What the file system has given to it (`st_blocks * 512`).
    pub allocated_bytes: u64,
}

/// Room of the file system that the directory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What an ordinary user can still write.
    pub free_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

/// A flat directory of files, owned by one process at a time.
///
/// Everything here is synchronous: it happens at start, at the end, and once or twice a segment. Pages go
/// through [`crate::Disk`]. Nothing is durable before [`Directory::sync`] (data of a file) or
/// [`Directory::sync_directory`] (names). Offsets and lengths need no alignment here.
pub trait Directory {
    /// Takes the lock of the file `name`, which is created if missing, until `self` is dropped. There is one
    /// lock a directory; who has it keeps it.
    ///
    /// # Errors
    /// [`DiskError::Locked`] if another open directory holds it, in this process or another.
    fn lock(&mut self, name: &str) -> Result<(), DiskError>;

    /// Everything in the directory, in any order.
    ///
    /// # Errors
    /// What the file system says.
    fn list(&mut self) -> Result<Vec<FileEntry>, DiskError>;

    /// Opens a regular file for reading and writing. A name that is open already gives another id.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] if there is none; [`DiskError::NotAFile`] for a symbolic link or anything else.
    fn open(&mut self, name: &str) -> Result<FileId, DiskError>;

    /// Creates a file of `bytes` zeros, with all of its room allocated where the file system can do that.
    /// After an error there is no such file.
    ///
    /// # Errors
    /// [`DiskError::Exists`] if the name is taken; [`DiskError::NoSpace`] if the file system is full.
    fn create(&mut self, name: &str, bytes: u64) -> Result<FileId, DiskError>;

    /// Forgets an id. I/O under way ends as if it had not been forgotten. Unknown ids are ignored.
    fn close(&mut self, file: FileId);

    /// Removes a name. Its room is free when the last id of it has been closed.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] if there is none.
    fn remove(&mut self, name: &str) -> Result<(), DiskError>;

    /// Gives a file another name, atomically; what had that name is gone.
    ///
    /// # Errors
    /// [`DiskError::NotFound`] if there is none.
    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// [`DiskError::Short`] if the file ends before that.
    fn read(&mut self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// What the file system says; part of the bytes may have been written.
    fn write(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;

    /// Makes durable what has been written to the file, pages included.
    ///
    /// # Errors
    /// What the file system says.
    fn sync(&mut self, file: FileId) -> Result<(), DiskError>;

    /// Makes names durable.
    ///
    /// # Errors
    /// What the file system says.
    fn sync_directory(&mut self) -> Result<(), DiskError>;

    /// Size of a file.
    ///
    /// # Errors
    /// What the file system says.
    fn size(&mut self, file: FileId) -> Result<FileSize, DiskError>;

    /// Bytes that the directory itself has been given.
    ///
    /// # Errors
    /// What the file system says.
    fn own_bytes(&mut self) -> Result<u64, DiskError>;

    /// Room of the file system.
    ///
    /// # Errors
    /// What the file system says.
    fn space(&mut self) -> Result<Space, DiskError>;
}
