//! What is written is what is read, whatever is under way at the same time.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, missing_docs)]

mod support;

use orbitkv_store::{Direction, Directory, Disk, DiskError, FileId, Priority};
use orbitkv_uring::{DiskConfig, DiskEngine, IoBuffer, PageIo};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use support::{
    BLOCK, config, contents, heap, in_memory, on_disk, one, open, pattern, pool, request, segment, submit,
    wait,
};

const ENGINES: [DiskEngine; 2] = [DiskEngine::IoUring, DiskEngine::Threads];

/// A generator that needs no seed from outside: a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % end
    }
}

const FILE_BLOCKS: usize = 512;
const SLOT_BLOCKS: usize = 24;
const SLOTS: usize = 48;

/// What the file should hold, and what is under way.
struct Model {
    bytes: Vec<u8>,
    /// By token: direction, first block, blocks, slot.
    under_way: BTreeMap<u64, (Direction, usize, usize, Option<usize>)>,
    free_slots: Vec<usize>,
}

impl Model {
    /// Two that touch the same blocks have no order, unless both read.
    fn is_free(&self, direction: Direction, block: usize, blocks: usize) -> bool {
        self.under_way.values().all(|(other, from, count, _)| {
            block + blocks <= *from
                || from + count <= block
                || (*other == Direction::Read && direction == Direction::Read)
        })
    }

    fn range(block: usize, blocks: usize) -> std::ops::Range<usize> {
        block * BLOCK..(block + blocks) * BLOCK
    }
}

fn random_io(config: &DiskConfig, dir: &std::path::Path, seed: u64) {
    let mut random = Random(seed);
    let segments = [segment(SLOTS * SLOT_BLOCKS * BLOCK / 2), segment(SLOTS * SLOT_BLOCKS * BLOCK / 2)];
    let mut disk = open(dir, config);
    segments.iter().for_each(|segment| disk.add_segment(segment.region()));
    let file = disk.create("file", (FILE_BLOCKS * BLOCK) as u64).unwrap();
    let free_slots = (0..SLOTS).collect();
    let mut model = Model { bytes: vec![0; FILE_BLOCKS * BLOCK], under_way: BTreeMap::new(), free_slots };
    let (mut ended, mut token) = (0, 0);
    while ended < 2500 {
        let mut done = Vec::new();
        disk.poll(&mut done);
        for completion in done {
            completion.result.unwrap();
            let (direction, block, blocks, slot) = model.under_way.remove(&completion.token).unwrap();
            if direction == Direction::Read {
                let want = &model.bytes[Model::range(block, blocks)];
                assert!(contents(&completion.buffer) == want, "read {} of block {block}", completion.token);
            }
            model.free_slots.extend(slot);
            ended += 1;
        }
        let (block, blocks) = (random.below(FILE_BLOCKS as u64 - 24) as usize, 1 + random.below(24) as usize);
        let direction = if random.below(2) == 0 { Direction::Read } else { Direction::Write };
        if model.under_way.len() >= 200 || !model.is_free(direction, block, blocks) {
            continue;
        }
        token += 1;
        match random.below(40) {
            // The page cache, beside what goes past it.
            0 if direction == Direction::Write => {
                let bytes = pattern(token, blocks * BLOCK);
                disk.write(file, (block * BLOCK) as u64, &bytes).unwrap();
                model.bytes[Model::range(block, blocks)].copy_from_slice(&bytes);
                continue;
            }
            0 => {
                let mut seen = vec![0; blocks * BLOCK];
                disk.read(file, (block * BLOCK) as u64, &mut seen).unwrap();
                assert!(seen == model.bytes[Model::range(block, blocks)]);
                continue;
            }
            // Segments come and go under the requests on them.
            1 => disk.remove_segment(segments[token as usize % 2].region()),
            2 => segments.iter().for_each(|segment| disk.add_segment(segment.region())),
            _ => {}
        }
        let bytes = if direction == Direction::Write {
            let bytes = pattern(token, blocks * BLOCK);
            model.bytes[Model::range(block, blocks)].copy_from_slice(&bytes);
            bytes
        } else {
            vec![0xee; blocks * BLOCK]
        };
        let slot = if random.below(3) == 0 { None } else { model.free_slots.pop() };
        let buffer = match slot {
            None => heap(&bytes),
            Some(slot) => pool(segments[slot % 2].region(), slot / 2 * SLOT_BLOCKS, &bytes),
        };
        model.under_way.insert(token, (direction, block, blocks, slot));
        let mut request = request(token, direction, file, block, buffer);
        request.priority =
            [Priority::Demand, Priority::Preparation, Priority::Background][token as usize % 3];
        submit(&mut disk, request);
    }
    wait(&mut disk, model.under_way.len()).into_iter().for_each(|completion| completion.result.unwrap());
    let mut seen = vec![0; FILE_BLOCKS * BLOCK];
    disk.read(file, 0, &mut seen).unwrap();
    assert!(seen == model.bytes, "the file at the end");
}

#[test]
fn thousands_of_requests_at_once_leave_the_bytes_of_the_model() {
    for engine in ENGINES {
        let whole = config(engine);
        let in_parts = DiskConfig { max_transfer_bytes: 3 * 4096, ..whole.clone() };
        let buffered = DiskConfig { direct: false, ..whole.clone() };
        for (seed, config) in [(1, &whole), (2, &in_parts), (3, &buffered)] {
            random_io(config, on_disk().path(), seed);
            if let Some(dir) = in_memory() {
                random_io(config, dir.path(), seed);
            }
        }
    }
}

