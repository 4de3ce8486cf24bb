//! Pages on ordinary files, one request at a time: where nothing faster is allowed, and for tools and tests.

use crate::directory::{Directory, FileEntry, FileId, FileSize, Space};
use crate::disk::{Completion, Direction, Disk, Priority, Rejected, Request};
use crate::error::DiskError;
use crate::format::{BLOCK_BYTES, BLOCK_BYTES_U64};
use crate::host_directory::HostDirectory;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Requests that are queued at most.
const QUEUE: usize = 1024;
/// One request in so many is the oldest of all, whatever its priority.
const FAIRNESS: u64 = 8;

/// `pread` and `pwrite` on the files of a [`HostDirectory`], through the page cache.
///
/// A request is carried out by the `poll` that hands it back: one a call, the highest priority first.
#[derive(Debug)]
pub struct FileDisk<B> {
    directory: HostDirectory,
    queue: BTreeMap<(Priority, u64), (Arc<File>, Request<B>)>,
    taken: u64,
    done: u64,
}

impl<B> FileDisk<B> {
    /// On that directory.
    #[must_use]
    pub fn new(directory: HostDirectory) -> Self {
        Self { directory, queue: BTreeMap::new(), taken: 0, done: 0 }
    }

    fn next(&mut self) -> Option<(Arc<File>, Request<B>)> {
        self.done += 1;
        if self.done.is_multiple_of(FAIRNESS) {
            let oldest = self.queue.keys().min_by_key(|(_, number)| *number).copied()?;
            return self.queue.remove(&oldest);
        }
        self.queue.pop_first().map(|(_, taken)| taken)
    }
}

/// Why a request can never be carried out; what every implementation refuses at `submit`.
pub(crate) fn refusal<B: AsRef<[u8]>>(request: &Request<B>) -> Option<DiskError> {
    let bytes = request.bytes as usize;
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES) {
        return Some(DiskError::BadRequest("length is not a positive multiple of 4096"));
    }
    if !request.offset.is_multiple_of(BLOCK_BYTES_U64) {
        return Some(DiskError::BadRequest("offset is not a multiple of 4096"));
    }
    (bytes > request.buffer.as_ref().len()).then_some(DiskError::BadRequest("longer than its buffer"))
}

/// Both ways resume after interruptions and partial transfers.
fn carry_out<B: AsRef<[u8]> + AsMut<[u8]>>(file: &File, request: &mut Request<B>) -> Result<(), DiskError> {
    let bytes = request.bytes as usize;
    match request.direction {
        Direction::Read => file.read_exact_at(&mut request.buffer.as_mut()[..bytes], request.offset)?,
        Direction::Write => file.write_all_at(&request.buffer.as_ref()[..bytes], request.offset)?,
    }
    Ok(())
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Disk for FileDisk<B> {
    type Buffer = B;

    fn submit(&mut self, request: Request<B>) -> Result<(), Rejected<B>> {
        let full = (self.queue.len() >= QUEUE).then_some(DiskError::Busy);
        if let Some(reason) = refusal(&request).or(full) {
            return Err(Rejected { reason, request });
        }
        let Some(file) = self.directory.file(request.file) else {
            return Err(Rejected { reason: DiskError::BadRequest("the file is not open"), request });
        };
        self.taken += 1;
        self.queue.insert((request.priority, self.taken), (file, request));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion<B>>) {
        if let Some((file, mut request)) = self.next() {
            let result = carry_out(&file, &mut request);
            done.push(Completion { token: request.token, result, buffer: request.buffer });
        }
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }
}

/// Files are the directory's own.
impl<B> Directory for FileDisk<B> {
    fn lock(&mut self, name: &str) -> Result<(), DiskError> {
        self.directory.lock(name)
    }

    fn list(&mut self) -> Result<Vec<FileEntry>, DiskError> {
        self.directory.list()
    }

    fn open(&mut self, name: &str) -> Result<FileId, DiskError> {
        self.directory.open(name)
    }

    fn create(&mut self, name: &str, bytes: u64) -> Result<FileId, DiskError> {
        self.directory.create(name, bytes)
    }

    fn close(&mut self, file: FileId) {
        self.directory.close(file);
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.directory.remove(name)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.directory.rename(from, to)
    }

    fn read(&mut self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        self.directory.read(file, offset, bytes)
    }

    fn write(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.directory.write(file, offset, bytes)
    }

    fn sync(&mut self, file: FileId) -> Result<(), DiskError> {
        self.directory.sync(file)
    }

    fn sync_directory(&mut self) -> Result<(), DiskError> {
        self.directory.sync_directory()
    }

    fn size(&mut self, file: FileId) -> Result<FileSize, DiskError> {
        self.directory.size(file)
    }

    fn own_bytes(&mut self) -> Result<u64, DiskError> {
        self.directory.own_bytes()
    }

    fn space(&mut self) -> Result<Space, DiskError> {
        self.directory.space()
    }
}
