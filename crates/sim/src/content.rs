//! What pages hold: a few words that name the page and the shard, so thousands cost nothing.

use crate::rng::mix;
use orbitkv_core::{BlockHash, GroupId, NamespaceDigest, SlotRef};
use std::collections::BTreeMap;

/// Parts of a page that one beat of a copy moves: a half-copied page is visibly torn.
pub(crate) const STRIPES: usize = 2;

/// The bytes of one slot, as far as the simulation cares.
pub(crate) type Words = [u64; STRIPES];

/// A page's name as the clients know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: NamespaceDigest,
    pub(crate) group: GroupId,
    pub(crate) hash: BlockHash,
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).enumerate().fold(0, |w, (i, b)| w | u64::from(*b) << (8 * i))
}

impl Key {
    /// What a shard of the page holds when it is complete.
    pub(crate) fn words(&self, shard: u16) -> Words {
        let lead = mix(word(&self.namespace.0) ^ u64::from(self.group.0) << 32 ^ u64::from(shard));
        let tag = mix(lead ^ word(&self.hash.0));
        std::array::from_fn(|stripe| mix(tag.wrapping_add(stripe as u64)))
    }
}

/// Stands for the CRC-64 of a payload.
pub(crate) fn checksum(words: &Words) -> u64 {
    words.iter().fold(0x6f72_6269_746b_7631, |crc, w| mix(crc ^ w))
}

/// The memory of the pool, written by copies alone.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    segments: BTreeMap<u32, Vec<Words>>,
}

impl Memory {
    /// Maps a segment. Fresh memory holds zeros.
    pub(crate) fn map(&mut self, segment: u32, slots: usize) {
        self.segments.insert(segment, vec![[0; STRIPES]; slots]);
    }

    pub(crate) fn unmap(&mut self, segment: u32) {
        self.segments.remove(&segment);
    }

    pub(crate) fn read(&self, at: SlotRef) -> Option<&Words> {
        self.segments.get(&at.segment.0)?.get(at.index as usize)
    }

    pub(crate) fn write(&mut self, at: SlotRef, stripe: usize, word: u64) -> bool {
        let slot = self.segments.get_mut(&at.segment.0).and_then(|s| s.get_mut(at.index as usize));
        let place = slot.and_then(|words| words.get_mut(stripe));
        place.map(|place| *place = word).is_some()
    }
}
