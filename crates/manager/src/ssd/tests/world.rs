//! A directory, its thread, and slots to write from and read into.

use crate::ssd::{self, OpenedDirectory, Report, WriteBudget};
use crate::tier::{Done, Handle, Job, LetGo, Order, Place};
use crate::waker::Waker;
use orbitkv_core::{
    BlockHash, ExtentId, GroupId, NamespaceDigest, OperationId, Revision, SegmentId, SessionId, ShardId,
    SlotRef, StoredName, StoredShard, Ticket,
};
use orbitkv_shm::Segment;
use orbitkv_store::{Direction, HostDirectory, Log, LogConfig, crc64};
use orbitkv_uring::faults::{DiskFault, Fault, FaultDisk, FaultPlan, Planned};
use orbitkv_uring::{DiskConfig, PageDisk};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PAGE_BYTES: usize = 5000;
const SLOT_BYTES: usize = 12288;
const PATIENCE: Duration = Duration::from_secs(30);
const NAMESPACE: NamespaceDigest = NamespaceDigest([7; 32]);

pub(super) struct World {
    dir: TempDir,
    plan: FaultPlan,
    handle: Handle,
    pub(super) report: Arc<Report>,
    memory: Arc<Segment>,
    /// What came that nobody has asked for.
    pub(super) done: Vec<Done>,
    pub(super) states: Vec<(bool, bool)>,
    pub(super) written: Vec<Option<ExtentId>>,
    pub(super) found: usize,
}

fn bytes(page: u32) -> Vec<u8> {
    page.to_le_bytes().into_iter().cycle().take(PAGE_BYTES).collect()
}

impl World {
    pub(super) fn new() -> Self {
        Self::on(tempfile::tempdir().unwrap())
    }

    /// With everything found.
    fn on(dir: TempDir) -> Self {
        let plan = FaultPlan::default();
        let directory = HostDirectory::open(dir.path()).unwrap();
        let config = LogConfig { capacity_bytes: 4 << 20, segment_bytes: 1 << 20, min_free_bytes: 0 };
        let disk = PageDisk::open(directory, &DiskConfig::default()).unwrap();
        let log = Log::open(FaultDisk::with_source(disk, plan.clone()), config).unwrap();
        let opened = OpenedDirectory { log, path: dir.path().to_owned() };
        let (handle, report) = ssd::start(opened, 3, WriteBudget::default(), Waker::new().unwrap()).unwrap();
        let memory = Arc::new(Segment::create("slots", 64 * SLOT_BYTES).unwrap());
        let (done, states, written) = (Vec::new(), Vec::new(), Vec::new());
        let mut world = Self { dir, plan, handle, report, memory, done, states, written, found: 0 };
        world.wait_until(|world| world.done.contains(&Done::FoundAll) && world.states == [(true, true)]);
        world.states.clear();
        world
    }

    /// An orderly end, and the next manager.
    pub(super) fn restart(mut self) -> Self {
        self.handle.close();
        assert!(self.handle.has_ended(PATIENCE));
        Self::on(self.dir)
    }

    /// The next so many requests of that direction end so.
    pub(super) fn fail(&self, direction: Direction, fault: DiskFault, count: u64) {
        self.plan.set(vec![Planned { direction, after: 0, count, fault: Fault::Error(fault) }]);
    }

