//! The suite that every [`Disk`] must pass: the contract of `disk.rs` and `directory.rs`, point by point.
//!
//! An implementation runs it from a test: `conformance::run(&mut harness)`. A point that fails panics with
//! its name in the message.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test suite that other crates' tests call")]

use crate::directory::{Directory, FileId};
use crate::disk::{Completion, Direction, Disk, Priority, Request};
use crate::error::DiskError;
use crate::format::{BLOCK_BYTES, BLOCK_BYTES_U64};
use std::collections::BTreeSet;

/// How the suite gets disks and memory of an implementation.
pub trait Harness {
    /// What is tested.
    type Disk: Disk;

    /// A disk on an empty directory.
    fn empty(&mut self) -> Self::Disk;

    /// Another owner of the same directory, while `disk` is still there.
    fn another(&mut self, disk: &Self::Disk) -> Self::Disk;

    /// Memory that holds `bytes`, which are a multiple of 4 KiB.
    fn buffer(&mut self, bytes: &[u8]) -> <Self::Disk as Disk>::Buffer;

    /// What the memory holds now.
    fn contents(&self, buffer: &<Self::Disk as Disk>::Buffer) -> Vec<u8>;
}

/// Polls that pass without a completion before a request counts as lost.
const PATIENCE: u32 = 50_000_000;

/// Runs all of it.
pub fn run<H: Harness>(harness: &mut H) {
    names(harness);
    file_bytes(harness);
    locks(harness);
    pages_come_back(harness);
    every_request_ends_once(harness);
    what_is_refused(harness);
    the_end_of_a_file_is_short(harness);
    closing_a_file_takes_nothing_away(harness);
    a_full_queue_says_so(harness);
    low_priority_is_not_starved(harness);
}

