//! The header in front of each page: what the page is, where it belongs, and the sums that prove it.

use super::block::{self, Block, BlockBody, BlockFault, SEQUENCE_END};
use crate::page::{PageName, PageRecord};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bit 0 of the flags: `parent` is a hash.
const HAS_PARENT: u16 = 1;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Body {
    magic: [u8; 8],
    format: U32,
    segment: U32,
    generation: U64,
    sequence: U64,
    block: U32,
    payload_bytes: U32,
    payload_crc: U64,
    namespace: [u8; 32],
    key: [u8; 32],
    parent: [u8; 32],
    depth: U32,
    boundary: U32,
    group: U16,
    shard: U16,
    shard_count: U16,
    flags: U16,
}

const _: () = assert!(size_of::<Body>() == 160);

impl BlockBody for Body {
    const MAGIC: [u8; 8] = *b"OKVPAGE\0";
}

/// One page's header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHeader {
    /// Number of the segment.
    pub segment: u32,
    /// Use of that segment.
    pub generation: u64,
    /// Number of the page in the life of the directory; grows with every page written.
    pub sequence: u64,
    /// Where in the segment this header is, in blocks.
    pub block: u32,
    /// What the page is.
    pub page: PageRecord,
}

impl PageHeader {
    /// The block in front of the payload.
    pub(crate) fn seal(&self) -> Block {
        let page = &self.page;
        block::seal(&Body {
            magic: Body::MAGIC,
            format: U32::ZERO,
            segment: self.segment.into(),
            generation: self.generation.into(),
            sequence: self.sequence.into(),
            block: self.block.into(),
            payload_bytes: page.payload_bytes.into(),
            payload_crc: page.payload_crc.into(),
            namespace: page.name.namespace,
            key: page.name.key,
            parent: page.parent.unwrap_or_default(),
            depth: page.depth.into(),
            boundary: page.boundary.into(),
            group: page.name.group.into(),
            shard: page.name.shard.into(),
            shard_count: page.shard_count.into(),
            flags: if page.parent.is_some() { HAS_PARENT.into() } else { U16::ZERO },
        })
    }

    /// Reads a header whose sum holds. Whether it belongs where it was found is the caller's to check.
    pub(crate) fn open(block: &Block) -> Result<PageHeader, BlockFault> {
        let body: Body = block::open(block)?;
        if body.sequence.get() >= SEQUENCE_END {
            return Err(BlockFault::Checksum);
        }
        let has_parent = body.flags.get() & HAS_PARENT != 0;
        Ok(PageHeader {
            segment: body.segment.get(),
            generation: body.generation.get(),
            sequence: body.sequence.get(),
            block: body.block.get(),
            page: PageRecord {
                name: PageName {
                    namespace: body.namespace,
                    group: body.group.get(),
                    key: body.key,
                    shard: body.shard.get(),
                },
                shard_count: body.shard_count.get(),
                parent: has_parent.then_some(body.parent),
                depth: body.depth.get(),
                boundary: body.boundary.get(),
                payload_bytes: body.payload_bytes.get(),
                payload_crc: body.payload_crc.get(),
            },
        })
    }
}
