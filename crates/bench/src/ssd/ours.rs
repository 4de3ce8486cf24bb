//! Pages through our disk, into a registered pool segment.

use super::{MAX_PAGE_BYTES, Way};
use crate::rounds::percentile;
use anyhow::{Context, Result, bail, ensure};
use orbitkv_shm::{Region, Segment};
use orbitkv_store::{Direction, Directory, Disk, FileId, HostDirectory, Priority, Request};
use orbitkv_uring::{DiskConfig, IoBuffer, PageDisk, PageIo};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const FILE: &str = "pages";

/// Of single reads, and of the writes beside them.
const READ_BYTES: usize = 1 << 20;
const SINGLE_READS: usize = 100;
/// Longer without a completion, and the disk is stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// Threads that take the memory.
const POPULATE_THREADS: usize = 2;

/// A file of pages, and memory for `depth` of them, as a manager takes it for its pool.
pub(crate) struct Pages {
    disk: PageDisk,
    file: FileId,
    bytes: usize,
    depth: usize,
    memory: Arc<Region>,
    /// Buffers by the size of their pages; made once, as slots are.
    buffers: BTreeMap<usize, Vec<IoBuffer>>,
}

impl Pages {
    /// A file of `bytes`, written once.
    pub(crate) fn open(directory: &Path, bytes: usize, depth: u32) -> Result<Self> {
        let config = DiskConfig { queue_depth: 2 * depth, ..DiskConfig::default() };
        let mut disk = PageDisk::open(HostDirectory::open(directory)?, &config)?;
        let depth = usize::try_from(depth)?;
        let segment = Segment::create("orbitkv-bench", depth * MAX_PAGE_BYTES)?;
        segment.populate(POPULATE_THREADS)?;
        let memory = Arc::clone(segment.region());
        disk.add_segment(&memory);
        let file = disk.create(FILE, bytes as u64)?;
        let mut pages = Self { disk, file, bytes, depth, memory, buffers: BTreeMap::new() };
        pages.gb_per_second(Way::Write, MAX_PAGE_BYTES)?;
        Ok(pages)
    }

    fn take_buffers(&mut self, page_bytes: usize) -> Result<Vec<IoBuffer>> {
        if let Some(buffers) = self.buffers.remove(&page_bytes) {
            return Ok(buffers);
        }
        let buffer = |slot| Ok(IoBuffer::pool(&self.memory, slot * MAX_PAGE_BYTES, page_bytes)?);
        (0..self.depth).map(buffer).collect()
    }

    /// All pages of the file, in order, `depth` at a time, as often as that way is to go through it.
    pub(crate) fn gb_per_second(&mut self, way: Way, page_bytes: usize) -> Result<f64> {
        let mut free = self.take_buffers(page_bytes)?;
        let pages = self.bytes / page_bytes;
        let (count, mut next, mut ended) = (way.times() * pages, 0, 0);
        let mut done = Vec::new();
        let start = Instant::now();
        while ended < count {
            while let Some(buffer) = free.pop() {
                if next == count {
                    free.push(buffer);
                    break;
                }
                self.submit(way, next % pages, page_bytes, buffer)?;
                next += 1;
            }
            ensure!(self.disk.wait(Some(PATIENCE))?, "the disk does not answer");
            self.disk.poll(&mut done);
            for completion in done.drain(..) {
                completion.result.context("a page")?;
                free.push(completion.buffer);
                ended += 1;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        self.buffers.insert(page_bytes, free);
        Ok((count * page_bytes) as f64 / seconds / 1e9)
    }

    /// How long single reads take, at the 99th percentile in microseconds: alone, or while as much is written
    /// as the disk takes.
    pub(crate) fn read_p99_us(&mut self, beside_writes: bool) -> Result<f64> {
        let mut free = self.take_buffers(READ_BYTES)?;
        let mut reader = free.pop();
        let pages = self.bytes / READ_BYTES;
        let (mut next_write, mut micros, mut begun) = (0, Vec::new(), Instant::now());
        let mut done = Vec::new();
        while micros.len() < SINGLE_READS || self.disk.in_flight() > 0 {
            let goes_on = micros.len() < SINGLE_READS;
            while let Some(buffer) = free.pop_if(|_| beside_writes && goes_on) {
                self.submit(Way::Write, next_write % pages, READ_BYTES, buffer)?;
                next_write += 1;
            }
            if let Some(buffer) = reader.take_if(|_| goes_on) {
                begun = Instant::now();
                // Far from what is being written.
                self.submit(Way::Read, (next_write + pages / 2) % pages, READ_BYTES, buffer)?;
            }
            ensure!(self.disk.wait(Some(PATIENCE))?, "the disk does not answer");
            self.disk.poll(&mut done);
            for completion in done.drain(..) {
                completion.result.context("a page")?;
                // Reads have the odd tokens.
                if completion.token % 2 == 1 {
                    micros.push(begun.elapsed().as_secs_f64() * 1e6);
                    reader = Some(completion.buffer);
                } else {
                    free.push(completion.buffer);
                }
            }
        }
        free.extend(reader);
        self.buffers.insert(READ_BYTES, free);
        Ok(percentile(micros, 99))
    }

    fn submit(&mut self, way: Way, number: usize, page_bytes: usize, buffer: IoBuffer) -> Result<()> {
        // The priority of each in the product; half of the queue is as deep as fio's whole.
        let (direction, priority) = match way {
            Way::Read => (Direction::Read, Priority::Demand),
            Way::Write => (Direction::Write, Priority::Background),
        };
        let token = 2 * number as u64 + u64::from(way == Way::Read);
        let file = self.file;
        let (offset, bytes) = ((number * page_bytes) as u64, u32::try_from(page_bytes)?);
        match self.disk.submit(Request { token, direction, priority, file, offset, bytes, buffer }) {
            Ok(()) => Ok(()),
            Err(rejected) => bail!("page {number} is refused: {}", rejected.reason),
        }
    }
}
