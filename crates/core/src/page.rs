//! What the core knows of a page.

use crate::{BlockHash, InstanceId, OperationId, PageKey, PagePart, SessionId};
use smallvec::SmallVec;

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

/// A page and its links, in three lines of the processor's cache. A lookup and a lease touch the first, an answer
/// the second: with a large index, the time of a query is the time to fetch those from memory.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Page {
    /// Of its place; see [`crate::slab::PageId`].
    pub(crate) version: u32,
    pub(crate) state: PageState,
    /// A write to the slower tier reads its slots.
    pub(crate) writing: bool,
    pub(crate) committed: u16,
    pub(crate) key: PageKey,
    pub(crate) last_use: u64,
    /// Operations that lease it.
    pub(crate) leases: u32,
    /// Pages behind it, visible or being saved. Counts while it is visible; else `Index::orphans` does.
    pub(crate) children: u32,

    /// One for each shard; `None` once that slot has been freed.
    pub(crate) parts: Parts,
    /// Bytes of one shard, without header.
    pub(crate) payload_bytes: u32,
    pub(crate) depth: u32,
    /// The reservation it comes from, while it is being saved.
    pub(crate) saver: Option<Box<Saver>>,
    /// Bytes of all shards if it was read ahead of demand and not restored since.
    pub(crate) ahead_bytes: u64,

    pub(crate) parent_hash: Option<BlockHash>,
}

const _: () = assert!(size_of::<Page>() == 3 * 64);
const _: () = assert!(std::mem::offset_of!(Page, parts) == 64);
const _: () = assert!(std::mem::offset_of!(Page, parent_hash) == 128);

/// Who reserved a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saver {
    pub(crate) instance: InstanceId,
    pub(crate) session: SessionId,
    pub(crate) operation: OperationId,
}

impl Page {
    /// A page that nobody leases and that has no slots yet, at a depth of the chain behind its parent.
    pub(crate) fn new(
        key: PageKey,
        state: PageState,
        (parent_hash, depth): (Option<BlockHash>, u32),
        payload_bytes: u32,
    ) -> Self {
        Self {
            version: 0,
            state,
            writing: false,
            committed: 0,
            key,
            last_use: 0,
            leases: 0,
            children: 0,
            parts: Parts::new(),
            payload_bytes,
            depth,
            saver: None,
            ahead_bytes: 0,
            parent_hash,
        }
    }

    /// Key and depth of the page before it in its chain.
    pub(crate) fn parent(&self) -> Option<(PageKey, u32)> {
        Some((PageKey { hash: self.parent_hash?, ..self.key }, self.depth.checked_sub(1)?))
    }
}
