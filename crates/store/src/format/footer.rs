//! The footer of a sealed segment: packed entries, enough to rebuild the index without reading a page.
//!
//! It ends at the trailer, the last block of the segment, which says how long it is. An entry holds the whole
//! parent hash: with a prefix or with the header alone, a warm start would read every page again.

use super::block::{
    self, BLOCK_BYTES, BLOCK_BYTES_U64, Block, BlockBody, BlockFault, SEQUENCE_END, blocks_of,
};
use super::{Digest, crc64};
use crate::page::{PageName, PageRecord};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

const ENTRY_BYTES: u64 = 96;
const DIGEST_BYTES: u64 = 32;

/// Low bits of `place`: position of the page's header, in blocks.
const BLOCK_MASK: u32 = (1 << 24) - 1;
/// `parent` is a hash.
const HAS_PARENT: u32 = 1 << 24;
/// The page was not written, or is not wanted any more. It stays, so that sequences can be counted.
const DEAD: u32 = 1 << 25;

/// One page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Entry {
    key: [u8; 32],
    parent: [u8; 32],
    payload_crc: U64,
    place: U32,
    payload_bytes: U32,
    depth: U32,
    boundary: U32,
    namespace: U16,
    group: U16,
    shard: U16,
    shard_count: U16,
}

const _: () = assert!(size_of::<Entry>() as u64 == ENTRY_BYTES);

impl Entry {
    /// `namespace` is its place in the footer's table.
    pub(crate) fn new(page: &PageRecord, namespace: u16, block: u32) -> Self {
        let parent = if page.parent.is_some() { HAS_PARENT } else { 0 };
        Self {
            key: page.name.key,
            parent: page.parent.unwrap_or_default(),
            payload_crc: page.payload_crc.into(),
            place: (block & BLOCK_MASK | parent).into(),
            payload_bytes: page.payload_bytes.into(),
            depth: page.depth.into(),
            boundary: page.boundary.into(),
            namespace: namespace.into(),
            group: page.name.group.into(),
            shard: page.name.shard.into(),
            shard_count: page.shard_count.into(),
        }
    }

    /// Stands for a page that was lost.
    pub(crate) fn gap(block: u32) -> Self {
        let mut gap = Self::new_zeroed();
        gap.place = (block & BLOCK_MASK | DEAD).into();
        gap
    }

    pub(crate) fn block(&self) -> u32 {
        self.place.get() & BLOCK_MASK
    }

    /// The block behind the page.
    pub(crate) fn end_block(&self) -> u64 {
        u64::from(self.block()) + 1 + blocks_of(self.payload_bytes.get().into())
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.place.get() & DEAD != 0
    }

    pub(crate) fn kill(&mut self) {
        self.place = (self.place.get() | DEAD).into();
    }

    /// The page, with its namespace looked up.
    pub(crate) fn page(&self, namespaces: &[Digest]) -> Option<PageRecord> {
        Some(PageRecord {
            name: PageName {
                namespace: *namespaces.get(usize::from(self.namespace.get()))?,
                group: self.group.get(),
                key: self.key,
                shard: self.shard.get(),
            },
            shard_count: self.shard_count.get(),
            parent: (self.place.get() & HAS_PARENT != 0).then_some(self.parent),
            depth: self.depth.get(),
            boundary: self.boundary.get(),
            payload_bytes: self.payload_bytes.get(),
            payload_crc: self.payload_crc.get(),
        })
    }
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TrailerBody {
    magic: [u8; 8],
    format: U32,
    segment: U32,
    generation: U64,
    first_sequence: U64,
    segment_bytes: U64,
    footer_crc: U64,
    footer_block: U32,
    footer_blocks: U32,
    entries: U32,
    namespaces: U32,
}

const _: () = assert!(size_of::<TrailerBody>() == 64);

impl BlockBody for TrailerBody {
    const MAGIC: [u8; 8] = *b"OKVFOOT\0";
}

/// The last block of a sealed segment: where its footer is, and the sum that proves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) segment: u32,
    pub(crate) generation: u64,
    /// Sequence of the first entry; those of the others follow without gaps.
    pub(crate) first_sequence: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) footer_crc: u64,
    pub(crate) footer_block: u32,
    pub(crate) footer_blocks: u32,
    pub(crate) entries: u32,
    pub(crate) namespaces: u32,
}

