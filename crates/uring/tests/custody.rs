//! The kernel never has an address that somebody else could get.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, missing_docs)]

mod support;

use orbitkv_store::{Direction, Directory, DiskError, FileId, HostDirectory};
use orbitkv_uring::{DiskConfig, DiskEngine, IoBuffer, PageDisk, PageIo};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{BLOCK, config, on_disk, one, open, pattern, request, segment, submit, wait, wait_for_flight};

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
            for page in 0..PAGES {
                let buffer = IoBuffer::pool(memory.region(), page * PAGE, PAGE).unwrap();
                submit(&mut disk, request(1, Direction::Read, file, page * PAGE / BLOCK, buffer));
            }
            wait_for_flight(&disk);
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

#[test]
fn what_does_not_end_in_time_is_leaked_with_its_lock() {
    for engine in [DiskEngine::IoUring, DiskEngine::Threads] {
        let dir = on_disk();
        let (mut disk, file) =
            prepared(dir.path(), &DiskConfig { drop_wait: Duration::ZERO, ..config(engine) });
        disk.lock("owner").unwrap();
        let memory = segment(PAGES * PAGE);
        for page in 0..PAGES {
            let buffer = IoBuffer::pool(memory.region(), page * PAGE, PAGE).unwrap();
            submit(&mut disk, request(1, Direction::Read, file, page * PAGE / BLOCK, buffer));
        }
        wait_for_flight(&disk);
        drop(disk);
        let mut other = HostDirectory::open(dir.path()).unwrap();
        assert_eq!(other.lock("owner"), Err(DiskError::Locked), "{engine:?}: still another's");
        if engine == DiskEngine::IoUring {
            assert!(Arc::strong_count(memory.region()) > 1, "the memory is kept for the kernel");
        }
    }
}

#[test]
fn the_age_of_a_request_grows_until_it_has_ended() {
    for engine in [DiskEngine::IoUring, DiskEngine::Threads] {
        let dir = on_disk();
        let (mut disk, file) = prepared(dir.path(), &config(engine));
        let now = Instant::now();
        assert_eq!(disk.oldest_in_flight(now), None);
        for page in 0..PAGES {
            let buffer = IoBuffer::heap(PAGE).unwrap();
            submit(&mut disk, request(1, Direction::Read, file, page * PAGE / BLOCK, buffer));
        }
        wait_for_flight(&disk);
        let later = Instant::now() + Duration::from_secs(30);
        assert!(disk.oldest_in_flight(later).unwrap() >= Duration::from_secs(30));
        wait(&mut disk, PAGES);
        assert_eq!(disk.oldest_in_flight(later), None);
    }
}
