//! What a page is called outside this process: in the slower tier, and after a restart.

use crate::{BlockHash, ExtentId, GroupId, NamespaceDigest, ShardId};

/// One shard of a page. The namespace is its digest: numbers of namespaces end with this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredName {
    /// Whose bytes.
    pub namespace: NamespaceDigest,
    /// Which cache group.
    pub group: GroupId,
    /// Hash of the page's last block.
    pub hash: BlockHash,
    /// Which shard.
    pub shard: ShardId,
}

/// All that the index must know of a shard to find its page again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredShard {
    /// Its name.
    pub name: StoredName,
    /// Shards of the page.
    pub shards: u16,
    /// Hash of the page before it in its chain.
    pub parent: Option<BlockHash>,
    /// Pages before it in its chain.
    pub depth: u32,
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// CRC-64/NVME of the payload.
    pub crc: u64,
}

/// A shard that was in the slower tier when this process began, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundShard {
    /// What it is.
    pub shard: StoredShard,
    /// Where it is.
    pub extent: ExtentId,
}
