//! The bytes on disk, format 1. `docs/ssd-format.md` says the same for readers in other languages.
//!
//! Everything is little-endian and made of blocks of 4 KiB, so that O_DIRECT can read and write all of it.

mod block;
mod checkpoint;
mod footer;
mod head;
mod header;
mod owner;

pub use block::{BLOCK_BYTES, Block, FORMAT};
pub use header::PageHeader;

pub(crate) use block::{BLOCK_BYTES_U64, BlockFault, blocks_of};
pub(crate) use checkpoint::{Checkpoint, CheckpointSegment, Forgotten, SegmentState};
pub(crate) use footer::{Entry, Footer, FooterView, Trailer, footer_blocks};
pub(crate) use head::SegmentHead;
pub(crate) use owner::Owner;

/// A hash or digest of 32 bytes, opaque here.
pub type Digest = [u8; 32];

/// CRC-64/NVME. The library behind it is named here and nowhere else.
#[must_use]
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// The same sum of bytes that come in pieces.
pub(crate) struct Crc64(crc_fast::Digest);

impl Crc64 {
    pub(crate) fn new() -> Self {
        Self(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.finalize()
    }
}
