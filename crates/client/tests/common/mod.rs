//! A manager that says exactly what a test tells it to, and KV memory that can be looked at.
// Each test binary uses a part of this.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use orbitkv_client::{
    Device, GroupSpec, PagePart, Registration, SchedulerClient, Section, Ticket, TicketKind, Verify,
    WorkerClient, WorkerConfig,
};
use orbitkv_copy::{KvLayout, KvRegion, crc64};
use orbitkv_shm::{Segment, send_with_fds};
use orbitkv_wire::{
    FrameReader, GrantStatus, GrantedBody, Header, Hello, Kind, Part, SLOT_HEADER_BYTES, ToClient, ToManager,
    write_frame,
};
use std::io::{IoSlice, Read};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than anything here takes; a test that reaches it has failed.
pub(crate) const LONG: Duration = Duration::from_secs(20);
pub(crate) const BOOT: u128 = 0xb007;
/// Session of the scheduler in the tickets of worker tests.
pub(crate) const SCHEDULER: u64 = 5;

pub(crate) const LAYERS: usize = 3;
/// Odd on purpose.
pub(crate) const BLOCK_BYTES: usize = 1001;
pub(crate) const STRIDE_BYTES: usize = 1024;
pub(crate) const BLOCKS: usize = 8;
pub(crate) const PAGE_BYTES: usize = LAYERS * BLOCK_BYTES;
pub(crate) const SLOT_BYTES: u64 = 8192;
pub(crate) const SLOTS: usize = 16;

pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < until, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The listening side.
pub(crate) struct Manager {
    listener: UnixListener,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Manager {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.sock");
        let listener = UnixListener::bind(&path).unwrap();
        Self { listener, path, _dir: dir }
    }

    /// Nobody connects any more, as after the manager's end.
    pub(crate) fn remove(&self) {
        std::fs::remove_file(&self.path).unwrap();
    }

    pub(crate) fn registration(&self) -> Registration {
        let group = GroupSpec {
            group: 0,
            page_bytes: PAGE_BYTES as u64,
            block_tokens: 16,
            shard_count: 1,
            rule: "prefix".to_owned(),
        };
        Registration {
            socket: self.path.clone(),
            engine: "test".to_owned(),
            engine_version: "1".to_owned(),
            model: "m".to_owned(),
            instance: "a".repeat(32),
            namespace: "b".repeat(64),
            world_size: 1,
            groups: vec![group],
            hash_tokens: 0,
        }
    }

    /// The next connection, its hello read.
    pub(crate) fn accept(&self) -> (Peer, Hello) {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut peer = Peer { stream, reader: FrameReader::default(), session: 0 };
        let hello = peer.next();
        assert_eq!(hello.kind, Kind::Hello);
        let hello = Hello::decode(&hello.payload).unwrap();
        (peer, hello)
    }

    /// The next connection, accepted as `session`.
    pub(crate) fn welcome(&self, session: u64) -> (Peer, Hello) {
        let (mut peer, hello) = self.accept();
        peer.session = session;
        peer.send(0, &ToClient::Welcome { boot: BOOT });
        (peer, hello)
    }

    /// A scheduler and its connection.
    pub(crate) fn scheduler(&self, session: u64) -> (SchedulerClient, Peer) {
        let client = SchedulerClient::new(&self.registration()).unwrap();
        let (peer, _) = self.welcome(session);
        wait_for("the scheduler is connected", || client.connected());
        (client, peer)
    }

    /// A worker without a path probe, and its connection after the (failed) attestation.
    pub(crate) fn worker(&self, session: u64, kv: &Kv, verify_restore: Verify) -> (WorkerClient, Peer) {
        let client = WorkerClient::new(self.worker_config(kv, &Kv::new(), false, verify_restore)).unwrap();
        let (mut peer, _) = self.welcome(session);
        assert_eq!(peer.next().to_manager(), ToManager::Attest { passed: false });
        wait_for("the worker is connected", || client.connected());
        (client, peer)
    }

