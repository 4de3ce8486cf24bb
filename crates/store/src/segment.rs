//! One segment file while the directory is open.

use crate::contents::{Contents, Located};
use crate::directory::{FileId, FileSize};
use crate::extent::{Extent, next_life};
use crate::format::{BLOCK_BYTES_U64, CheckpointSegment, SegmentState};
use crate::writer::Writer;
use std::collections::{BTreeMap, BTreeSet};

/// What is in it, and what may be done with it.
#[derive(Debug)]
pub(crate) enum State {
    /// Found at start; not read yet.
    Unread(Option<CheckpointSegment>),
    /// Takes pages.
    Open(Writer),
    /// Takes no more; some are still being written.
    Closing(Writer),
    /// Only read.
    Sealed,
    /// Only read; these pages are being moved, with the blocks that each needs elsewhere.
    Evicting(BTreeMap<u32, u64>),
    /// Nothing in it is wanted.
    Free,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) id: u32,
    pub(crate) file: FileId,
    pub(crate) size: FileSize,
    pub(crate) generation: u64,
    /// Reuses since the directory was opened; see [`Extent`].
    pub(crate) life: u32,
    /// Sequences of its pages: from the first to below the next.
    pub(crate) first_sequence: u64,
    pub(crate) next_sequence: u64,
    /// Pages that were found or written well.
    pub(crate) pages: u32,
    /// Blocks of those pages, headers included.
    pub(crate) used_blocks: u64,
    /// Zero without a footer.
    pub(crate) footer_blocks: u32,
    /// Positions of pages that are not wanted any more.
    pub(crate) dead: BTreeSet<u32>,
    pub(crate) state: State,
    /// Something was written since the last sync.
    pub(crate) unsynced: bool,
    /// The file can be read, and neither be used again nor removed.
    pub(crate) barred: bool,
}

impl Segment {
    pub(crate) fn new(id: u32, file: FileId, size: FileSize) -> Self {
        Self {
            id,
            file,
            size,
            generation: 0,
            life: 0,
            first_sequence: 0,
            next_sequence: 0,
            pages: 0,
            used_blocks: 0,
            footer_blocks: 0,
            dead: BTreeSet::new(),
            state: State::Free,
            unsynced: false,
            barred: false,
        }
    }

    /// A new use of a free segment: extents of the one before name nothing from now on.
    pub(crate) fn begin(&mut self, generation: u64, first_sequence: u64) {
        self.clear();
        self.generation = generation;
        (self.first_sequence, self.next_sequence) = (first_sequence, first_sequence);
        self.state = State::Open(Writer::new(self.size.bytes));
    }

    /// Nothing in it is wanted any more.
    pub(crate) fn clear(&mut self) {
        self.life = next_life(self.life);
        (self.first_sequence, self.next_sequence) = (0, 0);
        (self.pages, self.used_blocks, self.footer_blocks) = (0, 0, 0);
        self.dead.clear();
        self.state = State::Free;
    }

    /// What was found in it at start.
    pub(crate) fn adopt(&mut self, contents: &Contents) {
        self.generation = contents.generation;
        (self.first_sequence, self.next_sequence) = (contents.first_sequence, contents.next_sequence);
        self.pages = u32::try_from(contents.pages.len()).unwrap_or(u32::MAX);
        self.used_blocks = contents.pages.iter().map(Located::blocks).sum();
        self.footer_blocks = contents.footer_blocks;
        self.state = if contents.pages.is_empty() { State::Free } else { State::Sealed };
    }

    /// What counts against the capacity: a file without its room allocated may still grow into it.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.size.allocated_bytes.max(self.size.bytes)
    }

    pub(crate) fn extent(&self, block: u32) -> Extent {
        Extent::new(self.id, self.life, block)
    }

    /// Whether the extent is of this life and there may be a page.
    pub(crate) fn holds(&self, extent: Extent) -> bool {
        let readable = !matches!(self.state, State::Unread(_) | State::Free);
        let inside = u64::from(extent.block()) * BLOCK_BYTES_U64 < self.size.bytes;
        readable && inside && extent.block() > 0 && extent.life() == self.life
    }

    /// Nothing in it is wanted, though not all of it was erased one by one.
    pub(crate) fn is_garbage(&self) -> bool {
        self.dead.len() as u64 >= u64::from(self.pages)
    }

    /// Found at start, and there are no pages in it.
    pub(crate) fn was_freed(&self) -> bool {
        matches!(&self.state, State::Unread(Some(line))
            if line.state == SegmentState::Free && line.generation >= self.generation)
    }

    /// Its line in the checkpoint.
    pub(crate) fn line(&self) -> CheckpointSegment {
        let state = match &self.state {
            // As it was found, if it was found there.
            State::Unread(Some(line)) => return *line,
            State::Unread(None) | State::Open(_) | State::Closing(_) => SegmentState::Open,
            State::Sealed | State::Evicting(_) => SegmentState::Sealed,
            State::Free => SegmentState::Free,
        };
        CheckpointSegment {
            segment: self.id,
            state,
            generation: self.generation,
            segment_bytes: self.size.bytes,
            used_bytes: self.used_blocks * BLOCK_BYTES_U64,
            pages: self.pages,
            footer_blocks: self.footer_blocks,
        }
    }
}

/// Name of a segment's file.
pub(crate) fn file_name(id: u32) -> String {
    format!("segment-{id:06}.okv")
}

/// The number in such a name; nothing for any other name, or another way to write the number.
pub(crate) fn parse_name(name: &str) -> Option<u32> {
    let id = name.strip_prefix("segment-")?.strip_suffix(".okv")?.parse().ok()?;
    (file_name(id) == name && id < 1 << crate::extent::SEGMENT_BITS).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_others_do_not() {
        for id in [0, 7, 999_999, 1_000_000, (1 << 22) - 1] {
            assert_eq!(parse_name(&file_name(id)), Some(id));
        }
        for name in ["segment-7.okv", "segment-+00007.okv", "segment-4194304.okv", "segment-000001.okv.old"] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }
}
