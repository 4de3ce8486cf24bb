//! What the store knows of a page.

use crate::{Digest, Extent};

/// The full name of one shard of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageName {
    /// Digest of everything that changes the bytes (engine, model, dtype, layout, …).
    pub namespace: Digest,
    /// Cache group of the engine.
    pub group: u16,
    /// Hash of the page's last block.
    pub key: Digest,
    /// Which part of the page: the rank.
    pub shard: u16,
}

impl std::fmt::Debug for PageName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ([a, b, c, d, ..], [e, g, h, i, ..]) = (self.namespace, self.key);
        let (group, shard) = (self.group, self.shard);
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}…/{group}/{e:02x}{g:02x}{h:02x}{i:02x}…/{shard}")
    }
}

/// One shard of a page, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRecord {
    /// Its name.
    pub name: PageName,
    /// Shards that the page has.
    pub shard_count: u16,
    /// Key of the page before it in its chain.
    pub parent: Option<Digest>,
    /// Pages before it in its chain.
    pub depth: u32,
    /// Boundary of the group that the page ends at, in tokens; opaque here, zero where the group has none.
    pub boundary: u32,
    /// Bytes behind the header.
    pub payload_bytes: u32,
    /// CRC-64/NVME of those bytes.
    pub payload_crc: u64,
}

/// A page and where it lies: what recovery and eviction speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPage {
    /// What it is.
    pub page: PageRecord,
    /// Where it is.
    pub extent: Extent,
    /// Of two pages of one name the higher is the newer.
    pub sequence: u64,
}

/// What a reader wants to find: from the index, never from the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Which page.
    pub name: PageName,
    /// Bytes of its payload.
    pub payload_bytes: u32,
    /// CRC-64/NVME of them.
    pub payload_crc: u64,
}
