//! The log: places pages, seals segments, checks what was read.
//!
//! It is a state machine beside the I/O, not around it: pages go from and to the caller's buffers through
//! [`crate::Disk`] while the log only says where, and is told what has ended. It does itself what is rare and
//! small: heads, footers and the checkpoint.

use crate::config::LogConfig;
use crate::directory::{Directory, FileId};
use crate::error::{AppendError, DiskError, Mismatch, StoreError};
use crate::extent::Extent;
use crate::format::{BLOCK_BYTES_U64, Block, Forgotten, PageHeader, SegmentHead, blocks_of};
use crate::page::{Expected, PageRecord};
use crate::segment::{Segment, State, file_name};
use crate::writer::{Reserved, Writer};
use std::collections::BTreeMap;

/// Where a page goes, and what stands in front of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its name until the segment is evicted.
    pub extent: Extent,
    /// Which file.
    pub file: FileId,
    /// Where in the file the header goes; the payload follows at once.
    pub offset: u64,
    /// Header, payload and padding to a multiple of 4 KiB; what the padding holds does not matter.
    pub bytes: u32,
    /// The header: put it in front of the payload, into the slot's own header.
    pub header: Block,
}

/// Where a page is to be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAt {
    /// Which file.
    pub file: FileId,
    /// Where in it the header is.
    pub offset: u64,
    /// Header, payload and padding.
    pub bytes: u32,
}

/// See the module. It keeps each segment file open: as many descriptors as there are segments.
#[derive(Debug)]
pub struct Log<D> {
    pub(crate) disk: D,
    pub(crate) config: LogConfig,
    pub(crate) epoch: u32,
    /// Uses of segments begun in this epoch.
    pub(crate) uses: u32,
    pub(crate) next_sequence: u64,
    pub(crate) segments: BTreeMap<u32, Segment>,
    /// The one that takes pages.
    pub(crate) open: Option<u32>,
    /// Found at start and not read yet; the newest last.
    pub(crate) unread: Vec<u32>,
    pub(crate) found: usize,
    pub(crate) forgotten: Vec<Forgotten>,
    pub(crate) reserved: Reserved,
    pub(crate) read_only: bool,
    /// The file system had no room for a segment below our cap.
    pub(crate) growth_stopped: bool,
    /// More is used than may be: freed segments are removed.
    pub(crate) over: bool,
}

/// Header, payload and padding of a page on disk.
#[must_use]
pub fn page_bytes(payload_bytes: u32) -> u64 {
    (1 + blocks_of(payload_bytes.into())) * BLOCK_BYTES_U64
}

impl<D: Directory> Log<D> {
    /// Places a page: the caller writes `placement.header` and the payload there, and reports the end with
    /// [`Log::written`]. Begins the next segment when this one is full.
    ///
    /// # Errors
    /// The page is not placed, and nothing is owed. [`AppendError::NoRoom`] until a segment was evicted.
    pub fn append(&mut self, page: &PageRecord) -> Result<Placement, AppendError> {
        let reserved = self.reserved;
        self.place(page, reserved)
    }

    /// Places a page where `kept_free` stays free after it.
    pub(crate) fn place(&mut self, page: &PageRecord, kept_free: Reserved) -> Result<Placement, AppendError> {
        if !self.unread.is_empty() {
            return Err(AppendError::Recovering);
        }
        if self.read_only {
            return Err(AppendError::ReadOnly);
        }
        let (payload_bytes, max_bytes) = (page.payload_bytes, self.max_payload_bytes());
        if u64::from(payload_bytes) > max_bytes {
            return Err(AppendError::TooLarge { payload_bytes, max_bytes });
        }
        let blocks = 1 + blocks_of(payload_bytes.into());
        if self.writer().is_none_or(|writer| !writer.fits(blocks, kept_free)) {
            self.roll()?;
        }
        let sequence = self.next_sequence;
        let segment = self.open.and_then(|id| self.segments.get_mut(&id)).ok_or(AppendError::NoRoom)?;
        let State::Open(writer) = &mut segment.state else {
            return Err(AppendError::NoRoom);
        };
        // What is kept free may need the whole of a fresh segment.
        if !writer.fits(blocks, kept_free) {
            return Err(AppendError::NoRoom);
        }
        let block = writer.place(page, blocks);
        self.next_sequence += 1;
        segment.next_sequence = self.next_sequence;
        segment.unsynced = true;
        let (id, generation) = (segment.id, segment.generation);
        let header = PageHeader { segment: id, generation, sequence, block, page: *page }.seal();
        Ok(Placement {
            extent: segment.extent(block),
            file: segment.file,
            offset: u64::from(block) * BLOCK_BYTES_U64,
            bytes: u32::try_from(blocks * BLOCK_BYTES_U64).unwrap_or(u32::MAX),
            header,
        })
    }

