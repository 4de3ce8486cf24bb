//! What the core knows of a page.

use crate::{BlockHash, InstanceId, OperationId, PageKey, PagePart, SegmentId, SessionId, SlotRef};

/// Whether a page may be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    /// Being saved; in no index.
    Filling,
    /// Being read from the slower tier.
    Reading,
    /// In the index.
    Sealed,
    /// Read from the slower tier when somebody had just saved it: as good as the one in the index, and gone
    /// with its last lease.
    Spare,
    /// Out of the index for good; its memory goes when leases and custody end.
    Condemned,
}

/// How a page is used: what a lease changes of it. Beside the page, so that a lease and its end touch few lines of
/// memory for the pages of a chain, which mostly lie side by side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) last_use: u64,
    /// As in the page.
    pub(crate) version: u32,
    /// Operations that lease it.
    pub(crate) leases: u32,
    /// Pages behind it, visible or being saved. Counts while it is visible; else `Index::orphans` does.
    pub(crate) children: u32,
}

/// A page and its links, in two lines of the processor's cache. A lookup and its answer touch the first alone: with
/// a large index, the time of a query is the time to fetch those from memory.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Page {
    /// Of its place; see [`crate::slab::PageId`].
    pub(crate) version: u32,
    pub(crate) key: PageKey,
    /// The only shard, or that there are several.
    first: Packed,

    /// All of several shards.
    several: Option<Box<Several>>,
    /// Where it comes from, while that matters.
    pub(crate) origin: Option<Box<Origin>>,
    /// Bytes of one shard, without header.
    pub(crate) payload_bytes: u32,
    pub(crate) depth: u32,
    pub(crate) parent_hash: Option<BlockHash>,
    pub(crate) state: PageState,
    /// A write to the slower tier reads its slots.
    pub(crate) writing: bool,
    pub(crate) committed: u16,
}

const _: () = assert!(size_of::<Page>() == 2 * 64);
const _: () = assert!(std::mem::offset_of!(Page, several) == 64);
const _: () = assert!(size_of::<Usage>() == 24);

/// A slot and its checksum as words, because they must fit the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed([u32; 5]);

/// Shards of a page; `None` once that slot has been freed.
#[derive(Clone, Debug)]
struct Several(Vec<Option<PagePart>>);

/// Where a page comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// It is being saved.
    Saved(Saver),
    /// It was read ahead of demand and not restored since. Bytes of all its shards.
    Ahead { bytes: u64 },
}

/// Who reserved a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saver {
    pub(crate) instance: InstanceId,
    pub(crate) session: SessionId,
    pub(crate) operation: OperationId,
}

impl Packed {
    /// That slot has been freed. Segments are numbered from zero, one after the other: no process makes so many.
    const NONE: Self = Self([u32::MAX; 5]);
    /// The page has several shards.
    const SEVERAL: Self = Self([u32::MAX - 1; 5]);

    fn new(PagePart { slot, crc }: PagePart) -> Self {
        Self([slot.segment.0, slot.index, slot.generation, crc as u32, (crc >> 32) as u32])
    }

    fn part(self) -> Option<PagePart> {
        let Self([segment, index, generation, low, high]) = self;
        let slot = SlotRef { segment: SegmentId(segment), index, generation };
        (segment < u32::MAX - 1).then_some(PagePart { slot, crc: u64::from(high) << 32 | u64::from(low) })
    }
}

impl Page {
    /// A page that has no slots yet, at a depth of the chain behind its parent.
    pub(crate) fn new(
        key: PageKey,
        state: PageState,
        (parent_hash, depth): (Option<BlockHash>, u32),
        payload_bytes: u32,
    ) -> Self {
        Self {
            version: 0,
            key,
            first: Packed::NONE,
            several: None,
            origin: None,
            payload_bytes,
            depth,
            parent_hash,
            state,
            writing: false,
            committed: 0,
        }
    }

    /// Gives it its slots: one for each shard.
    pub(crate) fn set_parts(&mut self, parts: &[PagePart]) {
        (self.first, self.several) = match parts {
            [only] => (Packed::new(*only), None),
            _ => (Packed::SEVERAL, Some(Box::new(Several(parts.iter().copied().map(Some).collect())))),
        };
    }

