//! Where pages lie.

use crate::page::{Page, Usage};
use std::num::NonZeroU32;

/// Pages of one chunk: 4 MiB, two huge pages where the allocator gives those.
const CHUNK: usize = 1 << 15;

/// A page while it exists; stale ids find nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageId {
    place: u32,
    version: NonZeroU32,
}

impl PageId {
    /// Where it lies: no other page that exists lies there.
    pub(crate) fn place(self) -> u32 {
        self.place
    }
}

/// All pages. In chunks, so that a page is never moved: copying a large index while it grows would hold everybody
/// up. The version of a place is odd while a page is there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slab {
    chunks: Vec<Vec<Page>>,
    /// Of the same places.
    usage: Vec<Vec<Usage>>,
    /// Places without a page, the one that was left last at the end.
    free: Vec<u32>,
}

impl Slab {
    /// # Panics
    /// With 2^32 pages: each has a slot of the pool, which has room for fewer.
    pub(crate) fn insert(&mut self, mut page: Page) -> PageId {
        let place = self.free.pop().unwrap_or_else(|| self.grow(&page));
        let version = self.at(place).map_or(0, |old| old.version).wrapping_add(1);
        page.version = version;
        if let Some(usage) = self.usage_at(place) {
            *usage = Usage { version, ..Usage::default() };
        }
        if let Some(entry) = self.entry(place) {
            *entry = page;
        }
        PageId { place, version: NonZeroU32::MIN | version }
    }

    /// A new place, where no page is yet.
    fn grow(&mut self, page: &Page) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
            self.usage.push(Vec::with_capacity(CHUNK));
        }
        let full = (self.chunks.len() - 1) * CHUNK;
        let (Some(chunk), Some(usage)) = (self.chunks.last_mut(), self.usage.last_mut()) else {
            return u32::MAX;
        };
        let place = u32::try_from(full + chunk.len()).unwrap_or(u32::MAX);
        assert!(place < u32::MAX, "more pages than a pool has slots");
        chunk.push(Page::new(page.key, page.state, (None, 0), 0));
        usage.push(Usage::default());
        place
    }

    /// Frees the place of a page.
    pub(crate) fn remove(&mut self, id: PageId) {
        let Some(page) = self.get_mut(id) else {
            return;
        };
        // Nothing of it stays but the version, and that is nobody's.
        let version = page.version.wrapping_add(1);
        *page = Page::new(page.key, page.state, (None, 0), 0);
        page.version = version;
        if let Some(usage) = self.usage_at(id.place) {
            usage.version = version;
        }
        self.free.push(id.place);
    }

    /// How a page is used.
    #[inline]
    pub(crate) fn usage(&self, id: PageId) -> Option<&Usage> {
        let usage = self.usage.get(id.place as usize / CHUNK)?.get(id.place as usize % CHUNK)?;
        (usage.version == id.version.get()).then_some(usage)
    }

    #[inline]
    pub(crate) fn usage_mut(&mut self, id: PageId) -> Option<&mut Usage> {
        self.usage_at(id.place).filter(|usage| usage.version == id.version.get())
    }

    #[inline]
    pub(crate) fn get(&self, id: PageId) -> Option<&Page> {
        self.at(id.place).filter(|page| page.version == id.version.get())
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: PageId) -> Option<&mut Page> {
        self.entry(id.place).filter(|page| page.version == id.version.get())
    }

    pub(crate) fn contains(&self, id: PageId) -> bool {
        self.get(id).is_some()
    }

    /// What lies at a place of which the caller knows that a page is there.
    #[inline]
    pub(crate) fn at(&self, place: u32) -> Option<&Page> {
        self.chunks.get(place as usize / CHUNK)?.get(place as usize % CHUNK)
    }

    /// Its id, if a page is there.
    #[inline]
    pub(crate) fn id_at(&self, place: u32) -> Option<PageId> {
        let version = NonZeroU32::new(self.at(place)?.version).filter(|version| version.get() % 2 == 1)?;
        Some(PageId { place, version })
    }

    /// Has the lines of a page fetched that a lookup, an answer and a lease need. Of no meaning.
    #[inline]
    pub(crate) fn touch(&self, place: u32) -> u32 {
        let (chunk, at) = (place as usize / CHUNK, place as usize % CHUNK);
        let page = self.chunks.get(chunk).and_then(|pages| pages.get(at)).map_or(0, |page| page.version);
        let usage = self.usage.get(chunk).and_then(|usage| usage.get(at)).map_or(0, |usage| usage.version);
        page ^ usage
    }

    /// All of them, by place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PageId, &Page)> {
        let places = (0..).zip(self.chunks.iter().flatten());
        places.filter_map(|(place, page)| Some((self.id_at(place)?, page)))
    }

    fn usage_at(&mut self, place: u32) -> Option<&mut Usage> {
        self.usage.get_mut(place as usize / CHUNK)?.get_mut(place as usize % CHUNK)
    }

    fn entry(&mut self, place: u32) -> Option<&mut Page> {
        self.chunks.get_mut(place as usize / CHUNK)?.get_mut(place as usize % CHUNK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageState;
    use crate::{BlockHash, GroupId, NamespaceId, PageKey};

    fn page(depth: u32) -> Page {
        let key = PageKey { namespace: NamespaceId(1), group: GroupId(0), hash: BlockHash([7; 32]) };
        Page::new(key, PageState::Filling, (None, depth), 4096)
    }

    #[test]
    fn an_id_finds_its_own_page_alone() {
        let mut slab = Slab::default();
        let ids: Vec<PageId> = (0..5).map(|depth| slab.insert(page(depth))).collect();
        slab.remove(ids[1]);
        slab.remove(ids[3]);
        slab.remove(ids[3]);
        assert_eq!((slab.get(ids[1]).is_none(), slab.id_at(ids[1].place())), (true, None));
        let (new, other) = (slab.insert(page(10)), slab.insert(page(11)));
        // The place left last is taken first, by another version.
        assert_eq!([new.place(), other.place()], [ids[3].place(), ids[1].place()]);
        assert_eq!((slab.id_at(new.place()), slab.contains(ids[3])), (Some(new), false));
        let depths: Vec<u32> = slab.iter().map(|(_, page)| page.depth).collect();
        assert_eq!(depths, [0, 11, 2, 10, 4]);
        assert_eq!(slab.get_mut(new).map(|page| page.depth), Some(10));
        assert_eq!(slab.insert(page(12)).place(), 5);
    }

    #[test]
    fn pages_are_not_moved_while_others_come() {
        let mut slab = Slab::default();
        let first = slab.insert(page(0));
        let before: *const Page = slab.get(first).unwrap();
        let ids: Vec<PageId> = (1..=2 * CHUNK as u32).map(|depth| slab.insert(page(depth))).collect();
        assert!(std::ptr::eq(before, slab.get(first).unwrap()));
        assert!((1..).zip(&ids).all(|(depth, id)| slab.get(*id).unwrap().depth == depth));
        assert_eq!(slab.iter().count(), 1 + 2 * CHUNK);
    }
}
