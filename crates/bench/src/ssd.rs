//! Pages on the disk that the build is on, against what fio gets from the same file, and what checking costs.

mod limit;
mod ours;
mod recovery;

use crate::report::{Row, Target};
use crate::rounds::{Measured, alternate, median_of_five};
use anyhow::{Context, Result};
use limit::Limit;
use ours::Pages;
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::path::Path;

/// Where the file is, for as long as it is measured: cargo's target directory may be elsewhere, and the system's
/// for temporary files in memory.
const DIRECTORY: &str = "out/bench";
const MAX_PAGE_BYTES: usize = 9 << 20;
/// Of the file; whole pages of each size.
const FILE_BYTES: usize = 252 << 20;
const DEPTH: u32 = 16;
/// Of a core, for a GB: a read at 5 GB/s is then checked by half of one.
const CRC_CPU_SECONDS: f64 = 0.1;

/// Times that the file is read for a figure; it is written once, for the sake of the disk.
const READS: usize = 2;

/// Which way, as fio names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

impl Way {
    /// How often the file is gone through for a figure.
    pub(crate) fn times(self) -> usize {
        if self == Self::Read { READS } else { 1 }
    }
}

/// What is compared: names for the limit that fio is, and for our own loop where there is no fio.
struct Case {
    names: [&'static str; 2],
    way: Way,
    page_bytes: usize,
    least: f64,
}

const CASES: [Case; 4] = [
    Case {
        names: ["SSD reads of 9 MiB against fio", "SSD reads of 9 MiB against a plain loop"],
        way: Way::Read,
        page_bytes: 9 << 20,
        least: 0.95,
    },
    Case {
        names: ["SSD reads of 1 MiB against fio", "SSD reads of 1 MiB against a plain loop"],
        way: Way::Read,
        page_bytes: 1 << 20,
        least: 0.95,
    },
    Case {
        names: ["SSD writes of 1 MiB against fio", "SSD writes of 1 MiB against a plain loop"],
        way: Way::Write,
        page_bytes: 1 << 20,
        least: 0.9,
    },
    Case {
        names: ["SSD reads of 64 KiB against fio", "SSD reads of 64 KiB against a plain loop"],
        way: Way::Read,
        page_bytes: 64 << 10,
        least: 0.85,
    },
];

pub(crate) fn rows() -> Result<Vec<Row>> {
    std::fs::create_dir_all(DIRECTORY).with_context(|| format!("cannot create {DIRECTORY}"))?;
    let directory = tempfile::tempdir_in(DIRECTORY).context("a directory for the file")?;
    let pages = RefCell::new(Pages::open(directory.path(), FILE_BYTES, DEPTH)?);
    let limit = Limit::find(&directory.path().join(ours::FILE), FILE_BYTES, DEPTH);
    let mut rows = vec![crc_row()?];
    for case in &CASES {
        rows.push(case.row(&pages, &limit)?);
    }
    rows.push(beside_row(&pages)?);
    rows.extend(recovery::rows(Path::new(DIRECTORY))?);
    Ok(rows)
}

fn beside_row(pages: &RefCell<Pages>) -> Result<Row> {
    let read = |beside_writes| pages.borrow_mut().read_p99_us(beside_writes);
    let (ours, idle) = alternate(|| read(true), || read(false))?;
    let (name, target) = ("SSD read p99 beside writes, against idle", Target::AtMost(2.0));
    Ok(Row { name, ours, limit: idle.median, unit: "µs", target })
}

impl Case {
    fn row(&self, pages: &RefCell<Pages>, limit: &Limit) -> Result<Row> {
        let (ours, other) = alternate(
            || pages.borrow_mut().gb_per_second(self.way, self.page_bytes),
            || limit.gb_per_second(self.way, self.page_bytes),
        )?;
        Ok(Row {
            name: self.names[usize::from(!limit.is_fio())],
            ours,
            limit: other.median,
            unit: "GB/s",
            target: Target::AtLeast(self.least),
        })
    }
}

/// CPU time of this thread for the checksum of a GB that is in memory and in no cache.
fn crc_row() -> Result<Row> {
    const BYTES: usize = 256 << 20;
    let buffer = orbitkv_uring::IoBuffer::heap(BYTES)?;
    let seconds = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let ours: Measured = median_of_five(|| {
        let start = seconds();
        std::hint::black_box(buffer.crc64(0, BYTES)?);
        Ok((seconds() - start) / (BYTES as f64 / 1e9))
    })?;
    let target = Target::AtMost(1.0);
    Ok(Row { name: "SSD page checksum, CPU time", ours, limit: CRC_CPU_SECONDS, unit: "s/GB", target })
}
