//! Pages with contents that can be told apart, and the I/O that an I/O thread would do.
#![allow(dead_code, reason = "each test uses its part")]

use orbitkv_store::sim::SimDisk;
use orbitkv_store::{
    AppendError, BLOCK_BYTES, Block, Completion, Direction, Disk, DiskError, Expected, Extent, Log,
    LogConfig, Mismatch, PageName, PageRecord, Placement, Priority, ReadAt, Request, StoreError, StoredPage,
    crc64, page_bytes,
};

pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;
/// The smallest segments there are: 13 blocks for pages.
pub(crate) const SEGMENT: u64 = 16 * BLOCK;

/// Room for so many of the smallest segments.
pub(crate) fn config(segments: u64) -> LogConfig {
    let slack = 16 * BLOCK;
    LogConfig {
        capacity_bytes: segments * SEGMENT + slack + 8 * BLOCK,
        segment_bytes: SEGMENT,
        min_free_bytes: 0,
    }
}

/// A page of that number; numbers make keys, contents and lengths.
pub(crate) fn page(number: u64) -> PageRecord {
    sized(number, (number % 4) as u32 * 3000 + 100)
}

pub(crate) fn sized(number: u64, payload_bytes: u32) -> PageRecord {
    let digest = |salt: u64| {
        let mut digest = [0xAB; 32];
        digest[..8].copy_from_slice(&number.wrapping_add(salt << 40).to_le_bytes());
        digest
    };
    PageRecord {
        name: PageName { namespace: [(number % 3) as u8 + 1; 32], group: 0, key: digest(0), shard: 0 },
        shard_count: 1,
        parent: (!number.is_multiple_of(5)).then(|| digest(1)),
        depth: (number % 7) as u32,
        boundary: (number % 7) as u32 * 16,
        payload_bytes,
        payload_crc: crc64(&payload(number, payload_bytes)),
    }
}

pub(crate) fn payload(number: u64, bytes: u32) -> Vec<u8> {
    let mut payload = vec![0; bytes as usize];
    for (at, word) in (number << 20..).zip(payload.chunks_mut(8)) {
        word.copy_from_slice(&at.to_le_bytes()[..word.len()]);
    }
    payload
}

/// A slot: header, payload, padding.
pub(crate) fn slot(header: &Block, payload: &[u8]) -> Vec<u8> {
    let mut slot = header.to_vec();
    slot.extend_from_slice(payload);
    // What the pool left there.
    slot.resize(slot.len().next_multiple_of(BLOCK_BYTES), 0xEE);
    slot
}

pub(crate) fn expected(page: &PageRecord) -> Expected {
    Expected { name: page.name, payload_bytes: page.payload_bytes, payload_crc: page.payload_crc }
}

pub(crate) fn submit_write<D: Disk<Buffer = Vec<u8>>>(
    log: &mut Log<D>,
    token: u64,
    at: &Placement,
    payload: &[u8],
) {
    let request = Request {
        token,
        direction: Direction::Write,
        priority: Priority::Background,
        file: at.file,
        offset: at.offset,
        bytes: at.bytes,
        buffer: slot(&at.header, payload),
    };
    log.disk_mut().submit(request).unwrap();
}

pub(crate) fn wait<D: Disk>(disk: &mut D) -> Vec<Completion<D::Buffer>> {
    let mut done = Vec::new();
    while disk.in_flight() > 0 {
        disk.poll(&mut done);
    }
    done
}

/// Places and writes a page, and waits.
pub(crate) fn write<D: Disk<Buffer = Vec<u8>>>(
    log: &mut Log<D>,
    page: &PageRecord,
    bytes: &[u8],
) -> Result<Extent, AppendError> {
    let at = log.append(page)?;
    submit_write(log, 0, &at, bytes);
    let result = wait(log.disk_mut()).remove(0).result;
    log.written(at.extent, &result)?;
    match result {
        Ok(()) => Ok(at.extent),
        Err(source) => Err(StoreError::Run { what: "write", file: "a page".to_owned(), source }.into()),
    }
}

