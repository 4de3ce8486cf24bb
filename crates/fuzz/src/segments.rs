//! A cache directory that somebody has written to.

use crate::allocated_bytes;
use crate::bytes::Bytes;
use orbitkv_store::sim::SimDisk;
use orbitkv_store::{
    BLOCK_BYTES, Completion, Direction, Directory, Disk, Expected, Inspection, Log, LogConfig, PageName,
    PageRecord, Priority, Request, StoredPage, crc64,
};
use std::sync::OnceLock;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SEGMENT_BLOCKS: u64 = 16;
const CONFIG: LogConfig =
    LogConfig { capacity_bytes: 100 * BLOCK, segment_bytes: SEGMENT_BLOCKS * BLOCK, min_free_bytes: 0 };
const FILES: [&str; 5] =
    ["segment-000000.okv", "segment-000001.okv", "segment-000002.okv", "checkpoint", "owner"];
const PAGES: u8 = 14;
/// What reading a directory of 200 KiB may allocate in all: each segment is read a few times.
const MEMORY_BYTES: usize = 16 << 20;

/// Writes to the files of a directory, then all that a manager does with what it finds there.
///
/// A write is `file`, `block`, offset (2 bytes), length, bytes. The upper bits of `file` cut the file there, or
/// seal the block again, so that its sum holds.
pub fn segments(input: &[u8]) {
    let mut disk = SimDisk::new(1 << 24, 1);
    for (name, bytes) in FILES.into_iter().zip(directory()) {
        disk.overwrite(name, 0, bytes);
    }
    let mut input = Bytes::new(input);
    let mut forged = false;
    while !input.is_empty() {
        forged |= change(&mut disk, &mut input);
    }
    let ((), allocated) = allocated_bytes(|| inspect(disk.another(2)));
    assert!(allocated <= MEMORY_BYTES, "{allocated} bytes to read a directory");
    let Some(disk) = start(disk, forged) else { return };
    // What the first start made of it is read like anything else.
    start(disk, forged);
}

fn change(disk: &mut SimDisk, input: &mut Bytes<'_>) -> bool {
    let (file, block) = (input.u8(), u64::from(input.u8()) % (SEGMENT_BLOCKS + 1));
    let offset = u64::from(input.u16()) % BLOCK;
    let length = input.u8();
    let name = FILES[usize::from(file & 31) % FILES.len()];
    let at = block * BLOCK + offset;
    disk.overwrite(name, at, input.take(length.into()));
    if file & 64 != 0 {
        disk.truncate(name, at);
    }
    let sealed = file & 128 != 0;
    if sealed {
        let contents = disk.contents(name).unwrap_or_default();
        let start = usize::try_from(block * BLOCK).unwrap_or(usize::MAX);
        if let Some(body) = contents.get(start..).and_then(|rest| rest.get(..BLOCK_BYTES - 8)) {
            disk.overwrite(name, block * BLOCK + BLOCK - 8, &crc64(body).to_le_bytes());
        }
    }
    sealed
}

fn inspect(disk: SimDisk) {
    let Ok(mut inspection) = Inspection::open(disk) else { return };
    while let Some(segment) = inspection.next_segment(true) {
        assert!(segment.pages.len() < SEGMENT_BLOCKS as usize);
    }
}

/// Opens, reads all pages, evicts everything and fills it again.
fn start(disk: SimDisk, forged: bool) -> Option<SimDisk> {
    let mut log = Log::open(disk, CONFIG).ok()?;
    let mut found = Vec::new();
    while let Some(recovered) = log.recover() {
        found.extend(recovered.pages);
    }
    for stored in &found {
        read(&mut log, stored, forged);
    }
    let mut lost = 0;
    for number in 0..60 {
        if let Some(eviction) = log.evict(|stored| stored.sequence % 2 == 0) {
            for hot in &eviction.hot {
                if let Ok(at) = log.append_again(hot.extent, &hot.page) {
                    let _sealed = log.written(at.extent, &Ok(()));
                }
                let _freed = log.let_go(hot.extent);
            }
            lost += eviction.lost.len() + eviction.hot.len();
        }
        if let Ok(at) = log.append(&page(number)) {
            let _sealed = log.written(at.extent, &Ok(()));
        }
        if let Ok(usage) = log.usage() {
            assert!(usage.used_bytes <= usage.capacity_bytes || usage.free_segments == 0, "{usage:?}");
        }
    }
    assert!(found.is_empty() || lost > 0, "pages that are never evicted");
    log.close().ok()
}

