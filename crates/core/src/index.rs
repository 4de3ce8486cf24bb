//! Pages by key, and what the core knows of each.

use crate::{BlockHash, InstanceId, OperationId, PageKey, PagePart, SessionId};
use hashbrown::HashMap;
use slotmap::{SlotMap, new_key_type};

new_key_type! {
    /// A page while it exists; stale ids find nothing.
    pub(crate) struct PageId;
}

/// Whether a page may be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    /// Being saved; in no index.
    Filling,
    /// In the index.
    Sealed,
    /// Out of the index for good; its memory goes when leases and custody end.
    Condemned,
}

/// A page and its links.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) key: PageKey,
    pub(crate) state: PageState,
    /// One for each shard; `None` once that slot has been freed.
    pub(crate) parts: Vec<Option<PagePart>>,
    pub(crate) committed: u16,
    pub(crate) parent_hash: Option<BlockHash>,
    pub(crate) depth: u32,
    /// Resident parent, linked at sealing.
    pub(crate) parent: Option<PageId>,
    /// Resident children.
    pub(crate) children: u32,
    /// Operations that lease it.
    pub(crate) leases: u32,
    pub(crate) last_use: u64,
    /// The reservation it came from.
    pub(crate) saver: Saver,
}

/// Who reserved a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saver {
    pub(crate) instance: InstanceId,
    pub(crate) session: SessionId,
    pub(crate) operation: OperationId,
}

/// All pages, the visible ones by key, and the pending ones by instance and key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    pub(crate) pages: SlotMap<PageId, Page>,
    pub(crate) sealed: HashMap<PageKey, PageId>,
    pub(crate) pending: HashMap<(InstanceId, PageKey), PageId>,
}

impl Index {
    /// The longest sealed prefix of `keys`, at most `most` pages.
    pub(crate) fn prefix(&self, keys: impl Iterator<Item = PageKey>, most: usize) -> Vec<PageId> {
        keys.take(most).map_while(|key| self.sealed.get(&key).copied()).collect()
    }
}
