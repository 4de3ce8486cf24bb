//! Pages by key.

use crate::slab::{PageId, Slab};
use crate::{BlockHash, GroupId, InstanceId, NamespaceId, PageKey};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::hash::BuildHasher;
use std::hint::black_box;

/// Keys looked up side by side.
const BATCH: usize = 16;

/// All pages, the visible ones by key, and the pending ones by instance and key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    pub(crate) pages: Slab,
    /// Visible pages by their key. Holds their places alone: a lookup needs the page anyway and compares the key
    /// there, and a table of 5 bytes a page stays in the processor's cache. Every place in it is of a page
    /// that exists: `hide` comes before the page's end.
    sealed: HashTable<u32>,
    hasher: DefaultHashBuilder,
    pub(crate) pending: HashMap<(InstanceId, PageKey), PageId>,
    /// Pages being read, by key.
    pub(crate) reading: HashMap<PageKey, PageId>,
    /// Children of pages that are not visible: not yet, because a page is sealed when its copy ends and
    /// copies end in any order, or no more. Keyed by the parent and its depth, so that parents, which are
    /// the client's word, cannot go in circles.
    pub(crate) orphans: HashMap<(PageKey, u32), u32>,
}

impl Index {
    /// The visible page of that key.
    pub(crate) fn sealed(&self, key: &PageKey) -> Option<PageId> {
        let same = |place: &u32| self.pages.at(*place).is_some_and(|page| page.key == *key);
        self.pages.id_at(*self.sealed.find(self.hasher.hash_one(key), same)?)
    }

    /// Makes an existing page visible. No other of its key may be.
    pub(crate) fn publish(&mut self, id: PageId) {
        let Self { pages, sealed, hasher, .. } = self;
        let hash = |place: &u32| pages.at(*place).map_or(0, |page| hasher.hash_one(page.key));
        sealed.insert_unique(hash(&id.place()), id.place(), hash);
    }

    /// Takes a page out of sight, if it is in sight.
    pub(crate) fn hide(&mut self, id: PageId) {
        let Some(page) = self.pages.get(id) else {
            return;
        };
        let hash = self.hasher.hash_one(page.key);
        if let Ok(entry) = self.sealed.find_entry(hash, |place| *place == id.place()) {
            entry.remove();
        }
    }

    /// The visible page of that key, if it is at that depth.
    pub(crate) fn sealed_at(&self, (key, depth): &(PageKey, u32)) -> Option<PageId> {
        self.sealed(key).filter(|id| self.pages.get(*id).is_some_and(|page| page.depth == *depth))
    }

    /// Number of visible pages.
    pub(crate) fn sealed_len(&self) -> usize {
        self.sealed.len()
    }

    /// Every visible page.
    pub(crate) fn sealed_ids(&self) -> impl Iterator<Item = PageId> {
        self.sealed.iter().filter_map(|place| self.pages.id_at(*place))
    }

    /// The longest sealed prefix of these pages, at most `most` of them. Hashes of one group after those of another.
    ///
    /// In a large index each step of a lookup waits for memory. So it is taken for a batch of pages before
    /// the next step, and the waits of a batch overlap.
    pub(crate) fn prefix<'a>(
        &self,
        namespace: NamespaceId,
        groups: impl Iterator<Item = (GroupId, &'a [BlockHash])>,
        most: usize,
    ) -> Vec<PageId> {
        let mut found = Vec::new();
        for (group, hashes) in groups {
            let hashes = hashes.get(..most - found.len()).unwrap_or(hashes);
            found.reserve_exact(hashes.len());
            for batch in hashes.chunks(BATCH) {
                let sealed = self.prefix_of_batch(namespace, group, batch, &mut found);
                if sealed < batch.len() {
                    return found;
                }
            }
        }
        found
    }

