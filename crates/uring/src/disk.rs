//! The disk of an I/O thread.

use crate::config::{DiskConfig, DiskEngine};
use crate::engine::EngineKind;
use crate::files::PageFiles;
use crate::job::{Job, refusal};
use crate::mode::{DiskMode, Engine};
use crate::page_io::PageIo;
use crate::ring::Ring;
use crate::threads::Threads;
use crate::waker::Waker;
use crate::{IoBuffer, OpenError};
use orbitkv_shm::Region;
use orbitkv_store::{
    Completion, Directory, Disk, DiskError, FileEntry, FileId, FileSize, HostDirectory, Priority, Rejected,
    Request, Space,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait before the kernel is offered again what it has not taken.
const STALLED: Duration = Duration::from_millis(1);

/// Pages of a [`HostDirectory`], through io_uring or threads. See the crate.
///
/// Dropped, it gives up what waits for its turn and waits for what the kernel has, [`DiskConfig::drop_wait`] at
/// most. After that everything is leaked, until the process ends: memory, ring, and the directory with its lock,
/// because a write that is still under way must not meet another owner.
#[derive(Debug)]
pub struct PageDisk {
    pub(crate) parts: ManuallyDrop<Parts>,
    pub(crate) waker: Waker,
    pub(crate) mode: DiskMode,
    max_requests: usize,
    max_transfer_bytes: u32,
    max_background_transfer_bytes: u32,
    drop_wait: Duration,
    pub(crate) in_flight: usize,
}

/// What must outlive whatever the kernel has.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) engine: EngineKind,
    pub(crate) files: PageFiles,
    pub(crate) directory: HostDirectory,
}

impl PageDisk {
    /// A disk on that directory, after a page went out and came back. [`PageIo::mode`] tells what it has become.
    ///
    /// # Errors
    /// [`OpenError::Config`]; [`OpenError::Ring`] where io_uring was asked for and is refused;
    /// [`OpenError::SelfTest`] where pages cannot be written and read back; [`OpenError::Resource`].
    pub fn open(directory: HostDirectory, config: &DiskConfig) -> Result<Self, OpenError> {
        config.check()?;
        let resource = |what| move |source| OpenError::Resource { what, source };
        let waker = Waker::new().map_err(resource("make an eventfd"))?;
        let mut mode = DiskMode { engine: Engine::Threads, direct: true, registered: false, why: None };
        let engine = match ring(config, &waker) {
            Ok(ring) => {
                mode.engine = Engine::IoUring;
                mode.registered = ring.is_registered();
                if let Some(reason) = ring.registration_refusal() {
                    mode.add_reason(reason.to_owned());
                }
                EngineKind::Ring(Box::new(ring))
            }
            Err(reason) if config.engine == DiskEngine::IoUring => return Err(OpenError::Ring { reason }),
            Err(reason) => {
                mode.add_reason(reason);
                let threads = Threads::start(config, waker.clone()).map_err(resource("start a thread"))?;
                EngineKind::Threads(threads)
            }
        };
        if !config.direct {
            mode.direct = false;
            mode.add_reason("O_DIRECT is switched off".to_owned());
        }
        let mut disk = Self {
            parts: ManuallyDrop::new(Parts { engine, files: PageFiles::default(), directory }),
            waker,
            mode,
            max_requests: config.max_requests,
            max_transfer_bytes: config.max_transfer_bytes,
            max_background_transfer_bytes: config.max_background_transfer_bytes,
            drop_wait: config.drop_wait,
            in_flight: 0,
        };
        disk.test_itself(config)?;
        Ok(disk)
    }

    /// True when the kernel has nothing any more, false when that takes longer than it may.
    fn drain(&mut self) -> bool {
        self.parts.engine.stop();
        let deadline = Instant::now() + self.drop_wait;
        let mut done = Vec::new();
        loop {
            self.parts.engine.poll(&mut done);
            done.clear();
            if self.parts.engine.is_idle() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.wait(Some(left)).is_err() {
                return false;
            }
        }
    }
}

fn ring(config: &DiskConfig, waker: &Waker) -> Result<Ring, String> {
    match config.engine {
        DiskEngine::Threads => Err("io_uring is switched off".to_owned()),
        DiskEngine::Auto | DiskEngine::IoUring => Ring::start(config, waker.clone()),
    }
}