    /// Nothing that is asked from now on ends, or all of it does.
    pub(super) fn stall(&self, stalled: bool) {
        let count = if stalled { u64::MAX } else { 0 };
        let stuck = |direction| Planned { direction, after: 0, count, fault: Fault::Stuck };
        self.plan.set(vec![stuck(Direction::Read), stuck(Direction::Write)]);
        if !stalled {
            self.plan.release();
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn add_memory(&self) {
        assert!(self.handle.send(Order::AddSegment { segment: Arc::clone(&self.memory) }));
    }

    /// Waits until the disk has let go of it.
    pub(super) fn remove_memory(&self) {
        let (let_go, all_gone) = LetGo::new();
        assert!(self.handle.send(Order::RemoveSegment { segment: Arc::clone(&self.memory), let_go }));
        assert_eq!(all_gone.recv_timeout(PATIENCE), Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    }

    /// Who keeps the slots mapped.
    pub(super) fn users_of_memory(&self) -> usize {
        Arc::strong_count(self.memory.region())
    }

    fn place(&self, page: u32) -> Place {
        let offset = page as usize * SLOT_BYTES + 4096;
        Place { segment: Arc::clone(&self.memory), offset, bytes: PAGE_BYTES }
    }

    fn name(page: u32) -> StoredName {
        let mut hash = [1; 32];
        hash[..4].copy_from_slice(&page.to_le_bytes());
        StoredName { namespace: NAMESPACE, group: GroupId(0), hash: BlockHash(hash), shard: ShardId(0) }
    }

    fn slot(page: u32) -> SlotRef {
        SlotRef { segment: SegmentId(1), index: page, generation: 1 }
    }

    pub(super) fn order_write(&mut self, page: u32) {
        let from = self.place(page);
        from.segment.write_at(from.offset, &bytes(page)).unwrap();
        let shard = StoredShard {
            name: Self::name(page),
            shards: 1,
            parent: None,
            depth: 0,
            payload_bytes: u32::try_from(PAGE_BYTES).unwrap(),
            crc: crc64(&bytes(page)),
        };
        assert!(self.handle.send(Order::Do(Job::Write { slot: Self::slot(page), shard, from })));
    }

    /// Writes a page and gives its place.
    pub(super) fn write(&mut self, page: u32) -> Option<ExtentId> {
        let before = self.written.len();
        self.order_write(page);
        self.wait_until(|world| world.written.len() > before);
        self.written[before]
    }

    /// Asks for a page, into a slot of zeros.
    pub(super) fn ask(&mut self, page: u32, extent: ExtentId) {
        let into = self.place(page);
        into.segment.write_at(into.offset, &[0; PAGE_BYTES]).unwrap();
        let ticket = Ticket { session: SessionId(1), operation: OperationId(1), revision: Revision(0) };
        let (slot, name, crc) = (Self::slot(page), Self::name(page), crc64(&bytes(page)));
        let job = Job::Read { slot, extent, name, crc, ticket, urgent: true, into };
        assert!(self.handle.send(Order::Do(job)));
    }

    /// Reads a page; what is said to be good is compared.
    pub(super) fn read(&mut self, page: u32, extent: ExtentId) -> bool {
        self.done.clear();
        self.ask(page, extent);
        let read = |done: &Done| match done {
            Done::Read { good, .. } => Some(*good),
            _ => None,
        };
        self.wait_until(|world| world.done.iter().any(|done| read(done).is_some()));
        let good = self.done.iter().find_map(read).unwrap();
        let (place, mut seen) = (self.place(page), vec![0; PAGE_BYTES]);
        place.segment.read_at(place.offset, &mut seen).unwrap();
        assert_eq!(good, seen == bytes(page));
        good
    }

    pub(super) fn forget(&mut self) {
        assert!(self.handle.send(Order::Forget { namespace: NAMESPACE, number: 1 }));
    }

    /// Whether it was recorded.
    pub(super) fn forget_and_wait(&mut self) -> bool {
        self.done.clear();
        self.forget();
        let recorded = |done: &Done| match done {
            Done::Forgotten { recorded, .. } => Some(*recorded),
            _ => None,
        };
        self.wait_until(|world| world.done.iter().any(|done| recorded(done).is_some()));
        self.done.iter().find_map(recorded).unwrap()
    }

    /// The next answer, noted.
    pub(super) fn next(&mut self) -> Option<Done> {
        let done = self.handle.next_done()?;
        match &done {
            Done::State { reads, writes } => self.states.push((*reads, *writes)),
            Done::Written { extent, .. } => self.written.push(*extent),
            Done::Found(shards) => self.found += shards.len(),
            _ => {}
        }
        self.done.push(done.clone());
        Some(done)
    }

    pub(super) fn wait_until(&mut self, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            if self.next().is_none() {
                assert!(begun.elapsed() < PATIENCE, "waited in vain: {:?}", self.done);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