    /// Adds the sealed pages that one batch begins with; how many they are.
    fn prefix_of_batch(
        &self,
        namespace: NamespaceId,
        group: GroupId,
        hashes: &[BlockHash],
        found: &mut Vec<PageId>,
    ) -> usize {
        let key = |hash: &BlockHash| PageKey { namespace, group, hash: *hash };
        let mut hashed = [0; BATCH];
        for (hashed, hash) in hashed.iter_mut().zip(hashes) {
            *hashed = self.hasher.hash_one(key(hash));
        }
        // Nearly always the right one; the others of its hash are looked at only if it is not.
        let mut likely = [None; BATCH];
        for (likely, hashed) in likely.iter_mut().zip(&hashed[..hashes.len().min(BATCH)]) {
            *likely = self.sealed.iter_hash(*hashed).next().copied();
        }
        // What is compared, which is also what an answer takes from a page, and what a lease changes.
        let lines = likely.iter().flatten().map(|place| self.pages.touch(*place));
        black_box(lines.fold(0, |lines, line| lines ^ line));
        for (at, (hash, likely)) in hashes.iter().zip(likely).enumerate() {
            let right =
                likely.filter(|place| self.pages.at(*place).is_some_and(|page| page.key == key(hash)));
            let Some(id) =
                right.and_then(|place| self.pages.id_at(place)).or_else(|| self.sealed(&key(hash)))
            else {
                return at;
            };
            found.push(id);
        }
        hashes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Page, PageState};

    fn page(number: u32) -> Page {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&number.to_le_bytes());
        let key = PageKey { namespace: NamespaceId(1), group: GroupId(0), hash: BlockHash(hash) };
        Page::new(key, PageState::Sealed, (None, 0), 4096)
    }

    #[test]
    fn what_is_published_is_found_until_hidden_however_the_table_grows() {
        let mut index = Index::default();
        let ids: Vec<PageId> = (0..5_000).map(|number| index.pages.insert(page(number))).collect();
        ids.iter().for_each(|id| index.publish(*id));
        ids.iter().step_by(2).for_each(|id| index.hide(*id));
        index.hide(ids[0]);
        for (number, id) in ids.iter().enumerate() {
            let found = index.sealed(&page(number as u32).key);
            assert_eq!(found, (number % 2 == 1).then_some(*id), "page {number}");
        }
        assert_eq!((index.sealed_len(), index.sealed_ids().count()), (2_500, 2_500));
    }

    #[test]
    fn another_page_of_the_same_key_is_not_hidden_in_its_place() {
        let mut index = Index::default();
        let (seen, duplicate) = (index.pages.insert(page(1)), index.pages.insert(page(1)));
        index.publish(seen);
        index.hide(duplicate);
        assert_eq!(index.sealed(&page(1).key), Some(seen));
    }

    #[test]
    fn a_prefix_ends_at_the_first_page_that_is_not_there() {
        let mut index = Index::default();
        for number in (0..5_000).filter(|number| *number != 40) {
            let id = index.pages.insert(page(number));
            index.publish(id);
        }
        let prefix = |first: u32, count: u32, most: usize| {
            let hashes: Vec<BlockHash> = (first..first + count).map(|n| page(n).key.hash).collect();
            let (namespace, group) = (NamespaceId(1), GroupId(0));
            let found = index.prefix(namespace, std::iter::once((group, &hashes[..])), most);
            let in_order =
                (first..).zip(&found).all(|(n, id)| index.pages.get(*id).unwrap().key == page(n).key);
            assert!(in_order);
            found.len()
        };
        // Within a batch, at its end, over several, and up to the hole.
        for count in [0, 1, 15, 16, 17, 33] {
            assert_eq!(prefix(0, count, 100), count as usize);
            assert_eq!(prefix(0, 40, count as usize), count as usize);
        }
        assert_eq!((prefix(0, 60, 100), prefix(40, 5, 100), prefix(41, 4_959, 5_000)), (40, 0, 4_959));
    }
}