    pub(crate) fn worker_config(
        &self,
        kv: &Kv,
        scratch: &Kv,
        layout_probe_passed: bool,
        verify_restore: Verify,
    ) -> WorkerConfig {
        WorkerConfig {
            registration: self.registration(),
            rank: 0,
            device: Device::Host,
            layout: Arc::clone(&kv.layout),
            more_layouts: Vec::new(),
            scratch: Arc::clone(&scratch.layout),
            layout_probe_passed,
            copy_threads: 2,
            verify_restore,
        }
    }
}

/// A frame that came.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) kind: Kind,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    pub(crate) fn to_manager(&self) -> ToManager<'_> {
        ToManager::decode(self.kind, &self.payload).unwrap()
    }

    pub(crate) fn operation(&self) -> u64 {
        self.header.operation.get()
    }
}

/// One connection.
pub(crate) struct Peer {
    stream: UnixStream,
    reader: FrameReader,
    pub(crate) session: u64,
}

impl Peer {
    pub(crate) fn send(&mut self, operation: u64, message: &ToClient<'_>) {
        self.send_with(operation, message, None);
    }

    pub(crate) fn send_segment(&mut self, number: u32, segment: &Segment) {
        let bytes = segment.bytes() as u64;
        let message = ToClient::Segment { segment: number, slot_bytes: SLOT_BYTES, bytes };
        self.send_with(0, &message, Some(segment));
    }

    fn send_with(&mut self, operation: u64, message: &ToClient<'_>, segment: Option<&Segment>) {
        let (mut payload, mut frame) = (Vec::new(), Vec::new());
        message.encode(&mut payload);
        write_frame(&mut frame, message.kind(), (self.session, 0, operation, 1), &payload).unwrap();
        let fds: Vec<_> = segment.iter().map(|segment| segment.as_fd()).collect();
        let sent = send_with_fds(self.stream.as_fd(), &[IoSlice::new(&frame)], &fds).unwrap();
        assert_eq!(sent, frame.len());
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        send_with_fds(self.stream.as_fd(), &[IoSlice::new(bytes)], &[]).unwrap();
    }

    /// Ends the connection, as the end of the manager does.
    pub(crate) fn hang_up(&self) {
        self.stream.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// The next frame; fails the test when the connection ends.
    pub(crate) fn next(&mut self) -> Frame {
        self.try_next().expect("the client closed the connection")
    }

    /// The next frame, or `None` at the end of the connection.
    pub(crate) fn try_next(&mut self) -> Option<Frame> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            if let Some((header, kind, payload)) = self.reader.next_frame().unwrap() {
                return Some(Frame { header, kind, payload: payload.to_vec() });
            }
            let got = self.stream.read(&mut buffer).expect("the client sends in time");
            if got == 0 {
                return None;
            }
            self.reader.push(&buffer[..got]);
        }
    }

    /// The next frame, if one comes in time.
    pub(crate) fn next_within(&mut self, timeout: Duration) -> Option<Frame> {
        self.stream.set_read_timeout(Some(timeout)).unwrap();
        let (mut buffer, mut frame) = (vec![0; 1 << 16], None);
        while frame.is_none() {
            if let Some((header, kind, payload)) = self.reader.next_frame().unwrap() {
                frame = Some(Frame { header, kind, payload: payload.to_vec() });
                break;
            }
            match self.stream.read(&mut buffer) {
                Ok(got) if got > 0 => self.reader.push(&buffer[..got]),
                _ => break,
            }
        }
        self.stream.set_read_timeout(Some(LONG)).unwrap();
        frame
    }

    /// Answers a reserve: every page in its own slot of segment 0, from `first_slot` on.
    pub(crate) fn grant(&mut self, operation: u64, pages: usize, first_slot: u32) {
        let statuses = vec![GrantStatus::Slots as u8; pages];
        let parts: Vec<Part> = (0..).take(pages).map(|i| part(first_slot + i, 0)).collect();
        self.send(
            operation,
            &ToClient::Granted(GrantedBody { shards: 1, statuses: &statuses, parts: &parts }),
        );
    }

    /// Answers a query: pages in the slots of segment 0 from 0 on.
    pub(crate) fn ready(&mut self, operation: u64, pages: u32) {
        let parts: Vec<Part> = (0..pages).map(|i| part(i, u64::from(i))).collect();
        self.send(operation, &ToClient::Ready { pages, shards: 1, parts: &parts });
    }
}

