//! A warm start over a million pages: what a manager reads before it knows what its SSD holds.
//!
//! The pages are placed but their bytes never written: recovery does not read them.

use crate::report::{Row, Target};
use crate::rounds::median_of_five;
use anyhow::{Context, Result, ensure};
use orbitkv_store::{HostDirectory, Log, LogConfig, PageName, PageRecord};
use std::path::Path;
use std::time::Instant;

const PAGES: u64 = 1_000_000;
/// Few enough that the files need little room: 8 KiB of disk a page.
const PAYLOAD_BYTES: u32 = 4096;
const CONFIG: LogConfig = LogConfig { capacity_bytes: 16 << 30, segment_bytes: 1 << 30, min_free_bytes: 0 };
/// What is promised.
const LIMIT_SECONDS: f64 = 2.0;

pub(crate) fn rows(beside: &Path) -> Result<Vec<Row>> {
    let directory = tempfile::tempdir_in(beside).context("a cache directory")?;
    fill(directory.path())?;
    let row = |name| -> Result<Row> {
        let ours = median_of_five(|| recover(directory.path()))?;
        Ok(Row { name, ours, limit: LIMIT_SECONDS, unit: "s", target: Target::AtMost(1.0) })
    };
    let with_checkpoint = row("SSD recovery of 1,000,000 pages")?;
    std::fs::remove_file(directory.path().join("checkpoint")).context("the checkpoint")?;
    Ok(vec![with_checkpoint, row("SSD recovery of those, from footers alone")?])
}

fn open(path: &Path) -> Result<Log<HostDirectory>> {
    Ok(Log::open(HostDirectory::open(path)?, CONFIG)?)
}

fn page(number: u64) -> PageRecord {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    let name = PageName { namespace: [(number % 5) as u8; 32], group: 0, key, shard: 0 };
    let depth = (number % 512) as u32;
    let (payload_bytes, payload_crc) = (PAYLOAD_BYTES, number);
    PageRecord { name, shard_count: 1, parent: Some(key), depth, boundary: 0, payload_bytes, payload_crc }
}

fn fill(path: &Path) -> Result<()> {
    let mut log = open(path)?;
    for number in 0..PAGES {
        let placement = log.append(&page(number)).context("a place for a page")?;
        log.written(placement.extent, &Ok(()))?;
    }
    log.close()?;
    Ok(())
}

/// Seconds until all are found.
fn recover(path: &Path) -> Result<f64> {
    let start = Instant::now();
    let mut log = open(path)?;
    let mut pages = 0;
    while let Some(recovered) = log.recover() {
        pages += recovered.pages.len() as u64;
    }
    let seconds = start.elapsed().as_secs_f64();
    ensure!(pages == PAGES, "{pages} of {PAGES} pages were found");
    Ok(seconds)
}
