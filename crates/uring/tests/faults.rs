//! Errors of a plan arrive as a disk's own do.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, missing_docs)]

mod support;

use orbitkv_store::conformance::{self, Harness};
use orbitkv_store::{Direction, Directory, Disk, DiskError, FileId};
use orbitkv_uring::faults::{DiskFault, Fault, FaultDisk, Planned};
use orbitkv_uring::{DiskEngine, IoBuffer, PageDisk, PageIo};
use std::time::{Duration, Instant};
use support::{BLOCK, config, contents, heap, on_disk, one, open, pattern, request, submit, wait};
use tempfile::TempDir;

fn disk() -> (TempDir, FaultDisk<PageDisk>, FileId) {
    let dir = on_disk();
    let mut disk = FaultDisk::new(open(dir.path(), &config(DiskEngine::Auto)));
    let file = disk.create("file", (16 * BLOCK) as u64).unwrap();
    (dir, disk, file)
}

fn plan(direction: Direction, after: u64, count: u64, fault: Fault) -> Planned {
    Planned { direction, after, count, fault }
}

struct Faultless(Option<TempDir>);

impl Harness for Faultless {
    type Disk = FaultDisk<PageDisk>;

    fn empty(&mut self) -> Self::Disk {
        FaultDisk::new(open(self.0.insert(on_disk()).path(), &config(DiskEngine::Auto)))
    }

    fn another(&mut self, _: &Self::Disk) -> Self::Disk {
        FaultDisk::new(open(self.0.as_ref().unwrap().path(), &config(DiskEngine::Auto)))
    }

    fn buffer(&mut self, bytes: &[u8]) -> IoBuffer {
        heap(bytes)
    }

    fn contents(&self, buffer: &IoBuffer) -> Vec<u8> {
        contents(buffer)
    }
}

#[test]
fn without_a_plan_it_conforms() {
    conformance::run(&mut Faultless(None));
}

#[test]
fn errors_hit_who_they_are_planned_for_and_nobody_else() {
    let (_dir, mut disk, file) = disk();
    disk.set_plan(vec![
        plan(Direction::Write, 1, 1, Fault::Error(DiskFault::NoSpace)),
        plan(Direction::Write, 2, 1, Fault::Error(DiskFault::ReadOnly)),
        plan(Direction::Read, 0, 1, Fault::Error(DiskFault::Io)),
        plan(Direction::Read, 0, 2, Fault::Error(DiskFault::Short)),
    ]);
    let write = |disk: &mut _, seed| {
        one(disk, request(1, Direction::Write, file, 0, heap(&pattern(seed, 4 * BLOCK)))).result
    };
    assert_eq!(write(&mut disk, 1), Ok(()));
    assert_eq!(write(&mut disk, 2), Err(DiskError::NoSpace));
    assert_eq!(write(&mut disk, 3), Err(DiskError::ReadOnly));
    let mut read = || one(&mut disk, request(2, Direction::Read, file, 0, heap(&[0; 4 * BLOCK])));
    assert_eq!(read().result, Err(DiskError::Io { errno: 5 }));
    assert_eq!(read().result, Err(DiskError::Short));
    let last = read();
    last.result.unwrap();
    let seen = contents(&last.buffer);
    assert!(
        seen[..2 * BLOCK] == pattern(2, 4 * BLOCK)[..2 * BLOCK],
        "half of the write that failed is there"
    );
    assert!(seen[2 * BLOCK..] == pattern(1, 4 * BLOCK)[2 * BLOCK..], "and half of the one before it");
}

#[test]
fn slow_requests_come_late_and_stuck_ones_when_they_are_let_go() {
    let (_dir, mut disk, file) = disk();
    let slow = Duration::from_millis(50);
    disk.set_plan(vec![
        plan(Direction::Read, 0, 1, Fault::Slow(slow)),
        plan(Direction::Read, 1, 1, Fault::Stuck),
    ]);
    let start = Instant::now();
    for token in [1, 2, 3] {
        submit(&mut disk, request(token, Direction::Read, file, 0, heap(&[0; BLOCK])));
    }
    let order: Vec<_> = wait(&mut disk, 2).into_iter().map(|completion| completion.token).collect();
    assert_eq!(order, [3, 1], "the others go on");
    assert!(start.elapsed() >= slow);
    assert_eq!(disk.in_flight(), 1);
    let later = Instant::now() + Duration::from_secs(10);
    assert!(disk.oldest_in_flight(later).unwrap() >= Duration::from_secs(10), "which a breaker sees");
    disk.release();
    assert_eq!(wait(&mut disk, 1)[0].token, 2);
    assert_eq!((disk.in_flight(), disk.oldest_in_flight(later)), (0, None));
}