/// Plays the manager's part of a self-test; `tamper` may change what is in the pool before it is read back.
pub(crate) fn serve_probe(peer: &mut Peer, pool: &Pool, tamper: impl Fn(&Pool, u32)) {
    peer.send_segment(0, &pool.segment);
    let mut slot = 0;
    loop {
        let frame = peer.next();
        let operation = frame.operation();
        match frame.to_manager() {
            ToManager::Reserve { group: u16::MAX, hashes, .. } => {
                assert_eq!(hashes.len(), 1);
                slot = 2;
                peer.grant(operation, 1, slot);
            }
            ToManager::Commit([item]) => {
                assert_eq!(item.crc.get(), pool.crc(slot));
                tamper(pool, slot);
            }
            ToManager::Query { group: u16::MAX, .. } => {
                let parts = [part(slot, pool.crc(slot))];
                peer.send(operation, &ToClient::Ready { pages: 1, shards: 1, parts: &parts });
            }
            ToManager::CopyDone { session, revision, .. } => assert_eq!((session, revision), (2, 1)),
            ToManager::Restore { first: 0, pages: 1 }
            | ToManager::Release
            | ToManager::Forget { group: u16::MAX, .. } => {}
            ToManager::Attest { passed } => {
                peer.send(0, &ToClient::InstanceState { active: passed });
                return;
            }
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn part(index: u32, crc: u64) -> Part {
    let slot = orbitkv_wire::Slot { segment: 0.into(), index: index.into(), generation: 1.into() };
    Part { slot, crc: crc.into() }
}

/// KV memory with a pattern in every byte, gaps between blocks included.
pub(crate) struct Kv {
    memory: Segment,
    pub(crate) layout: Arc<KvLayout>,
}

impl Kv {
    pub(crate) fn new() -> Self {
        let layer_bytes = STRIDE_BYTES * BLOCKS;
        let bytes = (LAYERS * layer_bytes).next_multiple_of(4096);
        let memory = Segment::create("kv", bytes).unwrap();
        let base = memory.as_ptr().expose_provenance();
        let regions = (0..LAYERS).map(|layer| KvRegion {
            base: base + layer * layer_bytes,
            block_stride_bytes: STRIDE_BYTES,
            block_bytes: BLOCK_BYTES,
            num_blocks: BLOCKS,
        });
        // SAFETY: the regions lie inside `memory`, which lives as long as this value; tests drop their
        // worker, which joins its copy threads, first.
        let layout = Arc::new(unsafe { KvLayout::new(regions.collect()) }.unwrap());
        let kv = Self { memory, layout };
        kv.memory.write_at(0, &random_bytes(7, bytes)).unwrap();
        kv
    }

    /// Every byte, to compare with later.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.memory.bytes()];
        self.memory.read_at(0, &mut out).unwrap();
        out
    }

    /// Where a block's bytes of each layer are.
    pub(crate) fn ranges(block: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..LAYERS).map(move |layer| {
            let start = (layer * BLOCKS + block) * STRIDE_BYTES;
            start..start + BLOCK_BYTES
        })
    }

    pub(crate) fn payload(&self, block: usize) -> Vec<u8> {
        let bytes = self.bytes();
        Self::ranges(block).flat_map(|range| bytes[range].to_vec()).collect()
    }

    pub(crate) fn fill(&self, block: usize, byte: u8) {
        for range in Self::ranges(block) {
            self.memory.write_at(range.start, &vec![byte; range.len()]).unwrap();
        }
    }
}

/// `bytes` with `payload` at a block's place.
pub(crate) fn with_block(mut bytes: Vec<u8>, block: usize, payload: &[u8]) -> Vec<u8> {
    for (range, piece) in Kv::ranges(block).zip(payload.chunks(BLOCK_BYTES)) {
        bytes[range].copy_from_slice(piece);
    }
    bytes
}

/// Pool memory as the manager sees it.
pub(crate) struct Pool {
    pub(crate) segment: Segment,
    name: String,
}

/// Tests of one binary share a process: each pool is told apart by its name.
static POOLS: AtomicU32 = AtomicU32::new(0);

impl Pool {
    /// Every slot holds a payload of its own.
    pub(crate) fn new() -> Self {
        let name = format!("pool-{}-", POOLS.fetch_add(1, Ordering::Relaxed));
        let segment = Segment::create(&name, SLOTS * usize::try_from(SLOT_BYTES).unwrap()).unwrap();
        segment.write_at(0, &random_bytes(99, segment.bytes())).unwrap();
        Self { segment, name }
    }

    /// How often this process maps it: once for this value, once for a client that does.
    pub(crate) fn maps(&self) -> usize {
        std::fs::read_to_string("/proc/self/maps").unwrap().matches(&self.name).count()
    }

    fn offset(slot: u32) -> usize {
        usize::try_from(u64::from(slot) * SLOT_BYTES + SLOT_HEADER_BYTES).unwrap()
    }

    pub(crate) fn payload(&self, slot: u32) -> Vec<u8> {
        let mut out = vec![0; PAGE_BYTES];
        self.segment.read_at(Self::offset(slot), &mut out).unwrap();
        out
    }

    pub(crate) fn write(&self, slot: u32, payload: &[u8]) {
        self.segment.write_at(Self::offset(slot), payload).unwrap();
    }

    pub(crate) fn crc(&self, slot: u32) -> u64 {
        crc64(&self.payload(slot))
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.segment.bytes()];
        self.segment.read_at(0, &mut out).unwrap();
        out
    }

    /// `bytes` with `payload` in a slot.
    pub(crate) fn with_slot(mut bytes: Vec<u8>, slot: u32, payload: &[u8]) -> Vec<u8> {
        let at = Self::offset(slot);
        bytes[at..at + payload.len()].copy_from_slice(payload);
        bytes
    }

    pub(crate) fn restore_ticket(&self, slots: &[u32]) -> Ticket {
        let part = |slot: &u32| PagePart { segment: 0, index: *slot, generation: 1, crc: self.crc(*slot) };
        Ticket { parts: slots.iter().map(part).collect(), ..ticket(TicketKind::Restore, slots.len()) }
    }
}