    /// Largest payload that fits a segment.
    #[must_use]
    pub fn max_payload_bytes(&self) -> u64 {
        // Head, page header, footer and trailer.
        self.config.segment_bytes - 4 * BLOCK_BYTES_U64
    }

    /// The write of a placed page has ended; after success the page can be read, and will be found again.
    /// Seals the segment if it was the last write of a full one. Extents of no write under way are ignored.
    ///
    /// A write error turns the log read-only, except that a full device only stops its growth.
    ///
    /// # Errors
    /// The segment could not be sealed: its pages can be read all the same, and a restart finds them by their
    /// headers.
    pub fn written(&mut self, extent: Extent, result: &Result<(), DiskError>) -> Result<(), StoreError> {
        let Some(segment) = self.segments.get_mut(&extent.segment()).filter(|s| s.holds(extent)) else {
            return Ok(());
        };
        let (State::Open(writer) | State::Closing(writer)) = &mut segment.state else {
            return Ok(());
        };
        let Some(entry) = writer.ended(extent.block()) else {
            return Ok(());
        };
        if result.is_ok() {
            segment.pages += 1;
            segment.used_blocks += entry.end_block() - u64::from(entry.block());
        } else {
            writer.kill(extent.block());
        }
        let id = segment.id;
        match result {
            Err(DiskError::NoSpace) => {
                self.growth_stopped = true;
                // Its room is not allocated either: the next page goes to a segment that was used before.
                if let Some(open) = self.close_open().filter(|open| *open != id) {
                    self.seal_if_done(open)?;
                }
            }
            Err(_) => self.read_only = true,
            Ok(()) => {}
        }
        self.seal_if_done(id)
    }

    /// The page there is not wanted any more: it is not found again after a restart if its segment is not
    /// sealed yet, it is not moved, and a segment without a wanted page is evicted first.
    pub fn erase(&mut self, extent: Extent) {
        let Some(segment) = self.segments.get_mut(&extent.segment()).filter(|s| s.holds(extent)) else {
            return;
        };
        segment.dead.insert(extent.block());
        if let State::Open(writer) | State::Closing(writer) = &mut segment.state {
            writer.kill(extent.block());
        }
    }

    /// Where to read a page.
    ///
    /// # Errors
    /// [`Mismatch::Gone`]: a miss without I/O.
    pub fn locate(&self, extent: Extent, payload_bytes: u32) -> Result<ReadAt, Mismatch> {
        let segment =
            self.segments.get(&extent.segment()).filter(|s| s.holds(extent)).ok_or(Mismatch::Gone)?;
        let offset = u64::from(extent.block()) * BLOCK_BYTES_U64;
        let bytes = page_bytes(payload_bytes);
        if offset + bytes > segment.size.bytes {
            return Err(Mismatch::Gone);
        }
        Ok(ReadAt { file: segment.file, offset, bytes: u32::try_from(bytes).map_err(|_| Mismatch::Gone)? })
    }

