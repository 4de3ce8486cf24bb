//! A disk that fails by plan, around a real one: for tests.

use crate::{DiskMode, IoBuffer, PageIo, Waker};
use orbitkv_shm::Region;
use orbitkv_store::{
    Completion, Direction, Directory, Disk, DiskError, FileEntry, FileId, FileSize, Rejected, Request, Space,
};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It never reaches the disk, and ends with this error at the next poll.
    Error(DiskFault),
    /// It is carried out, and its completion is held back for so long.
    Slow(Duration),
    /// It is carried out, and its completion is held back until [`FaultDisk::release`].
    Stuck,
}

/// An error as the kernel has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// EIO.
    Io,
    /// The file ends early. Of a write, half of it is done.
    Short,
    /// ENOSPC. Half of the write is done.
    NoSpace,
    /// EROFS.
    ReadOnly,
}

impl From<DiskFault> for DiskError {
    fn from(fault: DiskFault) -> Self {
        match fault {
            DiskFault::Io => Self::Io { errno: 5 },
            DiskFault::Short => Self::Short,
            DiskFault::NoSpace => Self::NoSpace,
            DiskFault::ReadOnly => Self::ReadOnly,
        }
    }
}

/// One entry of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Which requests.
    pub direction: Direction,
    /// So many of that direction pass before it.
    pub after: u64,
    /// So many are hit; `u64::MAX` for all from then on.
    pub count: u64,
    /// What happens to them.
    pub fault: Fault,
}

#[derive(Debug)]
struct Held {
    completion: Completion<IoBuffer>,
    since: Instant,
    /// `None`: until it is released.
    until: Option<Instant>,
}

/// A real disk, and a plan. The first entry that fits a request is what happens to it.
#[derive(Debug)]
pub struct FaultDisk<D> {
    inner: D,
    plan: Vec<Planned>,
    /// Reads and writes that were submitted.
    seen: [u64; 2],
    /// In the disk, to be held back when they come: by token and direction, with the delay.
    marked: Vec<(u64, Option<Duration>, Instant)>,
    failed: VecDeque<Completion<IoBuffer>>,
    held: Vec<Held>,
}

impl<D: PageIo> FaultDisk<D> {
    /// A disk without faults yet.
    pub fn new(inner: D) -> Self {
        let (marked, failed, held) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { inner, plan: Vec::new(), seen: [0; 2], marked, failed, held }
    }

    /// From now on, counted from now. Tokens of requests that a delay can hit must differ from all in flight.
    pub fn set_plan(&mut self, plan: Vec<Planned>) {
        self.plan = plan;
        self.seen = [0; 2];
    }

    /// Lets go of what is stuck or slow.
    pub fn release(&mut self) {
        let now = Instant::now();
        self.held.iter_mut().for_each(|held| held.until = Some(now));
        self.marked.clear();
        self.inner.waker().wake();
    }

    /// The real disk.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn fault(&mut self, direction: Direction) -> Option<Fault> {
        let seen = &mut self.seen[usize::from(direction == Direction::Write)];
        let number = *seen;
        *seen += 1;
        let hits = |entry: &&Planned| {
            entry.direction == direction && number >= entry.after && number - entry.after < entry.count
        };
        self.plan.iter().find(hits).map(|entry| entry.fault)
    }

    /// Carries out half of a write, where there is more than a block of it.
    fn tear(&mut self, request: &Request<IoBuffer>) {
        let half = (request.bytes as usize / 2).next_multiple_of(4096).min(request.bytes as usize);
        let mut bytes = vec![0; half];
        if half < request.bytes as usize && request.buffer.read_at(0, &mut bytes).is_ok() {
            // An error here is an error of a write that is to fail anyway.
            let _ = self.inner.write(request.file, request.offset, &bytes);
        }
    }
}

impl<D: PageIo> Disk for FaultDisk<D> {
    type Buffer = IoBuffer;

    fn submit(&mut self, request: Request<IoBuffer>) -> Result<(), Rejected<IoBuffer>> {
        let token = request.token;
        let delay = match self.fault(request.direction) {
            None => return self.inner.submit(request),
            Some(Fault::Slow(delay)) => Some(delay),
            Some(Fault::Stuck) => None,
            Some(Fault::Error(fault)) => {
                if request.direction == Direction::Write && fault != DiskFault::ReadOnly {
                    self.tear(&request);
                }
                let result = Err(fault.into());
                self.failed.push_back(Completion { token, result, buffer: request.buffer });
                self.inner.waker().wake();
                return Ok(());
            }
        };
        self.inner.submit(request)?;
        self.marked.push((token, delay, Instant::now()));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion<IoBuffer>>) {
        done.extend(self.failed.drain(..));
        let mut ended = Vec::new();
        self.inner.poll(&mut ended);
        for completion in ended {
            match self.marked.iter().position(|(token, ..)| *token == completion.token) {
                None => done.push(completion),
                Some(at) => {
                    let (_, delay, since) = self.marked.swap_remove(at);
                    self.held.push(Held { completion, since, until: delay.map(|delay| since + delay) });
                }
            }
        }
        let now = Instant::now();
        let (over, held): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|held| held.until.is_some_and(|until| until <= now));
        self.held = held;
        done.extend(over.into_iter().map(|held| held.completion));
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.failed.len() + self.held.len()
    }
}

impl<D: PageIo> PageIo for FaultDisk<D> {
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let now = Instant::now();
        let next = self.held.iter().filter_map(|held| held.until).min();
        let next = next.map(|until| until.saturating_duration_since(now));
        match next {
            Some(next) if timeout.is_none_or(|timeout| next <= timeout) => {
                self.inner.wait(Some(next)).map(|_| true)
            }
            _ => self.inner.wait(timeout),
        }
    }

    fn wakes(&self) -> BorrowedFd<'_> {
        self.inner.wakes()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn oldest_in_flight(&self, now: Instant) -> Option<Duration> {
        let held = self.held.iter().map(|held| now.saturating_duration_since(held.since)).max();
        held.max(self.inner.oldest_in_flight(now))
    }

    fn mode(&self) -> &DiskMode {
        self.inner.mode()
    }

    fn add_segment(&mut self, region: &Arc<Region>) {
        self.inner.add_segment(region);
    }

    fn remove_segment(&mut self, region: &Arc<Region>) {
        self.inner.remove_segment(region);
    }
}

/// Files are the disk's own, without faults.
impl<D: PageIo> Directory for FaultDisk<D> {
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
