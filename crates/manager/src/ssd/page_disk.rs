//! What a directory's thread needs of a disk, whatever it is made of.

use crate::tier::{Bell, Place};
use orbitkv_shm::Segment;
use orbitkv_store::{Block, Direction, Disk};
use std::time::Duration;

/// Bytes of the header in front of each payload.
pub(super) const HEADER_BYTES: usize = orbitkv_store::BLOCK_BYTES;

/// Memory of a page on its way: header, payload, padding.
pub(crate) trait PageBuffer: Sized + Send + 'static {
    /// The slot of that payload, `bytes` long from its header on. `None` if it is not that large.
    fn of_slot(place: &Place, bytes: usize, direction: Direction) -> Option<Self>;

    /// Memory of its own, for pages that are moved.
    fn own(bytes: usize) -> Option<Self>;

    /// Puts the header in front.
    fn put_header(&mut self, header: &Block) -> bool;

    /// The header that was read.
    fn header(&self) -> Option<Block>;

    /// CRC-64/NVME of so many bytes behind the header.
    fn payload_crc(&self, bytes: usize) -> Option<u64>;

    /// After a read: whether the bytes are in the slot from now on.
    fn land(&mut self) -> bool;
}

/// A disk that its thread can wait for.
pub(crate) trait PageDisk: Disk<Buffer: PageBuffer> + Send + 'static {
    /// What wakes [`PageDisk::wait`]; `None` if unparking its thread does.
    fn bell(&self) -> Option<Bell>;

    /// Waits until a request may have ended, the bell was rung, or the time is over. It may return early.
    fn wait(&mut self, timeout: Duration);

    /// How it works, for people.
    fn mode(&self) -> String;

    /// Whether pages go past the page cache.
    fn is_direct(&self) -> bool {
        false
    }

    /// What brings pages to the kernel, for labels.
    fn engine(&self) -> &'static str;

    /// Whether the kernel knows every pool segment that was added.
    fn is_registered(&self) -> bool;

    /// Makes a segment of the pool known to the kernel, where that is allowed. Without it all works, a little slower.
    fn add_segment(&mut self, segment: &Segment);

    /// Ends that, before the segment's memory goes.
    fn remove_segment(&mut self, segment: &Segment);
}
