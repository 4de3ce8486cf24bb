//! Pages in the slower tier, by key.

use crate::{BlockHash, ExtentId, NamespaceId, PageKey};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// One shard of a page in the slower tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredPart {
    pub(crate) extent: ExtentId,
    pub(crate) crc: u64,
}

pub(crate) type StoredParts = SmallVec<[StoredPart; 1]>;

/// A page of which every shard is in the slower tier. A large SSD has millions of them: 64 bytes beside the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredPage {
    pub(crate) parts: StoredParts,
    /// Zeros without one.
    parent: BlockHash,
    pub(crate) depth: u32,
    /// Bytes of one shard, at most 1 GiB, and in the highest bit whether there is a parent.
    payload: u32,
}

const _: () = assert!(size_of::<StoredPage>() == 64);
const HAS_PARENT: u32 = 1 << 31;

impl StoredPage {
    pub(crate) fn new(parts: StoredParts, parent: Option<BlockHash>, depth: u32, payload_bytes: u32) -> Self {
        let flag = if parent.is_some() { HAS_PARENT } else { 0 };
        let payload = payload_bytes & !HAS_PARENT | flag;
        Self { parts, parent: parent.unwrap_or(BlockHash([0; 32])), depth, payload }
    }

    /// Hash of the page before it in its chain.
    pub(crate) fn parent_hash(&self) -> Option<BlockHash> {
        (self.payload & HAS_PARENT != 0).then_some(self.parent)
    }

    /// Bytes of one shard, without header.
    pub(crate) fn payload_bytes(&self) -> u32 {
        self.payload & !HAS_PARENT
    }
}

/// The index of the slower tier.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    pages: HashMap<PageKey, StoredPage>,
    /// Pages of each namespace that has any.
    counts: BTreeMap<NamespaceId, usize>,
}

impl Stored {
    pub(crate) fn get(&self, key: &PageKey) -> Option<&StoredPage> {
        self.pages.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &PageKey) -> Option<&mut StoredPage> {
        self.pages.get_mut(key)
    }

    pub(crate) fn contains(&self, key: &PageKey) -> bool {
        self.pages.contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether a namespace has a page here.
    pub(crate) fn has(&self, namespace: NamespaceId) -> bool {
        self.counts.contains_key(&namespace)
    }

    /// Adds a page. No page of its key may be here.
    pub(crate) fn insert(&mut self, key: PageKey, page: StoredPage) {
        *self.counts.entry(key.namespace).or_default() += 1;
        let before = self.pages.insert(key, page);
        assert!(before.is_none(), "{key:?} is stored twice");
    }

    pub(crate) fn remove(&mut self, key: &PageKey) -> Option<StoredPage> {
        let page = self.pages.remove(key)?;
        if let Some(count) = self.counts.get_mut(&key.namespace) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key.namespace);
            }
        }
        Some(page)
    }

    /// Takes out every page of a namespace.
    pub(crate) fn remove_namespace(&mut self, namespace: NamespaceId) -> Vec<StoredPage> {
        self.counts.remove(&namespace);
        self.pages.extract_if(|key, _| key.namespace == namespace).map(|(_, page)| page).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_of_zeros_is_one() {
        let page = |parent, bytes| StoredPage::new(StoredParts::new(), parent, 3, bytes);
        for parent in [None, Some(BlockHash([0; 32])), Some(BlockHash([7; 32]))] {
            for bytes in [1, 4096, 1 << 30] {
                let page = page(parent, bytes);
                assert_eq!((page.parent_hash(), page.payload_bytes(), page.depth), (parent, bytes, 3));
            }
        }
    }
}