/// A page past the cache, the footer behind it through the cache, and both read both ways, again and again.
#[test]
fn pages_and_footers_of_one_file_see_each_other() {
    for engine in ENGINES {
        let dir = on_disk();
        let mut disk = open(dir.path(), &config(engine));
        let file = disk.create("segment", (64 * BLOCK) as u64).unwrap();
        for round in 0..20 {
            let (page, footer) = (pattern(round, 8 * BLOCK), pattern(100 + round, 3 * BLOCK - 96));
            one(&mut disk, request(1, Direction::Write, file, 8, heap(&page))).result.unwrap();
            // It ends in the middle of a block, and begins in the block behind the page.
            disk.write(file, (16 * BLOCK) as u64 + 96, &footer).unwrap();
            disk.sync(file).unwrap();
            let read = one(&mut disk, request(2, Direction::Read, file, 8, heap(&vec![0; 11 * BLOCK])));
            read.result.unwrap();
            let direct = contents(&read.buffer);
            let mut cached = vec![0; 11 * BLOCK];
            disk.read(file, (8 * BLOCK) as u64, &mut cached).unwrap();
            for (seen, way) in [(direct, "direct"), (cached, "cached")] {
                assert!(seen[..8 * BLOCK] == page, "{engine:?} {way}: the page of round {round}");
                assert!(seen[8 * BLOCK + 96..] == footer, "{engine:?} {way}: the footer of round {round}");
            }
        }
    }
}

/// A file that ends in the middle: what there is comes, is asked further, and is called short in the end.
#[test]
fn a_file_that_was_cut_is_short_and_never_a_success() {
    for engine in ENGINES {
        for direct in [true, false] {
            let dir = on_disk();
            let mut disk = open(dir.path(), &DiskConfig { direct, ..config(engine) });
            let file = disk.create("segment", (16 * BLOCK) as u64).unwrap();
            one(&mut disk, request(1, Direction::Write, file, 0, heap(&pattern(1, 16 * BLOCK))))
                .result
                .unwrap();
            let cut = std::fs::OpenOptions::new().write(true).open(dir.path().join("segment")).unwrap();
            for bytes in [12 * BLOCK, 11 * BLOCK + 512, 11 * BLOCK + 1] {
                cut.set_len(bytes as u64).unwrap();
                let read = one(&mut disk, request(2, Direction::Read, file, 8, heap(&[0; 8 * BLOCK])));
                assert_eq!(read.result, Err(DiskError::Short), "{engine:?} direct {direct}, cut at {bytes}");
                let read = one(&mut disk, request(3, Direction::Read, file, 8, heap(&[0; 3 * BLOCK])));
                read.result.unwrap();
                let want = &pattern(1, 16 * BLOCK)[8 * BLOCK..11 * BLOCK];
                assert!(contents(&read.buffer) == want, "what is in front of the cut is whole");
            }
        }
    }
}

/// Nothing of it is in the page cache: io_uring must wait for it, not say "try again".
#[test]
fn through_the_page_cache_cold_bytes_are_waited_for() {
    let dir = on_disk();
    let bytes = pattern(7, 1024 * BLOCK);
    let path = dir.path().join("segment");
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut disk = open(dir.path(), &DiskConfig { direct: false, ..config(DiskEngine::IoUring) });
    let id = disk.open("segment").unwrap();
    for token in 0..16 {
        let buffer = IoBuffer::heap(64 * BLOCK).unwrap();
        submit(&mut disk, request(token, Direction::Read, id, token as usize * 64, buffer));
    }
    for read in wait(&mut disk, 16) {
        read.result.unwrap();
        let at = read.token as usize * 64 * BLOCK;
        assert!(contents(&read.buffer) == bytes[at..at + 64 * BLOCK]);
    }
}

/// The bytes of `disk` behind its back.
fn on_host(dir: &std::path::Path, name: &str, block: usize) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    std::fs::File::open(dir.join(name)).unwrap().read_exact_at(&mut bytes, (block * BLOCK) as u64).unwrap();
    bytes
}

#[test]
fn a_segment_that_is_given_back_is_not_written_any_more_and_others_take_its_slot() {
    let dir = on_disk();
    let mut disk = open(dir.path(), &config(DiskEngine::IoUring));
    let file: FileId = disk.create("file", (4 * BLOCK) as u64).unwrap();
    for round in 0..20 {
        let segment = segment(4 * BLOCK);
        disk.add_segment(segment.region());
        disk.add_segment(segment.region());
        assert!(disk.mode().registered, "{}", disk.mode());
        let bytes = pattern(round, BLOCK);
        let write = request(1, Direction::Write, file, 1, pool(segment.region(), 2, &bytes));
        drop(one(&mut disk, write));
        assert!(on_host(dir.path(), "file", 1) == bytes, "round {round}");
        assert!(std::sync::Arc::strong_count(segment.region()) > 1, "a registered segment stays mapped");
        disk.remove_segment(segment.region());
        assert_eq!(std::sync::Arc::strong_count(segment.region()), 1, "and is let go");
        segment.punch_all().unwrap();
    }
    // One that was never added works without.
    let segment = segment(4 * BLOCK);
    let read = one(&mut disk, request(2, Direction::Read, file, 1, pool(segment.region(), 0, &[0; BLOCK])));
    read.result.unwrap();
    assert!(contents(&read.buffer) == pattern(19, BLOCK));
}
