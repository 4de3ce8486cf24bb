//! A disk that fails when it is told to.

use crate::ssd::copying_disk::CopiedPage;
use crate::ssd::page_disk::PageDisk;
use crate::tier::Bell;
use orbitkv_store::{
    Completion, Direction, Directory, Disk, DiskError, FileDisk, FileEntry, FileId, FileSize, Rejected,
    Request, Space,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The next so many requests of a direction end in that error.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) direction: Direction,
    pub(super) error: DiskError,
    pub(super) times: u32,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) fault: Option<Fault>,
    /// Nothing ends.
    pub(super) stalled: bool,
}

#[derive(Debug)]
pub(super) struct FaultyDisk {
    inner: FileDisk<CopiedPage>,
    plan: Arc<Mutex<Plan>>,
    failed: VecDeque<Completion<CopiedPage>>,
}

impl FaultyDisk {
    pub(super) fn new(inner: FileDisk<CopiedPage>, plan: Arc<Mutex<Plan>>) -> Self {
        Self { inner, plan, failed: VecDeque::new() }
    }
}

impl Disk for FaultyDisk {
    type Buffer = CopiedPage;

    fn submit(&mut self, request: Request<CopiedPage>) -> Result<(), Rejected<CopiedPage>> {
        let mut plan = self.plan.lock().unwrap();
        let hit = plan.fault.as_mut().filter(|fault| fault.direction == request.direction && fault.times > 0);
        let Some(fault) = hit else { return self.inner.submit(request) };
        fault.times -= 1;
        let result = Err(fault.error.clone());
        self.failed.push_back(Completion { token: request.token, result, buffer: request.buffer });
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion<CopiedPage>>) {
        if !self.plan.lock().unwrap().stalled {
            done.extend(self.failed.drain(..));
            self.inner.poll(done);
        }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.failed.len()
    }
}

impl PageDisk for FaultyDisk {
    fn bell(&self) -> Option<Bell> {
        None
    }

    fn wait(&mut self, timeout: Duration) {
        let short = Duration::from_millis(1);
        std::thread::park_timeout(if self.in_flight() > 0 { short } else { timeout });
    }

    fn mode(&self) -> String {
        "faulty".to_owned()
    }

    fn engine(&self) -> &'static str {
        "faulty"
    }
}

impl Directory for FaultyDisk {
    fn lock(&mut self, name: &str) -> Result<(), DiskError> {
        self.inner.lock(name)
    }

    fn list(&mut self) -> Result<Vec<FileEntry>, DiskError> {
        self.inner.list()
    }

    fn open(&mut self, name: &str) -> Result<FileId, DiskError> {
        self.inner.open(name)
    }

    fn create(&mut self, name: &str, bytes: u64) -> Result<FileId, DiskError> {
        self.inner.create(name, bytes)
    }

    fn close(&mut self, file: FileId) {
        self.inner.close(file);
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.inner.remove(name)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.inner.rename(from, to)
    }

    fn read(&mut self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        self.inner.read(file, offset, bytes)
    }

    fn write(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.inner.write(file, offset, bytes)
    }

    fn sync(&mut self, file: FileId) -> Result<(), DiskError> {
        self.inner.sync(file)
    }

    fn sync_directory(&mut self) -> Result<(), DiskError> {
        self.inner.sync_directory()
    }

    fn size(&mut self, file: FileId) -> Result<FileSize, DiskError> {
        self.inner.size(file)
    }

    fn own_bytes(&mut self) -> Result<u64, DiskError> {
        self.inner.own_bytes()
    }

    fn space(&mut self) -> Result<Space, DiskError> {
        self.inner.space()
    }
}