fn pattern(seed: u64, blocks: usize) -> Vec<u8> {
    let words = (0..(blocks * BLOCK_BYTES / 8) as u64)
        .map(|at| (seed << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

fn request<B>(
    token: u64,
    direction: Direction,
    file: FileId,
    block: u64,
    blocks: usize,
    buffer: B,
) -> Request<B> {
    let bytes = u32::try_from(blocks * BLOCK_BYTES).unwrap();
    let (offset, priority) = (block * BLOCK_BYTES_U64, Priority::Demand);
    Request { token, direction, priority, file, offset, bytes, buffer }
}

fn wait<D: Disk>(disk: &mut D, count: usize) -> Vec<Completion<D::Buffer>> {
    let mut done = Vec::new();
    for _ in 0..PATIENCE {
        disk.poll(&mut done);
        if done.len() >= count {
            assert_eq!(done.len(), count, "more completions than requests");
            return done;
        }
        std::hint::spin_loop();
    }
    panic!("a request does not end: {} of {count} have", done.len());
}

fn submit<D: Disk>(disk: &mut D, request: Request<D::Buffer>) {
    if let Err(rejected) = disk.submit(request) {
        panic!("a good request is refused: {}", rejected.reason);
    }
}

/// One request, to its end.
fn one<D: Disk>(disk: &mut D, request: Request<D::Buffer>) -> Completion<D::Buffer> {
    submit(disk, request);
    wait(disk, 1).remove(0)
}

fn names<H: Harness>(harness: &mut H) {
    let mut disk = harness.empty();
    assert_eq!(disk.open("a"), Err(DiskError::NotFound));
    assert_eq!(disk.remove("a"), Err(DiskError::NotFound));
    assert_eq!(disk.rename("a", "b"), Err(DiskError::NotFound));
    let file = disk.create("a", 3 * BLOCK_BYTES_U64).unwrap();
    assert_eq!(disk.create("a", BLOCK_BYTES_U64), Err(DiskError::Exists));
    let size = disk.size(file).unwrap();
    assert_eq!(size.bytes, 3 * BLOCK_BYTES_U64);
    assert!(
        size.allocated_bytes == 0 || size.allocated_bytes >= size.bytes,
        "allocated in full or not at all"
    );
    let other = disk.create("b", BLOCK_BYTES_U64).unwrap();
    disk.write(file, 0, b"the file that was a").unwrap();
    disk.rename("a", "b").unwrap();
    disk.close(other);
    disk.sync_directory().unwrap();
    let names: Vec<_> = disk.list().unwrap().into_iter().map(|entry| (entry.name, entry.regular)).collect();
    assert_eq!(names, [("b".to_owned(), true)]);
    let again = disk.open("b").unwrap();
    assert_ne!(again, file, "each opening has an id of its own");
    let mut bytes = [0; 19];
    disk.read(again, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"the file that was a");
    disk.remove("b").unwrap();
    assert_eq!(disk.open("b"), Err(DiskError::NotFound));
    let space = disk.space().unwrap();
    assert!(space.free_bytes <= space.total_bytes && space.total_bytes > 0);
}

fn file_bytes<H: Harness>(harness: &mut H) {
    let mut disk = harness.empty();
    let file = disk.create("a", 2 * BLOCK_BYTES_U64).unwrap();
    let mut bytes = vec![1; 2 * BLOCK_BYTES];
    disk.read(file, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "a new file is zeros");
    disk.write(file, 4000, &[7; 200]).unwrap();
    disk.read(file, 0, &mut bytes).unwrap();
    assert!(
        bytes.iter().enumerate().all(|(at, byte)| *byte == if (4000..4200).contains(&at) { 7 } else { 0 })
    );
    assert_eq!(disk.read(file, BLOCK_BYTES_U64 + 1, &mut bytes[..BLOCK_BYTES]), Err(DiskError::Short));
    disk.sync(file).unwrap();
    disk.close(file);
    assert!(disk.read(file, 0, &mut bytes).is_err(), "a closed file is not read");
}

fn locks<H: Harness>(harness: &mut H) {
    let mut disk = harness.empty();
    disk.lock("owner").unwrap();
    disk.lock("owner").unwrap();
    let mut other = harness.another(&disk);
    assert_eq!(other.lock("owner"), Err(DiskError::Locked));
    drop(disk);
    other.lock("owner").unwrap();
}

fn pages_come_back<H: Harness>(harness: &mut H) {
    let mut disk = harness.empty();
    let file = disk.create("a", 600 * BLOCK_BYTES_U64).unwrap();
    // One block; more than a pipe or a bio takes at once; at the end.
    for (seed, block, blocks) in [(1, 0, 1), (2, 1, 513), (3, 599, 1)] {
        let bytes = pattern(seed, blocks);
        let buffer = harness.buffer(&bytes);
        one(&mut disk, request(9, Direction::Write, file, block, blocks, buffer)).result.unwrap();
        let buffer = harness.buffer(&vec![0; blocks * BLOCK_BYTES]);
        let read = one(&mut disk, request(10, Direction::Read, file, block, blocks, buffer));
        assert_eq!((read.token, &read.result), (10, &Ok(())));
        assert!(harness.contents(&read.buffer) == bytes, "a read sees the write before it");
        let mut seen = vec![0; blocks * BLOCK_BYTES];
        disk.read(file, block * BLOCK_BYTES_U64, &mut seen).unwrap();
        assert!(seen == bytes, "the directory sees the write before it");
        // And the other way round.
        disk.write(file, block * BLOCK_BYTES_U64, &pattern(seed + 10, 1)).unwrap();
        let read = one(&mut disk, request(11, Direction::Read, file, block, 1, read.buffer));
        assert!(harness.contents(&read.buffer)[..BLOCK_BYTES] == pattern(seed + 10, 1));
    }
}

fn every_request_ends_once<H: Harness>(harness: &mut H) {
    let mut disk = harness.empty();
    let file = disk.create("a", 64 * BLOCK_BYTES_U64).unwrap();
    for (direction, first) in [(Direction::Write, 0), (Direction::Read, 100)] {
        for block in 0..32 {
            let bytes =
                if direction == Direction::Write { pattern(block, 2) } else { vec![0; 2 * BLOCK_BYTES] };
            let mut request = request(first + block, direction, file, 2 * block, 2, harness.buffer(&bytes));
            request.priority =
                [Priority::Demand, Priority::Preparation, Priority::Background][block as usize % 3];
            submit(&mut disk, request);
        }
        assert_eq!(disk.in_flight(), 32);
        let done = wait(&mut disk, 32);
        assert_eq!(disk.in_flight(), 0);
        let tokens: BTreeSet<u64> = done.iter().map(|completion| completion.token).collect();
        assert_eq!(tokens, (first..first + 32).collect(), "each token once");
        for completion in done {
            completion.result.unwrap();
            let want = pattern(completion.token - first, 2);
            assert!(harness.contents(&completion.buffer) == want, "the buffer of token {}", completion.token);
        }
    }
}

fn what_is_refused<H: Harness>(harness: &mut H) {
    let mut disk = harness.empty();
    let file = disk.create("a", 8 * BLOCK_BYTES_U64).unwrap();
    let closed = disk.open("a").unwrap();
    disk.close(closed);
    let good = |buffer| request(1, Direction::Read, file, 0, 1, buffer);
    type Change<B> = fn(&mut Request<B>);
    let changes: [(&str, Change<_>); 4] = [
        ("offset", |request| request.offset = 512),
        ("length", |request| request.bytes = 1000),
        ("nothing", |request| request.bytes = 0),
        ("longer than its buffer", |request| request.bytes = 3 * 4096),
    ];
    for (what, change) in changes {
        let mut request = good(harness.buffer(&[5; 2 * BLOCK_BYTES]));
        change(&mut request);
        let rejected = disk.submit(request).err().unwrap_or_else(|| panic!("{what} is not refused"));
        assert!(matches!(rejected.reason, DiskError::BadRequest(_)), "{what}: {}", rejected.reason);
        assert!(
            harness.contents(&rejected.request.buffer) == [5; 2 * BLOCK_BYTES],
            "{what}: the buffer comes back"
        );
    }
    let mut request = good(harness.buffer(&[5; BLOCK_BYTES]));
    request.file = closed;
    assert!(disk.submit(request).is_err(), "a file that is closed");
    assert_eq!(disk.in_flight(), 0);
}

fn the_end_of_a_file_is_short<H: Harness>(harness: &mut H) {
    let mut disk = harness.empty();
    let file = disk.create("a", 3 * BLOCK_BYTES_U64).unwrap();
    for block in [2, 3, 9] {
        let buffer = harness.buffer(&[0; 2 * BLOCK_BYTES]);
        let read = one(&mut disk, request(1, Direction::Read, file, block, 2, buffer));
        assert_eq!(read.result, Err(DiskError::Short), "two blocks at block {block} of three");
    }
}

fn closing_a_file_takes_nothing_away<H: Harness>(harness: &mut H) {
    let mut disk = harness.empty();
    let file = disk.create("a", 4 * BLOCK_BYTES_U64).unwrap();
    let buffer = harness.buffer(&pattern(1, 4));
    submit(&mut disk, request(1, Direction::Write, file, 0, 4, buffer));
    disk.close(file);
    wait(&mut disk, 1).remove(0).result.unwrap();
    let file = disk.open("a").unwrap();
    let mut bytes = vec![0; 4 * BLOCK_BYTES];
    disk.read(file, 0, &mut bytes).unwrap();
    assert!(bytes == pattern(1, 4));
}

fn a_full_queue_says_so<H: Harness>(harness: &mut H) {
    let mut disk = harness.empty();
    let file = disk.create("a", BLOCK_BYTES_U64).unwrap();
    let mut taken = 0;
    // However deep the queue is, it has an end, unless it is emptied faster than it is filled.
    for token in 0..5_000 {
        let buffer = harness.buffer(&[0; BLOCK_BYTES]);
        match disk.submit(request(token, Direction::Read, file, 0, 1, buffer)) {
            Ok(()) => taken += 1,
            Err(rejected) => {
                assert_eq!(rejected.reason, DiskError::Busy);
                assert_eq!(rejected.request.token, token);
                break;
            }
        }
    }
    assert!(taken < 5_000, "the queue has no end");
    for completion in wait(&mut disk, taken) {
        completion.result.unwrap();
    }
    let buffer = harness.buffer(&[0; BLOCK_BYTES]);
    one(&mut disk, request(1, Direction::Read, file, 0, 1, buffer)).result.unwrap();
}

fn low_priority_is_not_starved<H: Harness>(harness: &mut H) {
    let mut disk = harness.empty();
    let file = disk.create("a", BLOCK_BYTES_U64).unwrap();
    let mut low = request(0, Direction::Read, file, 0, 1, harness.buffer(&[0; BLOCK_BYTES]));
    low.priority = Priority::Background;
    submit(&mut disk, low);
    let mut passed = 0;
    while passed < 1000 {
        // Two demands are always waiting.
        while disk.in_flight() < 3 {
            let buffer = harness.buffer(&[0; BLOCK_BYTES]);
            submit(&mut disk, request(1, Direction::Read, file, 0, 1, buffer));
        }
        let mut done = Vec::new();
        disk.poll(&mut done);
        if done.iter().any(|completion| completion.token == 0) {
            return;
        }
        passed += done.len();
    }
    panic!("a background read was passed by {passed} demands");
}
