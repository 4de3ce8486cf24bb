//! What all blocks have in common: a magic and the format in front, a checksum at the end.

use super::crc64;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of a block: the unit of every offset and length on disk.
pub const BLOCK_BYTES: usize = 4096;
pub(crate) const BLOCK_BYTES_U64: u64 = BLOCK_BYTES as u64;

/// Sequences are below this. More is damage with a good sum; counting goes on from what is read.
pub(crate) const SEQUENCE_END: u64 = 1 << 62;

/// One block.
pub type Block = [u8; BLOCK_BYTES];

/// The format this code writes, and the newest it reads.
pub const FORMAT: u32 = 1;

/// Where the checksum of a block is; it covers everything before it. The same in every format, so that a
/// damaged format number is not taken for a newer format.
const CRC_AT: usize = BLOCK_BYTES - 8;

/// Why a block is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockFault {
    /// Another kind of block, or none.
    Magic,
    /// Right magic, damaged.
    Checksum,
    /// Whole, and of a format that this code does not know.
    Format(u32),
}

/// A struct that starts with its magic (8 bytes) and the format (4 bytes).
pub(crate) trait BlockBody: FromBytes + IntoBytes + Immutable {
    const MAGIC: [u8; 8];
}

/// The block that holds `body`.
pub(crate) fn seal<T: BlockBody>(body: &T) -> Block {
    let mut block = [0; BLOCK_BYTES];
    let bytes = body.as_bytes();
    block[..bytes.len()].copy_from_slice(bytes);
    block[..8].copy_from_slice(&T::MAGIC);
    block[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    let crc = crc64(&block[..CRC_AT]);
    block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    block
}

/// What `block` holds, if it is whole.
pub(crate) fn open<T: BlockBody>(block: &Block) -> Result<T, BlockFault> {
    if block[..8] != T::MAGIC {
        return Err(BlockFault::Magic);
    }
    if block[CRC_AT..] != crc64(&block[..CRC_AT]).to_le_bytes() {
        return Err(BlockFault::Checksum);
    }
    let format = u32::from_le_bytes([block[8], block[9], block[10], block[11]]);
    if format != FORMAT {
        return Err(BlockFault::Format(format));
    }
    T::read_from_prefix(block).map(|(body, _)| body).map_err(|_| BlockFault::Checksum)
}

/// Blocks that `bytes` take.
pub(crate) fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES_U64)
}
