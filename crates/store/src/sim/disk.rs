//! The process's end of it.

use super::file::SimFile;
use super::rng::Rng;
use super::storage::{Change, Storage};
use crate::directory::{Directory, FileEntry, FileId, FileSize, Space};
use crate::disk::{Completion, Direction, Disk, Rejected, Request};
use crate::error::DiskError;
use crate::file_disk::refusal;
use crate::format::{BLOCK_BYTES, BLOCK_BYTES_U64};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// EIO.
const EIO: DiskError = DiskError::Io { errno: 5 };
const UNKNOWN: DiskError = DiskError::BadRequest("the file is not open");
/// Requests that are queued at most.
const QUEUE: usize = 64;

/// What goes wrong, and how often in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Reads of pages that end in EIO.
    pub read_errors: u64,
    /// Writes of pages that write some sectors and end in EIO.
    pub write_errors: u64,
    /// Writes of pages that write some sectors and end in ENOSPC.
    pub full: u64,
    /// Synchronous reads that end in EIO.
    pub file_read_errors: u64,
    /// Synchronous writes that write some sectors and end in EIO.
    pub file_write_errors: u64,
    /// A request takes up to so many polls; zero: the next poll ends it.
    pub slow_polls: u64,
}

#[derive(Debug)]
struct Queued {
    request: Request<Vec<u8>>,
    /// Which file; it may be closed meanwhile.
    number: u64,
    polls: u64,
}

/// A handle on a simulated directory. Several handles on one directory are several processes.
#[derive(Debug)]
pub struct SimDisk {
    storage: Rc<RefCell<Storage>>,
    open: BTreeMap<FileId, u64>,
    next: u32,
    queue: Vec<Queued>,
    rng: Rng,
    faults: Faults,
    holds_lock: bool,
}

impl Drop for SimDisk {
    fn drop(&mut self) {
        if self.holds_lock {
            self.storage.borrow_mut().locked = false;
        }
    }
}

impl SimDisk {
    /// An empty directory on a file system of `total_bytes`.
    #[must_use]
    pub fn new(total_bytes: u64, seed: u64) -> Self {
        Self::on(Rc::new(RefCell::new(Storage::new(total_bytes))), seed)
    }

    fn on(storage: Rc<RefCell<Storage>>, seed: u64) -> Self {
        Self {
            storage,
            open: BTreeMap::new(),
            next: 0,
            queue: Vec::new(),
            rng: Rng::new(seed),
            faults: Faults::default(),
            holds_lock: false,
        }
    }

    /// Another process on the same directory.
    #[must_use]
    pub fn another(&self, seed: u64) -> Self {
        Self::on(Rc::clone(&self.storage), seed)
    }

    /// The power goes off and on. The handle is gone, whoever had it.
    #[must_use]
    pub fn crash(mut self) -> Self {
        // What was submitted may have reached the disk in any part and order.
        while !self.queue.is_empty() {
            let at = usize::try_from(self.rng.below(self.queue.len() as u64)).unwrap_or(0);
            let queued = self.queue.swap_remove(at);
            if queued.request.direction == Direction::Write {
                self.write_pages(&queued, usize::MAX);
            }
        }
        self.storage.borrow_mut().crash(&mut self.rng);
        self.holds_lock = false;
        let seed = self.rng.next_u64();
        Self::on(Rc::clone(&self.storage), seed)
    }

    /// Everything that was written becomes durable, as it does by itself after a while.
    pub fn settle(&mut self) {
        let mut storage = self.storage.borrow_mut();
        storage.files.values_mut().for_each(SimFile::sync);
        storage.sync_names();
    }

    /// From now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Changes the size of the file system.
    pub fn set_total_bytes(&mut self, total_bytes: u64) {
        self.storage.borrow_mut().total_bytes = total_bytes;
    }

    /// Limits what may be allocated without saying so in [`Directory::space`].
    pub fn set_quota_bytes(&mut self, quota_bytes: u64) {
        self.storage.borrow_mut().quota_bytes = quota_bytes;
    }

