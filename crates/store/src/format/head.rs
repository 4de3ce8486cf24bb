//! The first block of a segment: which use of the file this is.

use super::block::{self, Block, BlockBody, BlockFault, SEQUENCE_END};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Body {
    magic: [u8; 8],
    format: U32,
    segment: U32,
    generation: U64,
    first_sequence: U64,
    segment_bytes: U64,
}

const _: () = assert!(size_of::<Body>() == 40);

impl BlockBody for Body {
    const MAGIC: [u8; 8] = *b"OKVSEGM\0";
}

/// A segment's first block, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHead {
    pub(crate) segment: u32,
    pub(crate) generation: u64,
    /// Sequence of the first page of this use.
    pub(crate) first_sequence: u64,
    pub(crate) segment_bytes: u64,
}

impl SegmentHead {
    pub(crate) fn seal(&self) -> Block {
        block::seal(&Body {
            magic: Body::MAGIC,
            format: U32::ZERO,
            segment: self.segment.into(),
            generation: self.generation.into(),
            first_sequence: self.first_sequence.into(),
            segment_bytes: self.segment_bytes.into(),
        })
    }

    pub(crate) fn open(block: &Block) -> Result<Self, BlockFault> {
        let body: Body = block::open(block)?;
        if body.first_sequence.get() >= SEQUENCE_END {
            return Err(BlockFault::Checksum);
        }
        Ok(Self {
            segment: body.segment.get(),
            generation: body.generation.get(),
            first_sequence: body.first_sequence.get(),
            segment_bytes: body.segment_bytes.get(),
        })
    }
}
