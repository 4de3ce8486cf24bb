//! The `checkpoint` file: which segments there are, in which state, and what is not to come back.
//!
//! It saves a warm start one read a segment, and keeps evicted pages from coming back. Nothing depends on it:
//! a segment that is newer than its line here speaks for itself.

use super::block::{self, BLOCK_BYTES, Block, BlockBody, BlockFault, SEQUENCE_END, blocks_of};
use super::{Digest, crc64};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Body {
    magic: [u8; 8],
    format: U32,
    epoch: U32,
    next_sequence: U64,
    segments: U32,
    forgotten: U32,
    lines_crc: U64,
}

const _: () = assert!(size_of::<Body>() == 40);

impl BlockBody for Body {
    const MAGIC: [u8; 8] = *b"OKVCKPT\0";
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Line {
    segment: U32,
    state: U32,
    generation: U64,
    segment_bytes: U64,
    used_bytes: U64,
    pages: U32,
    footer_blocks: U32,
}

const _: () = assert!(size_of::<Line>() == 40);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ForgottenLine {
    namespace: [u8; 32],
    below_sequence: U64,
}

const _: () = assert!(size_of::<ForgottenLine>() == 40);

/// What a segment was when the checkpoint was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// Being filled, or not yet sealed: its footer is of an earlier use.
    Open = 1,
    /// Full of pages, with a footer.
    Sealed = 2,
    /// Evicted: what is in it is not wanted.
    Free = 3,
}

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointSegment {
    pub(crate) segment: u32,
    pub(crate) state: SegmentState,
    pub(crate) generation: u64,
    pub(crate) segment_bytes: u64,
    /// Bytes of its pages and their headers.
    pub(crate) used_bytes: u64,
    pub(crate) pages: u32,
    /// Without the trailer; zero unless sealed.
    pub(crate) footer_blocks: u32,
}

/// Pages of a namespace that are not to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forgotten {
    pub(crate) namespace: Digest,
    /// Those with a lower sequence.
    pub(crate) below_sequence: u64,
}

/// The file, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) epoch: u32,
    pub(crate) next_sequence: u64,
    pub(crate) segments: Vec<CheckpointSegment>,
    pub(crate) forgotten: Vec<Forgotten>,
}

/// Bytes of the file for that many segments and forgotten namespaces.
pub(crate) fn checkpoint_bytes(segments: usize, forgotten: usize) -> u64 {
    (1 + blocks_of((segments + forgotten) as u64 * size_of::<Line>() as u64)) * BLOCK_BYTES as u64
}

impl Checkpoint {
    pub(crate) fn bytes(segments: usize, forgotten: usize) -> u64 {
        checkpoint_bytes(segments, forgotten)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let mut lines: Vec<u8> = self.segments.iter().flat_map(|s| line(s).as_bytes().to_vec()).collect();
        for forgotten in &self.forgotten {
            lines.extend_from_slice(&forgotten.namespace);
            lines.extend_from_slice(&forgotten.below_sequence.to_le_bytes());
        }
        lines.resize(lines.len().next_multiple_of(BLOCK_BYTES), 0);
        let front = block::seal(&Body {
            magic: Body::MAGIC,
            format: U32::ZERO,
            epoch: self.epoch.into(),
            next_sequence: self.next_sequence.into(),
            segments: number(self.segments.len()).into(),
            forgotten: number(self.forgotten.len()).into(),
            lines_crc: crc64(&lines).into(),
        });
        [&front[..], &lines].concat()
    }

    /// Reads a whole file.
    pub(crate) fn decode(file: &[u8]) -> Result<Self, BlockFault> {
        let (front, lines) = file.split_first_chunk::<BLOCK_BYTES>().ok_or(BlockFault::Magic)?;
        let front: &Block = front;
        let body: Body = block::open(front)?;
        if crc64(lines) != body.lines_crc.get() || body.next_sequence.get() >= SEQUENCE_END {
            return Err(BlockFault::Checksum);
        }
        let damaged = |_| BlockFault::Checksum;
        let counts = (body.segments.get() as usize, body.forgotten.get() as usize);
        let (segments, rest) =
            <[Line]>::ref_from_prefix_with_elems(lines, counts.0).map_err(|_| damaged(()))?;
        let (forgotten, _) =
            <[ForgottenLine]>::ref_from_prefix_with_elems(rest, counts.1).map_err(|_| damaged(()))?;
        let segments: Option<_> = segments.iter().map(segment).collect();
        let to_forgotten = |line: &ForgottenLine| Forgotten {
            namespace: line.namespace,
            below_sequence: line.below_sequence.get(),
        };
        Ok(Self {
            epoch: body.epoch.get(),
            next_sequence: body.next_sequence.get(),
            segments: segments.ok_or(BlockFault::Checksum)?,
            forgotten: forgotten.iter().map(to_forgotten).collect(),
        })
    }
}

fn line(of: &CheckpointSegment) -> Line {
    Line {
        segment: of.segment.into(),
        state: (of.state as u32).into(),
        generation: of.generation.into(),
        segment_bytes: of.segment_bytes.into(),
        used_bytes: of.used_bytes.into(),
        pages: of.pages.into(),
        footer_blocks: of.footer_blocks.into(),
    }
}

fn segment(line: &Line) -> Option<CheckpointSegment> {
    let state = match line.state.get() {
        1 => SegmentState::Open,
        2 => SegmentState::Sealed,
        3 => SegmentState::Free,
        _ => return None,
    };
    Some(CheckpointSegment {
        segment: line.segment.get(),
        state,
        generation: line.generation.get(),
        segment_bytes: line.segment_bytes.get(),
        used_bytes: line.used_bytes.get(),
        pages: line.pages.get(),
        footer_blocks: line.footer_blocks.get(),
    })
}