impl Trailer {
    pub(crate) fn seal(&self) -> Block {
        block::seal(&TrailerBody {
            magic: TrailerBody::MAGIC,
            format: U32::ZERO,
            segment: self.segment.into(),
            generation: self.generation.into(),
            first_sequence: self.first_sequence.into(),
            segment_bytes: self.segment_bytes.into(),
            footer_crc: self.footer_crc.into(),
            footer_block: self.footer_block.into(),
            footer_blocks: self.footer_blocks.into(),
            entries: self.entries.into(),
            namespaces: self.namespaces.into(),
        })
    }

    pub(crate) fn open(block: &Block) -> Result<Self, BlockFault> {
        let body: TrailerBody = block::open(block)?;
        Ok(Self {
            segment: body.segment.get(),
            generation: body.generation.get(),
            first_sequence: body.first_sequence.get(),
            segment_bytes: body.segment_bytes.get(),
            footer_crc: body.footer_crc.get(),
            footer_block: body.footer_block.get(),
            footer_blocks: body.footer_blocks.get(),
            entries: body.entries.get(),
            namespaces: body.namespaces.get(),
        })
    }

    /// Whether this is the trailer of that segment, in a file of that many bytes, and its numbers agree.
    pub(crate) fn fits(&self, segment: u32, file_bytes: u64) -> bool {
        let (first, blocks) = (u64::from(self.footer_block), u64::from(self.footer_blocks));
        self.segment == segment
            && self.segment_bytes == file_bytes
            && self.first_sequence < SEQUENCE_END
            && first >= 1
            && (first + blocks + 1) * BLOCK_BYTES_U64 == file_bytes
            && blocks == footer_blocks(self.entries.into(), self.namespaces.into())
    }
}

/// Blocks of a footer, without the trailer.
pub(crate) fn footer_blocks(entries: u64, namespaces: u64) -> u64 {
    blocks_of(entries * ENTRY_BYTES + namespaces * DIGEST_BYTES)
}

/// Entries and the digests that they point to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footer {
    /// By position.
    pub(crate) entries: Vec<Entry>,
    pub(crate) namespaces: Vec<Digest>,
}

impl Footer {
    /// Footer and trailer in one piece that ends with the segment, and the block where it starts.
    pub(crate) fn encode(
        &self,
        segment: u32,
        generation: u64,
        first_sequence: u64,
        segment_bytes: u64,
    ) -> (u32, Vec<u8>) {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let blocks = footer_blocks(self.entries.len() as u64, self.namespaces.len() as u64);
        let mut bytes = Vec::with_capacity(blocks as usize * BLOCK_BYTES + BLOCK_BYTES);
        bytes.extend_from_slice(self.entries.as_bytes());
        bytes.extend_from_slice(self.namespaces.as_flattened());
        bytes.resize(blocks as usize * BLOCK_BYTES, 0);
        let first_block = (segment_bytes / BLOCK_BYTES_U64).saturating_sub(blocks + 1);
        let footer_block = u32::try_from(first_block).unwrap_or(u32::MAX);
        let trailer = Trailer {
            segment,
            generation,
            first_sequence,
            segment_bytes,
            footer_crc: crc64(&bytes),
            footer_block,
            footer_blocks: number(blocks as usize),
            entries: number(self.entries.len()),
            namespaces: number(self.namespaces.len()),
        };
        bytes.extend_from_slice(&trailer.seal());
        (footer_block, bytes)
    }
}

/// A footer as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FooterView<'a> {
    pub(crate) entries: &'a [Entry],
    pub(crate) namespaces: &'a [Digest],
}

impl<'a> FooterView<'a> {
    /// Reads the bytes that `trailer` speaks of; nothing unless all of it is whole and in order.
    pub(crate) fn decode(bytes: &'a [u8], trailer: &Trailer) -> Option<Self> {
        if bytes.len() != trailer.footer_blocks as usize * BLOCK_BYTES || crc64(bytes) != trailer.footer_crc {
            return None;
        }
        let (entries, rest) = <[Entry]>::ref_from_prefix_with_elems(bytes, trailer.entries as usize).ok()?;
        let (namespaces, _) =
            <[Digest]>::ref_from_prefix_with_elems(rest, trailer.namespaces as usize).ok()?;
        let mut end = 1;
        for entry in entries {
            if u64::from(entry.block()) < end || usize::from(entry.namespace.get()) >= namespaces.len() {
                return None;
            }
            end = entry.end_block();
        }
        (end <= u64::from(trailer.footer_block)).then_some(Self { entries, namespaces })
    }
}