    /// Whether what was read is the page that the index means. `header` is the first block that was read,
    /// `payload_crc` the CRC-64/NVME of the `payload_bytes` behind it, computed after the read.
    ///
    /// # Errors
    /// Any difference: a miss, and the page is bad. The segment may have been reused while the read was under
    /// way: that is found here too.
    pub fn check(
        &self,
        extent: Extent,
        expected: &Expected,
        header: &Block,
        payload_crc: u64,
    ) -> Result<PageRecord, Mismatch> {
        let segment =
            self.segments.get(&extent.segment()).filter(|s| s.holds(extent)).ok_or(Mismatch::Gone)?;
        let header = PageHeader::open(header).map_err(|_| Mismatch::Header)?;
        let page = header.page;
        if header.segment != extent.segment() || header.block != extent.block() {
            return Err(Mismatch::Place);
        }
        let sequences = segment.first_sequence..segment.next_sequence;
        if header.generation != segment.generation || !sequences.contains(&header.sequence) {
            return Err(Mismatch::Generation);
        }
        if page.name != expected.name {
            return Err(Mismatch::Name);
        }
        if page.payload_bytes != expected.payload_bytes || page.payload_crc != expected.payload_crc {
            return Err(Mismatch::Record);
        }
        if page.payload_crc != payload_crc {
            return Err(Mismatch::Payload);
        }
        Ok(page)
    }

    /// The disk, for pages. Names of the log's own files are not to be touched.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    /// Gives the disk back as a crash would find it: nothing is sealed or synced. See [`Log::close`].
    #[must_use]
    pub fn into_disk(self) -> D {
        self.disk
    }

    pub(crate) fn writer(&self) -> Option<&Writer> {
        match &self.segments.get(&self.open?)?.state {
            State::Open(writer) => Some(writer),
            _ => None,
        }
    }

    /// Closes the open segment and begins the next. Without a next one, the open one stays: a smaller page may
    /// fit yet.
    fn roll(&mut self) -> Result<(), AppendError> {
        let next = match self.free_segment() {
            Some(id) => id,
            None => self.create_segment()?.ok_or(AppendError::NoRoom)?,
        };
        let closed = self.close_open();
        let begun = self.begin(next);
        if let Some(id) = closed {
            self.seal_if_done(id)?;
        }
        Ok(begun?)
    }

    /// The open segment takes no more.
    pub(crate) fn close_open(&mut self) -> Option<u32> {
        let id = self.open.take()?;
        let segment = self.segments.get_mut(&id)?;
        segment.state = match std::mem::replace(&mut segment.state, State::Free) {
            State::Open(writer) => State::Closing(writer),
            other => other,
        };
        Some(id)
    }

    /// Begins a new use of a free segment.
    fn begin(&mut self, id: u32) -> Result<(), StoreError> {
        let generation = self.write_head("begin", id)?;
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.begin(generation, self.next_sequence);
            self.open = Some(id);
        }
        Ok(())
    }

    /// Writes a head with a generation that was never used: what is in the segment is of an earlier one from
    /// then on, for a restart too.
    pub(crate) fn write_head(&mut self, what: &'static str, id: u32) -> Result<u64, StoreError> {
        // Not taken back, even if the head cannot be written.
        self.uses = self.uses.saturating_add(1);
        let generation = u64::from(self.epoch) << 32 | u64::from(self.uses);
        self.write_head_of(what, id, generation, self.next_sequence)?;
        Ok(generation)
    }

    pub(crate) fn write_head_of(
        &mut self,
        what: &'static str,
        id: u32,
        generation: u64,
        first_sequence: u64,
    ) -> Result<(), StoreError> {
        let Some(segment) = self.segments.get_mut(&id) else {
            return Ok(());
        };
        let head = SegmentHead { segment: id, generation, first_sequence, segment_bytes: segment.size.bytes };
        segment.unsynced = true;
        self.disk.write(segment.file, 0, &head.seal()).map_err(|source| {
            let protected = source.is_of_one_file();
            segment.barred |= protected;
            self.read_only |= !protected && source != DiskError::NoSpace;
            StoreError::run(what, file_name(id), source)
        })
    }
}
