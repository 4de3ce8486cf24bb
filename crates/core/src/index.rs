//! Pages by key, and what the core knows of each.

use crate::{BlockHash, InstanceId, OperationId, PageKey, PagePart, SessionId};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use slotmap::{SlotMap, new_key_type};
use smallvec::SmallVec;
use std::hash::BuildHasher;

new_key_type! {
    /// A page while it exists; stale ids find nothing.
    pub(crate) struct PageId;
}

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

/// The shards of a page; without tensor parallelism the only one lies in the page itself, which saves a
/// lookup a fetch from memory.
pub(crate) type Parts = SmallVec<[Option<PagePart>; 1]>;

/// A page and its links. What a lookup and a lease touch comes first, together: with a large index, the
/// time of a query is the time to fetch those lines from memory.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Page {
    pub(crate) key: PageKey,
    pub(crate) last_use: u64,
    /// Operations that lease it.
    pub(crate) leases: u32,
    /// Pages behind it, visible or being saved. Counts while it is visible; else `Index::orphans` does.
    pub(crate) children: u32,
    pub(crate) state: PageState,
    /// A write to the slower tier reads its slots.
    pub(crate) writing: bool,
    pub(crate) committed: u16,
    pub(crate) depth: u32,
    /// One for each shard; `None` once that slot has been freed.
    pub(crate) parts: Parts,
    pub(crate) parent_hash: Option<BlockHash>,
    /// The reservation it comes from, while it is being saved.
    pub(crate) saver: Option<Box<Saver>>,
    /// Bytes of one shard, without header.
    pub(crate) payload_bytes: u32,
    /// Bytes of all shards if it was read ahead of demand and not restored since.
    pub(crate) ahead_bytes: u64,
    pub(crate) padding: Padding,
}

/// Makes a page, with its version in the map, three cache lines: what a lookup and a lease touch then lies in
/// two of them for every page, in three for no page. Worth a tenth of a query's time.
pub(crate) type Padding = [u64; 2];

const _: () = assert!(size_of::<Page>() == 3 * 64 - 8);

/// Who reserved a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saver {
    pub(crate) instance: InstanceId,
    pub(crate) session: SessionId,
    pub(crate) operation: OperationId,
}

/// Keys looked up side by side.
const BATCH: usize = 16;

/// All pages, the visible ones by key, and the pending ones by instance and key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    pub(crate) pages: SlotMap<PageId, Page>,
    /// Visible pages by their key. Holds ids alone: a lookup needs the page anyway and compares the key
    /// there, and a table of 9 bytes a page stays in the processor's cache. Every id in it is of a page
    /// that exists: `hide` comes before the page's end.
    sealed: HashTable<PageId>,
    hasher: DefaultHashBuilder,
    pub(crate) pending: HashMap<(InstanceId, PageKey), PageId>,
    /// Pages being read, by key.
    pub(crate) reading: HashMap<PageKey, PageId>,
    /// Children of pages that are not visible: not yet, because a page is sealed when its copy ends and
    /// copies end in any order, or no more. Keyed by the parent and its depth, so that parents, which are
    /// the client's word, cannot go in circles.
    pub(crate) orphans: HashMap<(PageKey, u32), u32>,
}

impl Page {
    /// Key and depth of the page before it in its chain.
    pub(crate) fn parent(&self) -> Option<(PageKey, u32)> {
        Some((PageKey { hash: self.parent_hash?, ..self.key }, self.depth.checked_sub(1)?))
    }
}

impl Index {
    /// The visible page of that key.
    pub(crate) fn sealed(&self, key: &PageKey) -> Option<PageId> {
        let same = |id: &PageId| self.pages.get(*id).is_some_and(|page| page.key == *key);
        self.sealed.find(self.hasher.hash_one(key), same).copied()
    }

    /// Makes an existing page visible. No other of its key may be.
    pub(crate) fn publish(&mut self, id: PageId) {
        let Self { pages, sealed, hasher, .. } = self;
        let hash = |id: &PageId| pages.get(*id).map_or(0, |page| hasher.hash_one(page.key));
        sealed.insert_unique(hash(&id), id, hash);
    }

    /// Takes a page out of sight, if it is in sight.
    pub(crate) fn hide(&mut self, id: PageId) {
        let Some(page) = self.pages.get(id) else {
            return;
        };
        if let Ok(entry) = self.sealed.find_entry(self.hasher.hash_one(page.key), |other| *other == id) {
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
        self.sealed.iter().copied()
    }

    /// The longest sealed prefix of `keys`, at most `most` pages.
    ///
    /// In a large index each step of a lookup waits for memory. So it is taken for a batch of keys before
    /// the next step, and the waits of a batch overlap.
    pub(crate) fn prefix(&self, keys: impl Iterator<Item = PageKey>, most: usize) -> Vec<PageId> {
        let mut keys = keys.take(most);
        let mut found = Vec::with_capacity(keys.size_hint().1.unwrap_or_default());
        loop {
            let batch: [Option<PageKey>; BATCH] = std::array::from_fn(|_| keys.next());
            let hashes = batch.map(|key| key.map(|key| self.hasher.hash_one(key)));
            // Nearly always the right one; the others of its hash are looked at only if it is not.
            let likely = hashes.map(|hash| self.sealed.iter_hash(hash?).next().copied());
            for (key, likely) in batch.iter().zip(likely) {
                let Some(key) = key else {
                    return found;
                };
                let right = likely.filter(|id| self.pages.get(*id).is_some_and(|page| page.key == *key));
                let Some(id) = right.or_else(|| self.sealed(key)) else {
                    return found;
                };
                found.push(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupId, NamespaceId};

    fn page(number: u32) -> Page {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&number.to_le_bytes());
        Page {
            key: PageKey { namespace: NamespaceId(1), group: GroupId(0), hash: BlockHash(hash) },
            last_use: 0,
            leases: 0,
            children: 0,
            state: PageState::Sealed,
            committed: 1,
            writing: false,
            ahead_bytes: 0,
            padding: Padding::default(),
            depth: 0,
            payload_bytes: 4096,
            parts: Parts::new(),
            parent_hash: None,
            saver: None,
        }
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
            let found = index.prefix((first..first + count).map(|number| page(number).key), most);
            let in_order = (first..).zip(&found).all(|(n, id)| index.pages[*id].key == page(n).key);
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