    /// The most that was ever allocated at once.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.storage.borrow().peak_bytes
    }

    /// Takes a request that ends with the `polls`-th poll from now.
    ///
    /// # Panics
    /// If it is refused.
    #[allow(clippy::panic, reason = "only tests call it")]
    pub fn submit_later(&mut self, request: Request<Vec<u8>>, polls: u64) {
        if let Err(rejected) = self.submit(request) {
            panic!("refused: {}", rejected.reason);
        }
        if let Some(queued) = self.queue.last_mut() {
            queued.polls = polls;
        }
    }

    /// Has every write to a file and its removal be denied, or not any more, as an attribute of the file does.
    pub fn protect(&mut self, name: &str, protected: bool) {
        let mut storage = self.storage.borrow_mut();
        if protected {
            storage.protected.insert(name.to_owned());
        } else {
            storage.protected.remove(name);
        }
    }

    /// All bytes of a file.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let storage = self.storage.borrow();
        let file = storage.files.get(storage.names.get(name)?)?;
        let mut bytes = vec![0; usize::try_from(file.bytes).ok()?];
        file.read(0, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Writes behind everybody's back, durably; makes the file if there is none.
    pub fn overwrite(&mut self, name: &str, offset: u64, bytes: &[u8]) {
        let mut storage = self.storage.borrow_mut();
        let known = storage.names.get(name).copied();
        let number = known.unwrap_or_else(|| storage.create(name, 0));
        if let Some(file) = storage.files.get_mut(&number) {
            file.write(offset, bytes);
            file.sync();
        }
        storage.sync_names();
    }

    /// Flips one bit of a file.
    pub fn flip(&mut self, name: &str, bit: u64) {
        let byte = self.contents(name).and_then(|bytes| bytes.get((bit / 8) as usize).copied());
        if let Some(byte) = byte {
            self.overwrite(name, bit / 8, &[byte ^ 1 << (bit % 8)]);
        }
    }

    /// Cuts a file.
    pub fn truncate(&mut self, name: &str, bytes: u64) {
        let mut storage = self.storage.borrow_mut();
        let number = storage.names.get(name).copied();
        if let Some(file) = number.and_then(|number| storage.files.get_mut(&number)) {
            file.truncate(bytes);
        }
    }

    fn with<T>(
        &self,
        id: FileId,
        run: impl FnOnce(&mut SimFile) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        let number = *self.open.get(&id).ok_or(UNKNOWN)?;
        run(self.storage.borrow_mut().files.get_mut(&number).ok_or(UNKNOWN)?)
    }

    /// Writes the first `sectors` of a request.
    fn write_pages(&self, queued: &Queued, sectors: usize) {
        let request = &queued.request;
        let bytes = (request.bytes as usize).min(sectors.saturating_mul(BLOCK_BYTES));
        if let Some(file) = self.storage.borrow_mut().files.get_mut(&queued.number) {
            file.write(request.offset, &request.buffer[..bytes]);
        }
    }

    fn carry_out(&mut self, queued: &mut Queued) -> Result<(), DiskError> {
        let (sectors, offset) = (queued.request.bytes as usize / BLOCK_BYTES, queued.request.offset);
        if queued.request.direction == Direction::Read {
            if self.rng.chance(self.faults.read_errors) {
                return Err(EIO);
            }
            let storage = self.storage.borrow();
            let file = storage.files.get(&queued.number).ok_or(UNKNOWN)?;
            return file.read(offset, &mut queued.request.buffer[..sectors * BLOCK_BYTES]);
        }
        let failed = self.rng.chance(self.faults.write_errors);
        let full = self.rng.chance(self.faults.full);
        if failed || full {
            let part = self.rng.below(sectors as u64);
            self.write_pages(queued, usize::try_from(part).unwrap_or(0));
            return Err(if failed { EIO } else { DiskError::NoSpace });
        }
        self.write_pages(queued, sectors);
        Ok(())
    }
}

impl Disk for SimDisk {
    type Buffer = Vec<u8>;

    fn submit(&mut self, request: Request<Vec<u8>>) -> Result<(), Rejected<Vec<u8>>> {
        let full = (self.queue.len() >= QUEUE).then_some(DiskError::Busy);
        if let Some(reason) = refusal(&request).or(full) {
            return Err(Rejected { reason, request });
        }
        let Some(&number) = self.open.get(&request.file) else {
            return Err(Rejected { reason: UNKNOWN, request });
        };
        let polls = self.rng.below(self.faults.slow_polls + 1);
        self.queue.push(Queued { request, number, polls });
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion<Vec<u8>>>) {
        let queue = std::mem::take(&mut self.queue);
        for mut queued in queue {
            if queued.polls > 0 {
                queued.polls -= 1;
                self.queue.push(queued);
                continue;
            }
            let result = self.carry_out(&mut queued);
            let Request { token, buffer, .. } = queued.request;
            done.push(Completion { token, result, buffer });
        }
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }
}

