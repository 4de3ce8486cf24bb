//! Names of everything the core speaks about. All are plain numbers or opaque bytes.

use std::fmt;
use std::hash::{Hash, Hasher};

/// Monotonic time in microseconds, given by the caller with every event. Never wall time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// The time `ms` milliseconds after this one, saturating.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1_000)))
    }
}

/// One connection of one client. Never reused while the manager lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A client process' own random identity: the same over all its reconnections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u128);

/// The token that joins one scheduler and its workers into an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u128);

/// Digest of everything that changes the bytes of a page (engine, model, dtype, layout, …).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceDigest(pub [u8; 32]);

/// A [`NamespaceDigest`] interned for the life of the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceId(pub u32);

/// A cache group of the engine: layers that share one block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

impl GroupId {
    /// Private to the attach probe of one worker: one page, one shard, open before the instance is
    /// active and never served to a request.
    pub const PROBE: Self = Self(u16::MAX);
}

/// One part of a page: the bytes of one tensor-parallel rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// The engine's hash of a block and its whole prefix. Opaque here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub [u8; 32]);

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}…")
    }
}

/// The full name of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageKey {
    /// Whose bytes these are.
    pub namespace: NamespaceId,
    /// Which cache group.
    pub group: GroupId,
    /// Hash of the page's last block.
    pub hash: BlockHash,
}

/// As numbers, not as the bytes that the derived one feeds: a hasher takes those by a call of its own, and a query
/// hashes a key for each page. The hasher is keyed all the same.
impl Hash for PageKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (halves, _) = self.hash.0.as_chunks::<16>();
        halves.iter().for_each(|half| state.write_u128(u128::from_le_bytes(*half)));
        state.write_u64(u64::from(self.namespace.0) << 16 | u64::from(self.group.0));
    }
}

/// A number a session gives to each of its operations; they only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub u64);

/// Version of an operation: a higher one replaces a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u32);

/// The full name of one version of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// The session that owns the operation.
    pub session: SessionId,
    /// Which of its operations.
    pub operation: OperationId,
    /// Which version of it.
    pub revision: Revision,
}

/// Where one shard of a page lies in the slower tier: a number that the tier gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentId(pub u64);

/// One memory segment of the pool. Never reused while the manager lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

/// One slot of a segment at one point of its life: the generation grows on every reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotRef {
    /// Which segment.
    pub segment: SegmentId,
    /// Which slot of it.
    pub index: u32,
    /// Which use of that slot.
    pub generation: u32,
}