fn read(log: &mut Log<SimDisk>, stored: &StoredPage, forged: bool) {
    let page = &stored.page;
    let Ok(at) = log.locate(stored.extent, page.payload_bytes) else { return };
    let (direction, priority) = (Direction::Read, Priority::Demand);
    let buffer = vec![0; at.bytes as usize];
    let request =
        Request { token: 0, direction, priority, file: at.file, offset: at.offset, bytes: at.bytes, buffer };
    if log.disk_mut().submit(request).is_err() {
        return;
    }
    let mut done: Vec<Completion<Vec<u8>>> = Vec::new();
    log.disk_mut().poll(&mut done);
    let Some(Completion { result: Ok(()), buffer, .. }) = done.pop() else { return };
    let Some((header, rest)) = buffer.split_first_chunk::<BLOCK_BYTES>() else { return };
    let bytes = &rest[..page.payload_bytes as usize];
    let expected =
        Expected { name: page.name, payload_bytes: page.payload_bytes, payload_crc: page.payload_crc };
    let good = log.check(stored.extent, &expected, header, crc64(bytes)).is_ok();
    // Whoever can make sums can make pages.
    if good && !forged {
        let original = (0..PAGES).find(|number| page == &self::page(*number));
        assert!(original.is_some_and(|number| payload(number) == bytes), "a wrong page: {stored:?}");
    }
}

fn payload(number: u8) -> Vec<u8> {
    vec![number; usize::from(number % 4) * 3000 + 10]
}

fn page(number: u8) -> PageRecord {
    let payload = payload(number);
    let name = PageName { namespace: [number % 3; 32], group: 0, key: [number; 32], shard: 0 };
    PageRecord {
        name,
        shard_count: 1,
        parent: (number > 0).then(|| [number - 1; 32]),
        depth: number.into(),
        boundary: 0,
        payload_bytes: u32::try_from(payload.len()).unwrap_or(0),
        payload_crc: crc64(&payload),
    }
}

/// The files of a directory with two sealed segments and an open one, made once.
fn directory() -> &'static [Vec<u8>] {
    static FILES_BYTES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    FILES_BYTES.get_or_init(|| {
        let mut disk = fill();
        let names: Vec<String> = disk.list().unwrap_or_default().into_iter().map(|file| file.name).collect();
        assert!(FILES.iter().all(|name| names.iter().any(|there| there == name)), "{names:?}");
        FILES.iter().map(|name| disk.contents(name).unwrap_or_default()).collect()
    })
}

fn fill() -> SimDisk {
    let Ok(mut log) = Log::open(SimDisk::new(1 << 24, 1), CONFIG) else { return SimDisk::new(0, 0) };
    for number in 0..PAGES {
        let Ok(at) = log.append(&page(number)) else { continue };
        let mut buffer = at.header.to_vec();
        buffer.extend_from_slice(&payload(number));
        buffer.resize(at.bytes as usize, 0);
        let (direction, priority) = (Direction::Write, Priority::Background);
        let request = Request {
            token: 0,
            direction,
            priority,
            file: at.file,
            offset: at.offset,
            bytes: at.bytes,
            buffer,
        };
        let _taken = log.disk_mut().submit(request);
        log.disk_mut().poll(&mut Vec::new());
        let _sealed = log.written(at.extent, &Ok(()));
    }
    log.into_disk()
}