impl Drop for PageDisk {
    fn drop(&mut self) {
        if self.drain() {
            // SAFETY: once, here, and nothing uses the parts after it.
            unsafe { ManuallyDrop::drop(&mut self.parts) };
        }
    }
}

impl Disk for PageDisk {
    type Buffer = IoBuffer;

    fn submit(&mut self, request: Request<IoBuffer>) -> Result<(), Rejected<IoBuffer>> {
        let full = (self.in_flight >= self.max_requests).then_some(DiskError::Busy);
        if let Some(reason) = refusal(&request).or(full) {
            return Err(Rejected { reason, request });
        }
        let Parts { engine, files, directory } = &mut *self.parts;
        match files.get(directory, request.file, &mut self.mode) {
            Ok(file) => {
                let step_bytes = match request.priority {
                    Priority::Background => self.max_background_transfer_bytes.min(self.max_transfer_bytes),
                    Priority::Demand | Priority::Preparation => self.max_transfer_bytes,
                };
                engine.submit(Job::new(request, file, step_bytes));
            }
            Err(reason) => return Err(Rejected { reason, request }),
        }
        self.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion<IoBuffer>>) {
        let before = done.len();
        self.parts.engine.poll(done);
        self.in_flight -= done.len() - before;
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl PageIo for PageDisk {
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let stalled = self.parts.engine.is_stalled();
        let limit = if stalled { Some(timeout.map_or(STALLED, |limit| limit.min(STALLED))) } else { timeout };
        // Longer than the kernel can count is for ever.
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let woken = match poll(&mut [PollFd::new(&self.waker, PollFlags::IN)], limit.as_ref()) {
            Ok(ready) => ready > 0,
            Err(Errno::INTR) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        };
        if woken {
            self.waker.clear();
        }
        Ok(woken || stalled)
    }

    fn wakes(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn oldest_in_flight(&self, now: Instant) -> Option<Duration> {
        self.parts.engine.oldest_in_flight(now)
    }

    fn mode(&self) -> &DiskMode {
        &self.mode
    }

    fn add_segment(&mut self, region: &Arc<Region>) {
        let EngineKind::Ring(ring) = &mut self.parts.engine else { return };
        if let Err(reason) = ring.add_segment(region) {
            self.mode.add_reason(reason);
        }
        self.mode.registered = ring.is_registered();
    }

    fn remove_segment(&mut self, region: &Arc<Region>) {
        let EngineKind::Ring(ring) = &mut self.parts.engine else { return };
        ring.remove_segment(region);
        self.mode.registered = ring.is_registered();
    }
}

/// Files are the directory's own.
impl Directory for PageDisk {
    fn lock(&mut self, name: &str) -> Result<(), DiskError> {
        self.parts.directory.lock(name)
    }

    fn list(&mut self) -> Result<Vec<FileEntry>, DiskError> {
        self.parts.directory.list()
    }

    fn open(&mut self, name: &str) -> Result<FileId, DiskError> {
        self.parts.directory.open(name)
    }

    fn create(&mut self, name: &str, bytes: u64) -> Result<FileId, DiskError> {
        self.parts.directory.create(name, bytes)
    }

    fn close(&mut self, file: FileId) {
        self.parts.files.forget(file);
        self.parts.directory.close(file);
    }

    fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.parts.directory.remove(name)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.parts.directory.rename(from, to)
    }

    fn read(&mut self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        self.parts.directory.read(file, offset, bytes)
    }

    fn write(&mut self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.parts.directory.write(file, offset, bytes)
    }

    fn sync(&mut self, file: FileId) -> Result<(), DiskError> {
        self.parts.directory.sync(file)
    }

    fn sync_directory(&mut self) -> Result<(), DiskError> {
        self.parts.directory.sync_directory()
    }

    fn size(&mut self, file: FileId) -> Result<FileSize, DiskError> {
        self.parts.directory.size(file)
    }

    fn own_bytes(&mut self) -> Result<u64, DiskError> {
        self.parts.directory.own_bytes()
    }

    fn space(&mut self) -> Result<Space, DiskError> {
        self.parts.directory.space()
    }
}
