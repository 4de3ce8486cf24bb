//! What is wrong with a segment beside its pages. A start does not ask: it takes what can be proven. Here
//! damage is told from what an open segment looks like.

use super::MAX_SEGMENT_BYTES;
use super::fault::SegmentFault;
use crate::contents::{Contents, Source};
use crate::directory::Directory;
use crate::format::{
    BLOCK_BYTES, BLOCK_BYTES_U64, Block, BlockFault, CheckpointSegment, PageHeader, SegmentState, Trailer,
};
use crate::survey::Found;

/// Everything but bad pages, in the order of the places.
pub(super) fn faults<D: Directory>(disk: &mut D, found: &Found, contents: &Contents) -> Vec<SegmentFault> {
    let size = size_fault(found);
    let mut faults = Vec::new();
    faults.extend(head_fault(disk, found, contents));
    if contents.source == Source::Headers {
        faults.extend(hidden_headers(disk, found, contents));
        // Where the file was cut or has grown, the place of the trailer is another.
        if size.is_none() {
            faults.extend(footer_fault(disk, found, contents));
        }
        faults.extend(lost(found, contents));
    }
    faults.extend(size);
    faults
}

/// Sequences of a segment without a footer that no page has.
pub(super) fn unaccounted_pages(found: &Found, contents: &Contents) -> u64 {
    if contents.source != Source::Headers || contents.pages.is_empty() {
        return 0;
    }
    let head = found.head.filter(|head| head.generation == contents.generation);
    let first = head.map_or(contents.first_sequence, |head| head.first_sequence.min(contents.first_sequence));
    (contents.next_sequence - first).saturating_sub(contents.pages.len() as u64)
}

/// The checkpoint's line, if it speaks of this use as of a full segment.
fn sealed(found: &Found, contents: &Contents) -> Option<CheckpointSegment> {
    found.line.filter(|line| line.state == SegmentState::Sealed && line.generation == contents.generation)
}

fn size_fault(found: &Found) -> Option<SegmentFault> {
    let bytes = found.size.bytes;
    let written = found.head.map(|head| head.segment_bytes).or(found.line.map(|line| line.segment_bytes));
    match written {
        Some(expected_bytes) => {
            (bytes != expected_bytes).then_some(SegmentFault::Size { bytes, expected_bytes })
        }
        None => {
            let possible = bytes.is_multiple_of(BLOCK_BYTES_U64) && bytes <= MAX_SEGMENT_BYTES && bytes > 0;
            (!possible).then_some(SegmentFault::NoSegment { bytes })
        }
    }
}

/// A file of zeros is one that was just made.
fn head_fault<D: Directory>(disk: &mut D, found: &Found, contents: &Contents) -> Option<SegmentFault> {
    if found.head.is_some() || found.size.bytes < BLOCK_BYTES_U64 {
        return None;
    }
    let zeros = block(disk, found, 0).is_some_and(|block| block.iter().all(|byte| *byte == 0));
    let unused = zeros && contents.pages.is_empty() && found.line.is_none();
    (!unused).then_some(SegmentFault::Head)
}

/// A footer of an earlier use belongs to an open segment; one of this use would have been taken.
fn footer_fault<D: Directory>(disk: &mut D, found: &Found, contents: &Contents) -> Option<SegmentFault> {
    let at = (found.size.bytes / BLOCK_BYTES_U64).checked_sub(1)?;
    let earlier = match block(disk, found, at).as_ref().map(Trailer::open) {
        Some(Ok(trailer)) => trailer.generation < contents.generation,
        Some(Err(BlockFault::Magic)) => true,
        Some(Err(BlockFault::Checksum | BlockFault::Format(_))) | None => false,
    };
    let damaged = !earlier || sealed(found, contents).is_some();
    damaged.then_some(SegmentFault::Footer { block: at })
}

/// Damaged headers at places where a header may be: where a page ended, or the first one would begin.
fn hidden_headers<D: Directory>(disk: &mut D, found: &Found, contents: &Contents) -> Vec<SegmentFault> {
    let mut hidden = Vec::new();
    let mut at = 1;
    let ends = found.size.bytes.min(MAX_SEGMENT_BYTES) / BLOCK_BYTES_U64;
    let starts = contents.pages.iter().map(|located| (located.block.into(), located.blocks()));
    for (start, blocks) in starts.chain([(ends, 0)]) {
        let damaged = at < start
            && block(disk, found, at)
                .is_some_and(|block| matches!(PageHeader::open(&block), Err(BlockFault::Checksum)));
        if damaged {
            hidden.push(SegmentFault::PageHeader { block: at });
        }
        at = start + blocks;
    }
    hidden
}

fn lost(found: &Found, contents: &Contents) -> Option<SegmentFault> {
    let counted = u64::from(sealed(found, contents)?.pages);
    let pages = counted.saturating_sub(contents.pages.len() as u64);
    (pages > 0).then_some(SegmentFault::Lost { pages })
}

fn block<D: Directory>(disk: &mut D, found: &Found, at: u64) -> Option<Block> {
    let mut block: Block = [0; BLOCK_BYTES];
    disk.read(found.file, at * BLOCK_BYTES_U64, &mut block).ok().map(|()| block)
}
