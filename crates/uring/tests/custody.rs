//! The kernel never has an address that somebody else could get.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, missing_docs)]

mod support;

use orbitkv_store::{Direction, Directory, DiskError, FileId, HostDirectory};
use orbitkv_uring::{DiskConfig, DiskEngine, IoBuffer, PageDisk, PageIo};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{BLOCK, config, on_disk, one, open, pattern, request, segment, submit, wait};

const PAGE: usize = 1 << 20;
const PAGES: usize = 64;

/// A disk on a file that is not in the page cache.
fn prepared(dir: &Path, config: &DiskConfig) -> (PageDisk, FileId) {
    let mut disk = open(dir, config);
    let file = disk.create("file", (PAGES * PAGE) as u64).unwrap();
    let mut buffer = IoBuffer::heap(PAGE).unwrap();
    buffer.write_at(0, &pattern(1, PAGE)).unwrap();
    for page in 0..PAGES {
        let write = one(&mut disk, request(1, Direction::Write, file, page * PAGE / BLOCK, buffer));
        write.result.unwrap();
        buffer = write.buffer;
    }
    (disk, file)
}

/// Reads all pages into what `buffer` gives, and returns when one was seen under way: its age 30 seconds later.
/// Threads may be through with all of them before this one looks; then it is tried again.
fn start_reads(disk: &mut PageDisk, file: FileId, buffer: impl Fn(usize) -> IoBuffer) -> Duration {
    for _ in 0..50 {
        for page in 0..PAGES {
            submit(disk, request(1, Direction::Read, file, page * PAGE / BLOCK, buffer(page)));
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            let later = Instant::now() + Duration::from_secs(30);
            if let Some(age) = disk.oldest_in_flight(later) {
                return age;
            }
            std::thread::yield_now();
        }
        wait(disk, PAGES);
    }
    panic!("no read was ever seen under way");
}

#[test]
fn a_disk_that_is_dropped_waits_for_the_kernel() {
    for engine in [DiskEngine::IoUring, DiskEngine::Threads] {
        for registered in [true, false] {
            let dir = on_disk();
            let (mut disk, file) = prepared(dir.path(), &config(engine));
            let memory = segment(PAGES * PAGE);
            if registered {
                disk.add_segment(memory.region());
            }
            let slot = |page| IoBuffer::pool(memory.region(), page * PAGE, PAGE).unwrap();
            start_reads(&mut disk, file, slot);
            drop(disk);
            assert_eq!(Arc::strong_count(memory.region()), 1, "nobody has the memory any more");
            // Whoever gets it next finds what he has put there.
            let mine = vec![0xaa; PAGES * PAGE];
            memory.write_at(0, &mine).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let mut seen = vec![0; PAGES * PAGE];
            memory.read_at(0, &mut seen).unwrap();
            assert!(seen == mine, "{engine:?}: the kernel wrote after the drop");
            // And the directory has another owner.
            HostDirectory::open(dir.path()).unwrap().lock("owner").unwrap();
        }
    }
}

/// Whether the directory is still locked after a drop that does not wait, and the memory still kept.
fn is_kept(engine: DiskEngine) -> bool {
    let dir = on_disk();
    let (mut disk, file) = prepared(dir.path(), &DiskConfig { drop_wait: Duration::ZERO, ..config(engine) });
    disk.lock("owner").unwrap();
    let memory = segment(PAGES * PAGE);
    start_reads(&mut disk, file, |page| IoBuffer::pool(memory.region(), page * PAGE, PAGE).unwrap());
    drop(disk);
    let locked = HostDirectory::open(dir.path()).unwrap().lock("owner") == Err(DiskError::Locked);
    // Threads give memory back when they are done with it, the ring never.
    locked && (engine == DiskEngine::Threads || Arc::strong_count(memory.region()) > 1)
}

#[test]
fn what_does_not_end_in_time_is_leaked_with_its_lock() {
    for engine in [DiskEngine::IoUring, DiskEngine::Threads] {
        // Reads may end by themselves between the look and the drop, but not every time.
        assert!((0..10).any(|_| is_kept(engine)), "{engine:?}");
    }
}

#[test]
fn the_age_of_a_request_grows_until_it_has_ended() {
    for engine in [DiskEngine::IoUring, DiskEngine::Threads] {
        let dir = on_disk();
        let (mut disk, file) = prepared(dir.path(), &config(engine));
        assert_eq!(disk.oldest_in_flight(Instant::now()), None);
        let age = start_reads(&mut disk, file, |_| IoBuffer::heap(PAGE).unwrap());
        // A thread may have begun after the clock was read.
        assert!(age >= Duration::from_secs(29), "{engine:?}: {age:?}");
        wait(&mut disk, PAGES);
        assert_eq!(disk.oldest_in_flight(Instant::now()), None);
    }
}
