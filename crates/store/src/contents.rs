//! Reads what a segment holds: from its footer, and where that is lost, from the headers of its pages.

use crate::directory::{Directory, FileId};
use crate::format::{
    BLOCK_BYTES, BLOCK_BYTES_U64, Block, CheckpointSegment, FooterView, Forgotten, PageHeader, SegmentState,
    Trailer, blocks_of,
};
use crate::page::PageRecord;

/// Blocks that a scan reads at once.
const WINDOW_BLOCKS: usize = 64;

/// What the list of pages was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The footer.
    Footer,
    /// The pages' own headers, because there is no whole footer of the newest use.
    Headers,
    /// Nothing: evicted before, or never used.
    Nothing,
}

/// A page inside a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) page: PageRecord,
    pub(crate) block: u32,
    pub(crate) sequence: u64,
}

impl Located {
    /// Header and payload.
    pub(crate) fn blocks(&self) -> u64 {
        1 + blocks_of(self.page.payload_bytes.into())
    }
}

impl Forgotten {
    /// Whether that page is not to come back.
    pub(crate) fn covers(&self, located: &Located) -> bool {
        self.namespace == located.page.name.namespace && located.sequence < self.below_sequence
    }
}

/// Which segment, and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) segment: u32,
    pub(crate) file: FileId,
    /// Size of the file.
    pub(crate) bytes: u64,
    /// What the checkpoint says of it.
    pub(crate) line: Option<CheckpointSegment>,
}

/// What is in a segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) source: Source,
    pub(crate) generation: u64,
    /// By position. Dead ones are left out.
    pub(crate) pages: Vec<Located>,
    pub(crate) first_sequence: u64,
    pub(crate) next_sequence: u64,
    pub(crate) footer_blocks: u32,
}

impl Contents {
    fn nothing(generation: u64) -> Self {
        let source = Source::Nothing;
        Self { source, generation, pages: Vec::new(), first_sequence: 0, next_sequence: 0, footer_blocks: 0 }
    }

    /// Reads a segment, but no use of it before generation `floor`. Unreadable parts are left out.
    pub(crate) fn read<D: Directory>(disk: &mut D, place: Place, floor: u64) -> Self {
        let freed = place.line.is_some_and(|l| l.state == SegmentState::Free && l.generation >= floor);
        if freed {
            return Self::nothing(floor);
        }
        Self::from_footer(disk, place, floor).unwrap_or_else(|| Self::from_headers(disk, place, floor))
    }

    /// The footer, if it is whole and not of a generation before `floor`.
    fn from_footer<D: Directory>(disk: &mut D, place: Place, floor: u64) -> Option<Self> {
        let Place { segment: id, file, bytes: file_bytes, line } = place;
        let last = file_bytes.checked_sub(BLOCK_BYTES_U64)?;
        // With the checkpoint's word for its length, footer and trailer are one read.
        let promised = line.map_or(0, |line| u64::from(line.footer_blocks)) * BLOCK_BYTES_U64;
        let promised = if promised < last { promised } else { 0 };
        let mut bytes = vec![0; usize::try_from(promised).ok()? + BLOCK_BYTES];
        disk.read(file, last - promised, &mut bytes).ok()?;
        let (footer, block) = bytes.split_last_chunk::<BLOCK_BYTES>()?;
        let trailer = Trailer::open(block).ok()?;
        if !trailer.fits(id, file_bytes) || trailer.generation < floor {
            return None;
        }
        let mut elsewhere = Vec::new();
        let footer = if u64::from(trailer.footer_blocks) * BLOCK_BYTES_U64 == promised {
            footer
        } else {
            elsewhere.resize(trailer.footer_blocks as usize * BLOCK_BYTES, 0);
            disk.read(file, u64::from(trailer.footer_block) * BLOCK_BYTES_U64, &mut elsewhere).ok()?;
            &elsewhere
        };
        let footer = FooterView::decode(footer, &trailer)?;
        let numbered = footer.entries.iter().zip(trailer.first_sequence..);
        let live = numbered.filter(|(entry, _)| !entry.is_dead());
        let located = live.map(|(entry, sequence)| {
            Some(Located { page: entry.page(footer.namespaces)?, block: entry.block(), sequence })
        });
        Some(Self {
            source: Source::Footer,
            generation: trailer.generation,
            pages: located.collect::<Option<_>>()?,
            first_sequence: trailer.first_sequence,
            next_sequence: trailer.first_sequence + u64::from(trailer.entries),
            footer_blocks: trailer.footer_blocks,
        })
    }