impl Directory for SimDisk {
    fn lock(&mut self, name: &str) -> Result<(), DiskError> {
        if self.holds_lock {
            return Ok(());
        }
        let mut storage = self.storage.borrow_mut();
        if storage.locked {
            return Err(DiskError::Locked);
        }
        if !storage.names.contains_key(name) {
            storage.create(name, 0);
        }
        storage.locked = true;
        self.holds_lock = true;
        Ok(())
    }

    fn list(&mut self) -> Result<Vec<FileEntry>, DiskError> {
        let storage = self.storage.borrow();
        Ok(storage.names.keys().map(|name| FileEntry { name: name.clone(), regular: true }).collect())
    }

    fn open(&mut self, name: &str) -> Result<FileId, DiskError> {
        let number = *self.storage.borrow().names.get(name).ok_or(DiskError::NotFound)?;
        self.next += 1;
        self.open.insert(FileId(self.next), number);
        Ok(FileId(self.next))
    }

    fn create(&mut self, name: &str, bytes: u64) -> Result<FileId, DiskError> {
        {
            let mut storage = self.storage.borrow_mut();
            if storage.names.contains_key(name) {
                return Err(DiskError::Exists);
            }
            let allocated = bytes.next_multiple_of(BLOCK_BYTES_U64);
            if storage.allocated_bytes() + allocated > storage.total_bytes.min(storage.quota_bytes) {
                return Err(DiskError::NoSpace);
            }
            storage.create(name, bytes);
        }
        self.open(name)
    }

    fn close(&mut self, file: FileId) {
        self.open.remove(&file);
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        let mut storage = self.storage.borrow_mut();
        if !storage.names.contains_key(name) {
            return Err(DiskError::NotFound);
        }
        if storage.protected.contains(name) {
            return Err(DiskError::Denied);
        }
        storage.change(Change::Remove { name: name.to_owned() });
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        let mut storage = self.storage.borrow_mut();
        if !storage.names.contains_key(from) {
            return Err(DiskError::NotFound);
        }
        storage.change(Change::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn read(&mut self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        if self.rng.chance(self.faults.file_read_errors) {
            return Err(EIO);
        }
        self.with(file, |file| file.read(offset, bytes))
    }

    fn write(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        if self.open.get(&file).is_some_and(|number| self.storage.borrow().is_protected(*number)) {
            return Err(DiskError::Denied);
        }
        if self.rng.chance(self.faults.file_write_errors) {
            let sectors = self.rng.below(bytes.len().div_ceil(BLOCK_BYTES) as u64);
            let part = usize::try_from(sectors).unwrap_or(0) * BLOCK_BYTES;
            self.with(file, |file| {
                file.write(offset, &bytes[..part]);
                Ok(())
            })?;
            return Err(EIO);
        }
        self.with(file, |file| {
            file.write(offset, bytes);
            Ok(())
        })
    }

    fn sync(&mut self, file: FileId) -> Result<(), DiskError> {
        self.with(file, |file| {
            file.sync();
            Ok(())
        })
    }

    fn sync_directory(&mut self) -> Result<(), DiskError> {
        let mut storage = self.storage.borrow_mut();
        storage.sync_names();
        Ok(())
    }

    fn size(&mut self, file: FileId) -> Result<FileSize, DiskError> {
        self.with(file, |file| Ok(FileSize { bytes: file.bytes, allocated_bytes: file.allocated_bytes() }))
    }

    fn own_bytes(&mut self) -> Result<u64, DiskError> {
        Ok(BLOCK_BYTES_U64)
    }

    fn space(&mut self) -> Result<Space, DiskError> {
        let storage = self.storage.borrow();
        let free_bytes = storage.total_bytes.saturating_sub(storage.allocated_bytes());
        Ok(Space { free_bytes, total_bytes: storage.total_bytes })
    }
}
