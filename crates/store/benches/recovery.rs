//! A warm start over a million pages: from checkpoint and footers, and from footers alone.
//!
//! The pages are placed but their bytes never written: recovery does not read them.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use orbitkv_store::{HostDirectory, Log, LogConfig, PageName, PageRecord};

const PAGES: u64 = 1_000_000;
/// Few enough that the files need little room: 8 KiB of disk a page.
const PAYLOAD_BYTES: u32 = 4096;
const CONFIG: LogConfig = LogConfig { capacity_bytes: 16 << 30, segment_bytes: 1 << 30, min_free_bytes: 0 };

fn open(path: &Path) -> Log<HostDirectory> {
    Log::open(HostDirectory::open(path).unwrap(), CONFIG).unwrap()
}

fn page(number: u64) -> PageRecord {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    let name = PageName { namespace: [(number % 5) as u8; 32], group: 0, key, shard: 0 };
    let depth = (number % 512) as u32;
    let (payload_bytes, payload_crc) = (PAYLOAD_BYTES, number);
    PageRecord { name, shard_count: 1, parent: Some(key), depth, boundary: 0, payload_bytes, payload_crc }
}

fn fill(path: &Path) {
    let mut log = open(path);
    for number in 0..PAGES {
        let placement = log.append(&page(number)).unwrap();
        log.written(placement.extent, &Ok(())).unwrap();
    }
    log.close().unwrap();
}

fn recover(path: &Path) -> u64 {
    let mut log = open(path);
    let mut pages = 0;
    while let Some(recovered) = log.recover() {
        pages += black_box(&recovered.pages).len() as u64;
    }
    pages
}

fn recovery(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path());
    let mut group = criterion.benchmark_group("recovery_of_1m_pages");
    group.throughput(Throughput::Elements(PAGES)).sample_size(10);
    group.bench_function("checkpoint_and_footers", |bencher| {
        bencher.iter(|| assert_eq!(recover(directory.path()), PAGES));
    });
    std::fs::remove_file(directory.path().join("checkpoint")).unwrap();
    group.bench_function("footers", |bencher| {
        bencher.iter(|| assert_eq!(recover(directory.path()), PAGES));
    });
    group.finish();
}

criterion_group!(benches, recovery);
criterion_main!(benches);