    /// Its shards, if there are several: told without a look at the second line.
    fn several(&self) -> Option<&[Option<PagePart>]> {
        if self.first != Packed::SEVERAL {
            return None;
        }
        Some(self.several.as_ref().map_or(&[], |several| &several.0))
    }

    /// Number of its shards.
    pub(crate) fn shards(&self) -> usize {
        self.several().map_or(1, <[_]>::len)
    }

    /// One shard, unless its slot has been freed.
    pub(crate) fn part(&self, shard: usize) -> Option<PagePart> {
        match self.several() {
            None if shard == 0 => self.first.part(),
            None => None,
            Some(several) => several.get(shard).copied().flatten(),
        }
    }

    /// All shards, in order; `None` for each whose slot has been freed.
    pub(crate) fn each_shard(&self) -> impl Iterator<Item = Option<PagePart>> + '_ {
        (0..self.shards()).map(|shard| self.part(shard))
    }

    /// All shards whose slots have not been freed.
    pub(crate) fn parts(&self) -> impl Iterator<Item = PagePart> + '_ {
        let several = self.several().unwrap_or_default().iter().copied().flatten();
        self.first.part().into_iter().chain(several)
    }

    /// Adds its shards to those of an answer.
    #[inline]
    pub(crate) fn append_parts(&self, answer: &mut Vec<PagePart>) {
        match self.first.part() {
            Some(only) => answer.push(only),
            None => answer.extend(self.parts()),
        }
    }

    /// Changes the shard in a slot, or takes it out.
    pub(crate) fn set_part(&mut self, slot: SlotRef, to: Option<PagePart>) {
        let Some(several) = &mut self.several else {
            if self.first.part().is_some_and(|part| part.slot == slot) {
                self.first = to.map_or(Packed::NONE, Packed::new);
            }
            return;
        };
        let mut parts = several.0.iter_mut();
        if let Some(part) = parts.find(|part| part.is_some_and(|part| part.slot == slot)) {
            *part = to;
        }
    }

    /// Who reserved it, while it is being saved.
    pub(crate) fn saver(&self) -> Option<Saver> {
        match self.origin.as_deref() {
            Some(Origin::Saved(saver)) => Some(*saver),
            _ => None,
        }
    }

    /// Bytes that were read ahead of demand; they are of use, or lost, once.
    pub(crate) fn take_ahead_bytes(&mut self) -> u64 {
        match self.origin.as_deref() {
            Some(&Origin::Ahead { bytes }) => {
                self.origin = None;
                bytes
            }
            _ => 0,
        }
    }

    /// Key and depth of the page before it in its chain.
    pub(crate) fn parent(&self) -> Option<(PageKey, u32)> {
        Some((PageKey { hash: self.parent_hash?, ..self.key }, self.depth.checked_sub(1)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupId, NamespaceId};

    fn part(number: u32) -> PagePart {
        let slot = SlotRef { segment: SegmentId(number), index: number + 1, generation: number + 2 };
        PagePart { slot, crc: 0xfedc_ba98_7654_3210 + u64::from(number) }
    }

    #[test]
    fn shards_are_kept_whether_they_are_one_or_several() {
        let key = PageKey { namespace: NamespaceId(1), group: GroupId(0), hash: BlockHash([7; 32]) };
        for shards in [1, 2, 8] {
            let mut page = Page::new(key, PageState::Filling, (None, 0), 4096);
            let mut parts: Vec<PagePart> = (0..shards).map(part).collect();
            page.set_parts(&parts);
            assert_eq!(page.parts().collect::<Vec<_>>(), parts);
            let (last, shard) = (part(shards - 1), parts.len() - 1);
            parts[shard].crc = 5;
            page.set_part(part(100).slot, None);
            page.set_part(last.slot, Some(parts[shard]));
            assert_eq!(page.parts().collect::<Vec<_>>(), parts);
            page.set_part(last.slot, None);
            assert_eq!((page.shards(), page.part(shard), page.part(shard + 1)), (parts.len(), None, None));
            assert_eq!(page.parts().collect::<Vec<_>>(), parts[..shard]);
        }
    }
}
