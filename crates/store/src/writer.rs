//! The contents of a segment that is being filled, until its footer is written.

use crate::contents::Located;
use crate::format::{BLOCK_BYTES_U64, Digest, Entry, Footer, footer_blocks};
use crate::page::PageRecord;
use std::collections::{BTreeSet, HashMap};

/// Room that is promised to pages which are moved here from a segment that is evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserved {
    pub(crate) pages: u64,
    pub(crate) blocks: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Writer {
    segment_blocks: u64,
    /// First block that is not used.
    end_block: u64,
    footer: Footer,
    /// Places in the footer's table.
    namespaces: HashMap<Digest, u16>,
    /// Positions of pages that are being written.
    in_flight: BTreeSet<u32>,
}

impl Writer {
    pub(crate) fn new(segment_bytes: u64) -> Self {
        Self {
            segment_blocks: segment_bytes / BLOCK_BYTES_U64,
            end_block: 1,
            footer: Footer::default(),
            namespaces: HashMap::new(),
            in_flight: BTreeSet::new(),
        }
    }

    /// Whether `blocks` for one page, and what is reserved, leave room for the footer.
    pub(crate) fn fits(&self, blocks: u64, reserved: Reserved) -> bool {
        let pages = self.footer.entries.len() as u64 + 1 + reserved.pages;
        // As if each page brought a namespace of its own.
        let namespaces = self.footer.namespaces.len() as u64 + 1 + reserved.pages;
        let footer = footer_blocks(pages, namespaces) + 1;
        namespaces < 1 << 16 && self.end_block + blocks + reserved.blocks + footer <= self.segment_blocks
    }

    /// Blocks for pages, about: footers grow with them.
    pub(crate) fn room_blocks(&self) -> u64 {
        let footer = footer_blocks(self.footer.entries.len() as u64, self.footer.namespaces.len() as u64) + 1;
        self.segment_blocks.saturating_sub(self.end_block + footer)
    }

    /// Less than half is left.
    pub(crate) fn past_half(&self) -> bool {
        self.room_blocks() < self.segment_blocks / 2
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(crate) fn into_footer(self) -> Footer {
        self.footer
    }

    /// Places a page that fits, and takes note of its write. Returns its position.
    pub(crate) fn place(&mut self, page: &PageRecord, blocks: u64) -> u32 {
        let block = u32::try_from(self.end_block).unwrap_or(u32::MAX);
        let next = u16::try_from(self.footer.namespaces.len()).unwrap_or(u16::MAX);
        let namespace = *self.namespaces.entry(page.name.namespace).or_insert_with(|| {
            self.footer.namespaces.push(page.name.namespace);
            next
        });
        self.footer.entries.push(Entry::new(page, namespace, block));
        self.in_flight.insert(block);
        self.end_block += blocks;
        block
    }

    /// The footer of pages that were found without one, where there is room for it. What is missing between
    /// them gets dead entries, so that sequences can be counted; `first_sequence` is that of the first page that
    /// was found, which may be left out of `pages` because it was forgotten.
    pub(crate) fn rebuild(segment_bytes: u64, first_sequence: u64, pages: &[Located]) -> Option<Footer> {
        if !segment_bytes.is_multiple_of(BLOCK_BYTES_U64) {
            // A file that was cut: there is no place for a trailer.
            return None;
        }
        let mut writer = Self::new(segment_bytes);
        let mut sequence = first_sequence;
        for located in pages {
            let mut gap = u32::try_from(writer.end_block).ok()?;
            while sequence < located.sequence && gap < located.block {
                writer.footer.entries.push(Entry::gap(gap));
                (sequence, gap) = (sequence + 1, gap + 1);
            }
            if sequence != located.sequence {
                return None;
            }
            writer.end_block = located.block.into();
            writer.place(&located.page, located.blocks());
            sequence += 1;
        }
        let footer = footer_blocks(writer.footer.entries.len() as u64, writer.footer.namespaces.len() as u64);
        (writer.end_block + footer < writer.segment_blocks).then_some(writer.footer)
    }

    /// The write at that position has ended. Returns the page's entry if one was under way.
    pub(crate) fn ended(&mut self, block: u32) -> Option<Entry> {
        if !self.in_flight.remove(&block) {
            return None;
        }
        self.entry(block).map(|entry| *entry)
    }

    /// Keeps a page from coming back.
    pub(crate) fn kill(&mut self, block: u32) {
        if let Some(entry) = self.entry(block) {
            entry.kill();
        }
    }

    fn entry(&mut self, block: u32) -> Option<&mut Entry> {
        let entries = &mut self.footer.entries;
        let at = entries.binary_search_by_key(&block, Entry::block).ok()?;
        entries.get_mut(at)
    }
}
