//! Who goes first, and who wakes the thread.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, missing_docs)]

mod support;

use orbitkv_store::{Direction, Directory, Disk, Priority};
use orbitkv_uring::{DiskConfig, DiskEngine, IoBuffer, PageIo};
use std::time::Duration;
use support::{BLOCK, config, on_disk, open, request, submit, wait};

/// A hang.
const A_MINUTE: Option<Duration> = Some(Duration::from_secs(60));
const ENGINES: [DiskEngine; 2] = [DiskEngine::IoUring, DiskEngine::Threads];

/// Tokens in the order in which they ended. The first one keeps the only place until the others are there.
fn order(engine: DiskEngine) -> Vec<u64> {
    let dir = on_disk();
    let mut disk = open(dir.path(), &DiskConfig { queue_depth: 1, ..config(engine) });
    let file = disk.create("file", (4096 * BLOCK) as u64).unwrap();
    let priorities = [
        Priority::Background,
        Priority::Background,
        Priority::Preparation,
        Priority::Demand,
        Priority::Preparation,
        Priority::Demand,
    ];
    for (token, priority) in (0..).zip(priorities) {
        let blocks = if token == 0 { 4096 } else { 1 };
        let buffer = IoBuffer::heap(blocks * BLOCK).unwrap();
        submit(
            &mut disk,
            orbitkv_store::Request { priority, ..request(token, Direction::Write, file, 0, buffer) },
        );
    }
    assert_eq!(disk.in_flight(), 6);
    wait(&mut disk, 6).into_iter().map(|completion| completion.token).collect()
}

#[test]
fn demand_goes_before_preparation_before_background() {
    const WANT: [u64; 6] = [0, 3, 5, 2, 4, 1];
    assert_eq!(order(DiskEngine::IoUring), WANT);
    // The thread may take the first one when the others are there already, or be done with it before; without
    // an order no attempt would give one of these.
    let orders: Vec<_> = (0..20).map(|_| order(DiskEngine::Threads)).collect();
    assert!(orders.iter().any(|order| *order == WANT || *order == [3, 5, 2, 4, 0, 1]), "{orders:?}");
}

#[test]
fn a_wait_ends_with_a_completion_a_wake_or_the_time() {
    for engine in ENGINES {
        let dir = on_disk();
        let mut disk = open(dir.path(), &config(engine));
        assert!(!disk.wait(Some(Duration::ZERO)).unwrap(), "nothing has happened");
        let waker = disk.waker();
        waker.wake();
        waker.wake();
        assert!(disk.wait(A_MINUTE).unwrap());
        assert!(!disk.wait(Some(Duration::from_millis(1))).unwrap(), "two wakes are taken as one");
        let thread = std::thread::spawn(move || waker.wake());
        assert!(disk.wait(A_MINUTE).unwrap());
        thread.join().unwrap();
        let file = disk.create("file", BLOCK as u64).unwrap();
        submit(&mut disk, request(1, Direction::Write, file, 0, IoBuffer::heap(BLOCK).unwrap()));
        let (mut done, mut waits) = (Vec::new(), 0);
        while done.is_empty() {
            assert!(disk.wait(A_MINUTE).unwrap());
            disk.poll(&mut done);
            waits += 1;
            assert!(waits < 100, "it wakes without a reason");
        }
        done.remove(0).result.unwrap();
    }
}