pub(crate) fn save_ticket(slots: &[u32]) -> Ticket {
    let part = |slot: &u32| PagePart { segment: 0, index: *slot, generation: 1, crc: 0 };
    let hashes = slots.iter().map(|slot| hash(*slot)).collect();
    Ticket { hashes, parts: slots.iter().map(part).collect(), ..ticket(TicketKind::Save, slots.len()) }
}

pub(crate) fn hash(number: u32) -> [u8; 32] {
    let mut hash = [0xaa; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    hash
}

/// Pages of the first group, in one shard.
pub(crate) fn section(group: u16, pages: usize) -> Section {
    Section { group, first_page: 0, pages: u32::try_from(pages).unwrap(), shards: 1 }
}

fn ticket(kind: TicketKind, pages: usize) -> Ticket {
    Ticket {
        kind,
        boot: BOOT,
        scheduler: SCHEDULER,
        operation: 1,
        revision: 1,
        sections: vec![section(0, pages)],
        issued_us: now_us(),
        hashes: Vec::new(),
        parts: Vec::new(),
    }
}

/// The clock of tickets.
pub(crate) fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000 + u64::try_from(now.tv_nsec).unwrap() / 1_000
}

pub(crate) fn stat(stats: &[(&'static str, u64)], name: &str) -> u64 {
    stats.iter().find(|(n, _)| *n == name).map(|(_, value)| *value).unwrap()
}

fn random_bytes(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(bytes).collect()
}
