//! Eviction: the oldest segment goes, and its hot pages are written again.

use crate::contents::{Contents, Located, Place};
use crate::directory::Directory;
use crate::error::{AppendError, StoreError};
use crate::extent::Extent;
use crate::log::{Log, Placement};
use crate::page::{PageRecord, StoredPage};
use crate::segment::{Segment, State};
use crate::writer::{Reserved, Writer};
use std::collections::BTreeMap;

/// What becomes of the pages of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eviction {
    /// Number of the segment.
    pub segment: u32,
    /// Not there any more. Pages that could not be listed, because footer and header are damaged, are not
    /// among them: their extents name nothing from now on, which a read finds out.
    pub lost: Vec<StoredPage>,
    /// To be moved, each one: read it, [`Log::check`] it, [`Log::append_again`], write, [`Log::written`], and
    /// then, whatever came of it, [`Log::let_go`].
    pub hot: Vec<StoredPage>,
    /// The segment could not be recorded as free, or not be removed: after a restart these pages may be found
    /// again. They are whole then; nothing else is wrong.
    pub unrecorded: Option<StoreError>,
}

impl<D: Directory> Log<D> {
    /// Whether a segment should be evicted now: half of the open one is used and there is no other to go on
    /// with, or more is used than may be. False while hot pages are still being moved.
    ///
    /// # Errors
    /// The file system cannot be measured.
    pub fn wants_eviction(&mut self) -> Result<bool, StoreError> {
        let due = !self.read_only && self.writer().is_none_or(Writer::past_half);
        if !(due || self.over) || !self.unread.is_empty() || self.is_evicting() || self.victim().is_none() {
            return Ok(false);
        }
        Ok(self.over || (self.free_segment().is_none() && !self.can_create()?))
    }

    fn is_evicting(&self) -> bool {
        self.segments.values().any(|segment| matches!(segment.state, State::Evicting(_)))
    }

    /// Evicts the oldest sealed segment, or one without a wanted page. `is_hot` says which pages are worth
    /// writing again; they get at most half of the room in the open segment, the newest first, and the others
    /// are lost. Nothing is evicted while there is no sealed segment, or pages are still being moved.
    pub fn evict(&mut self, mut is_hot: impl FnMut(&StoredPage) -> bool) -> Option<Eviction> {
        let id = self.victim().filter(|_| !self.is_evicting())?;
        let mut room = if self.read_only { 0 } else { self.writer().map_or(0, |w| w.room_blocks() / 2) };
        let pages = self.list(id);
        let segment = self.segments.get_mut(&id)?;
        let mut eviction = Eviction { segment: id, ..Eviction::default() };
        let mut moving = BTreeMap::new();
        for located in pages.iter().rev().filter(|located| !segment.dead.contains(&located.block)) {
            let page = stored(segment, located);
            // Its line in the footer may cost another block.
            let blocks = located.blocks() + 1;
            if blocks <= room && is_hot(&page) {
                room -= blocks;
                moving.insert(located.block, located.blocks());
                eviction.hot.push(page);
            } else {
                eviction.lost.push(page);
            }
        }
        self.reserved = Reserved { pages: moving.len() as u64, blocks: moving.values().sum() };
        let done = moving.is_empty();
        segment.state = State::Evicting(moving);
        if done {
            eviction.unrecorded = self.release(id).err();
        }
        Some(eviction)
    }

    /// Places a page of [`Eviction::hot`] anew, in the room that was kept for it. `old` is where it was.
    ///
    /// # Errors
    /// As [`Log::append`]; the page is lost with its segment.
    pub fn append_again(&mut self, old: Extent, page: &PageRecord) -> Result<Placement, AppendError> {
        let kept = self.moving(old).and_then(|moving| moving.get(&old.block()).copied());
        let mut others = self.reserved;
        if let Some(blocks) = kept {
            others.pages = others.pages.saturating_sub(1);
            others.blocks = others.blocks.saturating_sub(blocks);
        }
        let placement = self.place(page, others)?;
        self.reserved = others;
        // Placed: it keeps no more room, but its segment until it is let go.
        if let Some(blocks) = self.moving(old).and_then(|moving| moving.get_mut(&old.block())) {
            *blocks = 0;
        }
        Ok(placement)
    }

    /// Nothing is read from there any more, whether the page was moved or given up. With the last one the
    /// segment is free. Other extents are ignored.
    ///
    /// # Errors
    /// The freed segment could not be removed, or the checkpoint not be written.
    pub fn let_go(&mut self, old: Extent) -> Result<(), StoreError> {
        let Some(moving) = self.moving(old) else {
            return Ok(());
        };
        let Some(blocks) = moving.remove(&old.block()) else {
            return Ok(());
        };
        let last = moving.is_empty();
        if blocks > 0 {
            self.reserved.pages = self.reserved.pages.saturating_sub(1);
            self.reserved.blocks = self.reserved.blocks.saturating_sub(blocks);
        }
        if last { self.release(old.segment()) } else { Ok(()) }
    }

    fn moving(&mut self, old: Extent) -> Option<&mut BTreeMap<u32, u64>> {
        match &mut self.segments.get_mut(&old.segment()).filter(|s| s.holds(old))?.state {
            State::Evicting(moving) => Some(moving),
            _ => None,
        }
    }

    /// Garbage first, then by age.
    fn victim(&self) -> Option<u32> {
        let sealed = self.segments.values().filter(|segment| matches!(segment.state, State::Sealed));
        sealed.min_by_key(|segment| (!segment.is_garbage(), segment.generation)).map(|segment| segment.id)
    }

    /// Pages of a sealed segment, read again: keeping the list in memory would double the index.
    fn list(&mut self, id: u32) -> Vec<Located> {
        let Some(segment) = self.segments.get(&id) else {
            return Vec::new();
        };
        let (file, bytes, generation) = (segment.file, segment.size.bytes, segment.generation);
        let place = Place { segment: id, file, bytes, line: Some(segment.line()) };
        let contents = Contents::read(&mut self.disk, place, generation);
        if contents.generation == generation { contents.pages } else { Vec::new() }
    }

    /// Nothing in the segment is wanted any more.
    fn release(&mut self, id: u32) -> Result<(), StoreError> {
        self.reserved = Reserved::default();
        let Some(segment) = self.segments.get_mut(&id) else {
            return Ok(());
        };
        segment.clear();
        // A segment of another size is of no use.
        let useless = segment.barred || segment.size.bytes != self.config.segment_bytes;
        let freed = if self.over || useless {
            let removed = self.remove_segment(id);
            removed.and(self.shrink().map(|_| ()))
        } else if self.read_only {
            Ok(())
        } else {
            self.write_head("free", id).map(|generation| {
                if let Some(segment) = self.segments.get_mut(&id) {
                    segment.generation = generation;
                }
            })
        };
        // What is free is said there too, so that one that could not be freed is free after a restart.
        let recorded = if self.read_only { Ok(()) } else { self.write_checkpoint(false) };
        freed.and(recorded)
    }
}

/// With the extent of this life.
pub(crate) fn stored(segment: &Segment, located: &Located) -> StoredPage {
    StoredPage { page: located.page, extent: segment.extent(located.block), sequence: located.sequence }
}
