//! The store's log on these disks: from pool slots to a disk, a restart, and back, with every check on the way.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, missing_docs)]

mod support;

use orbitkv_shm::Segment;
use orbitkv_store::{
    Direction, Directory, Disk, Expected, Log, LogConfig, Mismatch, PageName, PageRecord, Priority, Request,
    StoredPage, crc64,
};
use orbitkv_uring::{DiskEngine, IoBuffer, PageDisk, PageIo};
use std::collections::BTreeMap;
use std::path::Path;
use support::{BLOCK, config, on_disk, open, pattern, segment, submit, wait};

const PAGES: u64 = 150;
/// Not a multiple of 4 KiB: the end of a slot is padding.
const PAYLOAD_BYTES: usize = 30_000;
const SLOT_BLOCKS: usize = 1 + PAYLOAD_BYTES.div_ceil(BLOCK);
const SLOTS: usize = 32;
const LOG: LogConfig = LogConfig { capacity_bytes: 16 << 20, segment_bytes: 1 << 20, min_free_bytes: 0 };

fn payload(number: u64) -> Vec<u8> {
    pattern(number, PAYLOAD_BYTES)
}

fn page(number: u64) -> PageRecord {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.to_le_bytes());
    PageRecord {
        name: PageName { namespace: [1; 32], group: 0, key, shard: 0 },
        shard_count: 1,
        parent: None,
        depth: 0,
        boundary: 0,
        payload_bytes: PAYLOAD_BYTES as u32,
        payload_crc: crc64(&payload(number)),
    }
}

fn start(dir: &Path, engine: DiskEngine, memory: &Segment) -> Log<PageDisk> {
    let mut disk = open(dir, &config(engine));
    disk.add_segment(memory.region());
    Log::open(disk, LOG).unwrap()
}

/// Slots are written in flocks, as an I/O thread does.
fn write_all(log: &mut Log<PageDisk>, memory: &Segment) {
    for first in (0..PAGES).step_by(SLOTS) {
        let mut extents = BTreeMap::new();
        for number in first..PAGES.min(first + SLOTS as u64) {
            let placement = log.append(&page(number)).unwrap();
            let slot = (number - first) as usize * SLOT_BLOCKS * BLOCK;
            let mut buffer = IoBuffer::pool(memory.region(), slot, SLOT_BLOCKS * BLOCK).unwrap();
            buffer.write_at(0, &placement.header).unwrap();
            buffer.write_at(BLOCK, &payload(number)).unwrap();
            let (direction, priority) = (Direction::Write, Priority::Background);
            let (file, offset, bytes) = (placement.file, placement.offset, placement.bytes);
            submit(
                log.disk_mut(),
                Request { token: number, direction, priority, file, offset, bytes, buffer },
            );
            extents.insert(number, placement.extent);
        }
        for write in wait(log.disk_mut(), extents.len()) {
            log.written(extents[&write.token], &write.result).unwrap();
            write.result.unwrap();
        }
    }
}

/// Reads a page into the pool and checks it there.
fn read(log: &mut Log<PageDisk>, memory: &Segment, stored: &StoredPage) -> Result<PageRecord, Mismatch> {
    let PageRecord { name, payload_bytes, payload_crc, .. } = stored.page;
    let at = log.locate(stored.extent, payload_bytes)?;
    let buffer = IoBuffer::pool(memory.region(), 0, SLOT_BLOCKS * BLOCK).unwrap();
    let (direction, priority) = (Direction::Read, Priority::Demand);
    let (file, offset, bytes) = (at.file, at.offset, at.bytes);
    submit(log.disk_mut(), Request { token: 0, direction, priority, file, offset, bytes, buffer });
    let read = wait(log.disk_mut(), 1).remove(0);
    read.result.unwrap();
    let mut header = [0; BLOCK];
    read.buffer.read_at(0, &mut header).unwrap();
    let crc = read.buffer.crc64(BLOCK, PAYLOAD_BYTES).unwrap();
    log.check(stored.extent, &Expected { name, payload_bytes, payload_crc }, &header, crc)
}

#[test]
fn pages_outlive_the_disk_and_change_engines() {
    let engines = [DiskEngine::IoUring, DiskEngine::Threads];
    for (first, second) in [(engines[0], engines[1]), (engines[1], engines[0])] {
        let (dir, memory) = (on_disk(), segment(SLOTS * SLOT_BLOCKS * BLOCK));
        let mut log = start(dir.path(), first, &memory);
        while log.recover().is_some() {}
        write_all(&mut log, &memory);
        drop(log.close().unwrap());

        let mut log = start(dir.path(), second, &memory);
        let mut found = Vec::new();
        while let Some(recovered) = log.recover() {
            found.extend(recovered.pages);
        }
        assert_eq!(found.len() as u64, PAGES);
        for stored in &found {
            let number = u64::from_le_bytes(stored.page.name.key[..8].try_into().unwrap());
            assert_eq!(read(&mut log, &memory, stored), Ok(page(number)));
            let mut seen = vec![0; PAYLOAD_BYTES];
            memory.read_at(BLOCK, &mut seen).unwrap();
            assert!(seen == payload(number), "page {number} by {second:?}");
        }
        // The control: one byte of one page is another.
        let victim = found[7];
        let at = log.locate(victim.extent, PAYLOAD_BYTES as u32).unwrap();
        let place = at.offset + (BLOCK + 12_345) as u64;
        let mut byte = [0];
        log.disk_mut().read(at.file, place, &mut byte).unwrap();
        log.disk_mut().write(at.file, place, &[byte[0] ^ 1]).unwrap();
        assert_eq!(read(&mut log, &memory, &victim), Err(Mismatch::Payload));
        assert_eq!(log.disk_mut().in_flight(), 0);
    }
}