    /// The newest generation that page headers speak of, but none before `floor`.
    fn from_headers<D: Directory>(disk: &mut D, place: Place, floor: u64) -> Self {
        let id = place.segment;
        let mut window = Window::new(place.file, place.bytes);
        let mut contents = Self { source: Source::Headers, ..Self::nothing(floor) };
        let mut at = 1;
        while at < window.blocks {
            let header = window.block(disk, at).and_then(|block| PageHeader::open(block).ok());
            // A header says itself where it belongs: bytes of a payload that look like one do not.
            let header = header.filter(|header| {
                header.segment == id
                    && u64::from(header.block) == at
                    && header.generation >= contents.generation
            });
            at = match header {
                // What was taken for pages hid others: begin again, with the newer use in mind.
                Some(header) if header.generation > contents.generation && !contents.pages.is_empty() => {
                    contents = Self { source: Source::Headers, ..Self::nothing(header.generation) };
                    1
                }
                Some(header) => at + contents.take(&header, window.blocks),
                // The next block may be a header: what was torn hides no neighbour.
                None => at + 1,
            };
        }
        contents.first_sequence = contents.pages.first().map_or(0, |page| page.sequence);
        contents.next_sequence = contents.pages.last().map_or(0, |page| page.sequence + 1);
        contents
    }

    /// Adds the page of a header that belongs here, if it lies inside the file and is newer than the one before.
    /// Returns the blocks that need no look.
    fn take(&mut self, header: &PageHeader, file_blocks: u64) -> u64 {
        let located = Located { page: header.page, block: header.block, sequence: header.sequence };
        let outside = u64::from(header.block) + located.blocks() > file_blocks;
        if outside || self.pages.last().is_some_and(|last| last.sequence >= header.sequence) {
            return 1;
        }
        self.generation = header.generation;
        self.pages.push(located);
        located.blocks()
    }
}

/// Blocks of a file, read a few at a time.
struct Window {
    file: FileId,
    blocks: u64,
    first: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn new(file: FileId, file_bytes: u64) -> Self {
        Self { file, blocks: file_bytes / BLOCK_BYTES_U64, first: 0, bytes: Vec::new() }
    }

    fn block<D: Directory>(&mut self, disk: &mut D, at: u64) -> Option<&Block> {
        let held = (self.bytes.len() / BLOCK_BYTES) as u64;
        if at < self.first || at >= self.first + held {
            self.fill(disk, at)?;
        }
        let from = usize::try_from(at - self.first).ok()? * BLOCK_BYTES;
        self.bytes.get(from..)?.first_chunk::<BLOCK_BYTES>()
    }

    /// Reads from `at` on; where a whole window cannot be read, that one block.
    fn fill<D: Directory>(&mut self, disk: &mut D, at: u64) -> Option<()> {
        let left = usize::try_from(self.blocks - at).unwrap_or(WINDOW_BLOCKS);
        for blocks in [left.min(WINDOW_BLOCKS), 1] {
            self.first = at;
            self.bytes.resize(blocks * BLOCK_BYTES, 0);
            if disk.read(self.file, at * BLOCK_BYTES_U64, &mut self.bytes).is_ok() {
                return Some(());
            }
        }
        self.bytes.clear();
        None
    }
}
