//! A disk that fails by plan, around a real one: for tests.

use crate::{DiskMode, IoBuffer, PageIo, Waker};
use orbitkv_shm::Region;
use orbitkv_store::{
    Completion, Direction, Directory, Disk, DiskError, FileEntry, FileId, FileSize, Rejected, Request, Space,
};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often those that are held back are looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It never reaches the disk, and ends with this error at the next poll.
    Error(DiskFault),
    /// It is carried out, and its completion is held back for so long.
    Slow(Duration),
    /// It is carried out, and its completion is held back until [`FaultPlan::release`].
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

/// Says what happens to requests.
pub trait FaultSource: fmt::Debug {
    /// What happens to the next request of that direction; `None`: the disk decides.
    fn next(&mut self, direction: Direction) -> Option<Fault>;

    /// How often what is slow or stuck has been let go.
    fn releases(&self) -> u64;
}

#[derive(Debug, Default)]
struct Entries {
    plan: Vec<Planned>,
    /// Reads and writes since it was set.
    seen: [u64; 2],
    releases: u64,
}

/// A list of faults; whoever has a clone of it may change it while the disk is at work. The first entry that fits a
/// request is what happens to it.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan(Arc<Mutex<Entries>>);

impl FaultPlan {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, counted from now.
    pub fn set(&self, plan: Vec<Planned>) {
        let mut entries = self.lock();
        (entries.plan, entries.seen) = (plan, [0; 2]);
    }

    /// Lets go of what is stuck or slow.
    pub fn release(&self) {
        self.lock().releases += 1;
    }
}

impl FaultSource for FaultPlan {
    fn next(&mut self, direction: Direction) -> Option<Fault> {
        let mut entries = self.lock();
        let seen = &mut entries.seen[usize::from(direction == Direction::Write)];
        let number = *seen;
        *seen += 1;
        let hits = |entry: &&Planned| {
            entry.direction == direction && number >= entry.after && number - entry.after < entry.count
        };
        entries.plan.iter().find(hits).map(|entry| entry.fault)
    }

    fn releases(&self) -> u64 {
        self.lock().releases
    }
}

/// To be held back, or held back already.
#[derive(Clone, Copy, Debug)]
struct Delay {
    since: Instant,
    /// `None`: until it is released.
    until: Option<Instant>,
    /// Releases before it.
    releases: u64,
}

#[derive(Debug)]
struct Held {
    completion: Completion<IoBuffer>,
    delay: Delay,
}

/// A real disk, and faults.
#[derive(Debug)]
pub struct FaultDisk<D, S = FaultPlan> {
    inner: D,
    source: S,
    /// In the disk, to be held back when they come, by token.
    marked: Vec<(u64, Delay)>,
    failed: VecDeque<Completion<IoBuffer>>,
    held: Vec<Held>,
}

impl<D: PageIo> FaultDisk<D> {
    /// A disk without faults yet.
    pub fn new(inner: D) -> Self {
        Self::with_source(inner, FaultPlan::default())
    }

    /// See [`FaultPlan::set`].
    pub fn set_plan(&mut self, plan: Vec<Planned>) {
        self.source.set(plan);
    }

    /// See [`FaultPlan::release`].
    pub fn release(&mut self) {
        self.source.release();
    }
}

impl<D: PageIo, S: FaultSource> FaultDisk<D, S> {
    /// A disk whose faults come from there. Tokens of requests that a delay can hit must differ from all in flight.
    pub fn with_source(inner: D, source: S) -> Self {
        let (marked, failed, held) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { inner, source, marked, failed, held }
    }

    /// The real disk.
    pub fn inner(&self) -> &D {
        &self.inner
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

impl<D: PageIo, S: FaultSource> Disk for FaultDisk<D, S> {
    type Buffer = IoBuffer;

    fn submit(&mut self, request: Request<IoBuffer>) -> Result<(), Rejected<IoBuffer>> {
        let (token, since) = (request.token, Instant::now());
        let until = match self.source.next(request.direction) {
            None => return self.inner.submit(request),
            Some(Fault::Slow(delay)) => Some(since + delay),
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
        self.marked.push((token, Delay { since, until, releases: self.source.releases() }));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion<IoBuffer>>) {
        done.extend(self.failed.drain(..));
        let mut ended = Vec::new();
        self.inner.poll(&mut ended);
        for completion in ended {
            match self.marked.iter().position(|(token, _)| *token == completion.token) {
                None => done.push(completion),
                Some(at) => {
                    let (_, delay) = self.marked.swap_remove(at);
                    self.held.push(Held { completion, delay });
                }
            }
        }
        let (now, releases) = (Instant::now(), self.source.releases());
        let is_over =
            |delay: &Delay| delay.releases < releases || delay.until.is_some_and(|until| until <= now);
        let over = self.held.extract_if(.., |held| is_over(&held.delay));
        done.extend(over.map(|held| held.completion));
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.failed.len() + self.held.len()
    }
}

impl<D: PageIo, S: FaultSource> PageIo for FaultDisk<D, S> {
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        if self.held.is_empty() && self.marked.is_empty() {
            return self.inner.wait(timeout);
        }
        // Nobody rings when they are let go.
        let short = timeout.map_or(LOOK_AGAIN, |timeout| timeout.min(LOOK_AGAIN));
        self.inner.wait(Some(short)).map(|woken| woken || timeout != Some(short))
    }

    fn wakes(&self) -> BorrowedFd<'_> {
        self.inner.wakes()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn oldest_in_flight(&self, now: Instant) -> Option<Duration> {
        let held = self.held.iter().map(|held| now.saturating_duration_since(held.delay.since)).max();
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
impl<D: PageIo, S: FaultSource> Directory for FaultDisk<D, S> {
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
