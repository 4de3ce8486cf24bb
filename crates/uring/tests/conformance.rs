//! Both engines against the suite of the store, on a disk and in memory, with each kind of buffer.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, missing_docs)]

mod support;

use orbitkv_shm::Segment;
use orbitkv_store::conformance::{self, Harness};
use orbitkv_store::{Direction, Directory};
use orbitkv_uring::{DiskConfig, DiskEngine, Engine, IoBuffer, PageDisk, PageIo};
use support::{BLOCK, config, contents, heap, in_memory, on_disk, open, pool, segment, takes_direct};
use tempfile::TempDir;

const POOL_BLOCKS: usize = 16_384;

struct Disks {
    place: fn() -> TempDir,
    config: DiskConfig,
    /// Buffers lie in it, one behind the other; on the heap without it.
    segment: Option<Segment>,
    next_block: usize,
    directory: Option<TempDir>,
}

impl Disks {
    fn run(place: fn() -> TempDir, config: DiskConfig, in_pool: bool) {
        let segment = in_pool.then(|| segment(POOL_BLOCKS * BLOCK));
        conformance::run(&mut Self { place, config, segment, next_block: 0, directory: None });
    }
}

impl Harness for Disks {
    type Disk = PageDisk;

    fn empty(&mut self) -> PageDisk {
        let directory = self.directory.insert((self.place)());
        let mut disk = open(directory.path(), &self.config);
        if let Some(segment) = &self.segment {
            disk.add_segment(segment.region());
        }
        let direct = self.config.direct && takes_direct(directory.path());
        assert_eq!(disk.mode().direct, direct, "{}", disk.mode());
        disk
    }

    fn another(&mut self, _: &PageDisk) -> PageDisk {
        open(self.directory.as_ref().unwrap().path(), &self.config)
    }

    fn buffer(&mut self, bytes: &[u8]) -> IoBuffer {
        let Some(segment) = &self.segment else { return heap(bytes) };
        let blocks = bytes.len() / BLOCK;
        if self.next_block + blocks > POOL_BLOCKS {
            self.next_block = 0;
        }
        let buffer = pool(segment.region(), self.next_block, bytes);
        self.next_block += blocks;
        buffer
    }

    fn contents(&self, buffer: &IoBuffer) -> Vec<u8> {
        contents(buffer)
    }
}

fn shm() -> TempDir {
    in_memory().unwrap()
}

/// Each way to use an engine.
fn everywhere(engine: DiskEngine) {
    let whole = config(engine);
    let buffered = DiskConfig { direct: false, ..whole.clone() };
    let in_parts = DiskConfig { max_transfer_bytes: 4096, ..whole.clone() };
    let narrow = DiskConfig { queue_depth: 1, ..whole.clone() };
    for (config, in_pool) in
        [(&whole, true), (&whole, false), (&buffered, true), (&in_parts, true), (&narrow, false)]
    {
        Disks::run(on_disk, config.clone(), in_pool);
        if in_memory().is_some() {
            Disks::run(shm, config.clone(), in_pool);
        }
    }
}

#[test]
fn io_uring_conforms() {
    everywhere(DiskEngine::IoUring);
}

#[test]
fn threads_conform() {
    everywhere(DiskEngine::Threads);
}

#[test]
fn a_disk_says_what_it_is() {
    let dir = on_disk();
    if !takes_direct(dir.path()) {
        support::cannot("O_DIRECT, which the file system of the build directory refuses");
    }
    let ring = open(dir.path(), &config(DiskEngine::IoUring));
    assert_eq!((ring.mode().engine, ring.mode().registered), (Engine::IoUring, true), "{}", ring.mode());
    assert_eq!(ring.mode().why.is_none(), ring.mode().direct, "{}", ring.mode());
    let threads = open(dir.path(), &config(DiskEngine::Threads));
    assert_eq!((threads.mode().engine, threads.mode().registered), (Engine::Threads, false));
    assert!(threads.mode().why.as_ref().unwrap().contains("switched off"), "{}", threads.mode());
    let plain = open(dir.path(), &DiskConfig { direct: false, register: false, ..DiskConfig::default() });
    assert!(!plain.mode().direct && !plain.mode().registered);
    assert_eq!(plain.mode().why.as_ref().unwrap().split("; ").count(), 2, "{}", plain.mode());
}

/// It is made on one thread and driven by another.
#[test]
fn a_disk_goes_to_its_thread() {
    let dir = on_disk();
    let mut disk = open(dir.path(), &config(DiskEngine::IoUring));
    let file = disk.create("file", BLOCK as u64).unwrap();
    let thread = std::thread::spawn(move || {
        support::one(&mut disk, support::request(1, Direction::Write, file, 0, heap(&[7; BLOCK]))).result
    });
    thread.join().unwrap().unwrap();
    assert!(std::fs::read(dir.path().join("file")).unwrap() == [7; BLOCK]);
}

#[test]
fn a_configuration_that_cannot_work_is_refused_with_its_name() {
    let dir = on_disk();
    let good = DiskConfig::default;
    for (name, bad) in [
        ("queue_depth", DiskConfig { queue_depth: 0, ..good() }),
        ("queue_depth", DiskConfig { queue_depth: 5000, ..good() }),
        ("max_requests", DiskConfig { max_requests: 0, ..good() }),
        ("threads", DiskConfig { threads: 0, ..good() }),
        ("max_transfer_bytes", DiskConfig { max_transfer_bytes: 5000, ..good() }),
        ("max_background_transfer_bytes", DiskConfig { max_background_transfer_bytes: 0, ..good() }),
    ] {
        let directory = orbitkv_store::HostDirectory::open(dir.path()).unwrap();
        let error = PageDisk::open(directory, &bad).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
}
