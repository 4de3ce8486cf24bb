//! Names and places, as the core and the store write them.

use crate::tier::Place;
use orbitkv_core::{
    BlockHash, ExtentId, FoundShard, GroupId, NamespaceDigest, ShardId, StoredName, StoredShard,
};
use orbitkv_store::{Expected, Extent, PageName, PageRecord, StoredPage};

/// Bits of an extent that carry the number of its directory: those of segment numbers from 2^18 on.
const DEVICE_BITS: u32 = 4;
const SHIFT: u32 = u64::BITS - DEVICE_BITS;
/// Cache directories of one manager.
pub(crate) const MAX_DIRECTORIES: usize = 1 << DEVICE_BITS;
/// Segments of one directory.
pub(super) const MAX_SEGMENTS: u32 = 1 << 18;

/// The directory that an extent is in.
pub(crate) fn device_of(extent: ExtentId) -> usize {
    usize::try_from(extent.0 >> SHIFT).unwrap_or(usize::MAX)
}

/// An extent as the core knows it; `None` for a segment number that leaves no room for the directory's.
pub(super) fn tagged(device: u8, extent: Extent) -> Option<ExtentId> {
    let device = u64::from(device) << SHIFT;
    (extent.segment() < MAX_SEGMENTS).then(|| ExtentId(device | extent.bits()))
}

/// The extent in its directory.
pub(super) fn untagged(extent: ExtentId) -> Extent {
    Extent::from_bits(extent.0 & ((1 << SHIFT) - 1))
}

pub(super) fn page_name(name: &StoredName) -> PageName {
    PageName { namespace: name.namespace.0, group: name.group.0, key: name.hash.0, shard: name.shard.0 }
}

pub(super) fn stored_name(name: &PageName) -> StoredName {
    StoredName {
        namespace: NamespaceDigest(name.namespace),
        group: GroupId(name.group),
        hash: BlockHash(name.key),
        shard: ShardId(name.shard),
    }
}

pub(super) fn record(shard: &StoredShard) -> PageRecord {
    PageRecord {
        name: page_name(&shard.name),
        shard_count: shard.shards,
        parent: shard.parent.map(|parent| parent.0),
        depth: shard.depth,
        boundary: 0,
        payload_bytes: shard.payload_bytes,
        payload_crc: shard.crc,
    }
}

pub(super) fn found(page: &StoredPage, extent: ExtentId) -> FoundShard {
    let record = &page.page;
    let shard = StoredShard {
        name: stored_name(&record.name),
        shards: record.shard_count,
        parent: record.parent.map(BlockHash),
        depth: record.depth,
        payload_bytes: record.payload_bytes,
        crc: record.payload_crc,
    };
    FoundShard { shard, extent }
}

pub(super) fn expected(name: &StoredName, place: &Place, crc: u64) -> Expected {
    Expected {
        name: page_name(name),
        // A slot's payload is smaller than its segment, which is smaller than that.
        payload_bytes: u32::try_from(place.bytes).unwrap_or(u32::MAX),
        payload_crc: crc,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_carries_its_directory_and_comes_back() {
        // The last block of the last life of the last segment that there may be.
        let last = Extent::from_bits((1 << SHIFT) - 1);
        assert_eq!(last.segment(), MAX_SEGMENTS - 1);
        for device in [0, 1, 15] {
            let id = tagged(device, last).unwrap();
            assert_eq!((device_of(id), untagged(id)), (usize::from(device), last));
        }
        assert_eq!(tagged(0, Extent::from_bits(1 << SHIFT)), None, "segment {MAX_SEGMENTS}");
    }
}