/// Evicts what has to go, then writes; all of a page's failures are the test's.
pub(crate) fn write_all<D: Disk<Buffer = Vec<u8>>>(
    log: &mut Log<D>,
    numbers: impl IntoIterator<Item = u64>,
) -> Vec<StoredPage> {
    let mut stored = Vec::new();
    for number in numbers {
        let page = page(number);
        let extent = loop {
            while log.wants_eviction().unwrap() {
                log.evict(|_| false).unwrap();
            }
            match write(log, &page, &payload(number, page.payload_bytes)) {
                // A quota shows only when a segment is made.
                Err(AppendError::NoRoom) => assert!(log.wants_eviction().unwrap()),
                other => break other.unwrap(),
            }
        };
        stored.push(StoredPage { page, extent, sequence: 0 });
    }
    stored
}

pub(crate) fn read_request(token: u64, at: ReadAt) -> Request<Vec<u8>> {
    let (direction, priority, ReadAt { file, offset, bytes }) = (Direction::Read, Priority::Demand, at);
    Request { token, direction, priority, file, offset, bytes, buffer: vec![0x55; bytes as usize] }
}

/// How a read ends that is not a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    Mismatch(Mismatch),
    Disk(DiskError),
}

/// Checks what was read as an I/O thread does.
pub(crate) fn verify<D: Disk>(
    log: &Log<D>,
    extent: Extent,
    want: &Expected,
    slot: &[u8],
) -> Result<Vec<u8>, Missed> {
    let (header, rest) = slot.split_first_chunk::<BLOCK_BYTES>().unwrap();
    let payload = &rest[..want.payload_bytes as usize];
    log.check(extent, want, header, crc64(payload)).map_err(Missed::Mismatch)?;
    Ok(payload.to_vec())
}

/// Reads and checks a page, and waits.
pub(crate) fn read<D: Disk<Buffer = Vec<u8>>>(
    log: &mut Log<D>,
    extent: Extent,
    want: &Expected,
) -> Result<Vec<u8>, Missed> {
    let at = log.locate(extent, want.payload_bytes).map_err(Missed::Mismatch)?;
    assert_eq!(u64::from(at.bytes), page_bytes(want.payload_bytes));
    log.disk_mut().submit(read_request(0, at)).unwrap();
    let done = wait(log.disk_mut()).remove(0);
    done.result.map_err(Missed::Disk)?;
    verify(log, extent, want, &done.buffer)
}

/// Reads everything that is left to read.
pub(crate) fn recover<D: Disk>(log: &mut Log<D>) -> Vec<StoredPage> {
    let mut pages = Vec::new();
    while let Some(recovered) = log.recover() {
        pages.extend(recovered.pages);
    }
    pages
}

/// On an empty simulated disk.
pub(crate) fn log(segments: u64) -> Log<SimDisk> {
    Log::open(SimDisk::new(1 << 30, 1), config(segments)).unwrap()
}

/// Opens again as the next process does.
pub(crate) fn reopen(disk: SimDisk, segments: u64) -> Log<SimDisk> {
    let another = disk.another(2);
    drop(disk);
    Log::open(another, config(segments)).unwrap()
}

/// The numbers that pages were made from.
pub(crate) fn numbers(pages: &[StoredPage]) -> Vec<u64> {
    let mut numbers: Vec<u64> = pages
        .iter()
        .map(|stored| u64::from_le_bytes(stored.page.name.key[..8].try_into().unwrap()))
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Reads a page, and compares.
pub(crate) fn assert_reads(log: &mut Log<SimDisk>, stored: &StoredPage, number: u64) {
    let bytes = read(log, stored.extent, &expected(&stored.page)).unwrap();
    assert!(bytes == payload(number, stored.page.payload_bytes), "page {number}");
}
