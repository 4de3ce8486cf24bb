//! One engine: a scheduler session and its workers.

use crate::{GroupId, GroupSpec, NamespaceId, SessionId};
use orbitkv_contract::{Contract, Rule};
use std::collections::BTreeMap;

/// Bytes to which slots are rounded: the unit of `O_DIRECT` and of the slot header.
const SLOT_ALIGN_BYTES: u64 = 4096;

/// An instance as the core keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) namespace: NamespaceId,
    pub(crate) world_size: u16,
    pub(crate) groups: Vec<GroupSpec>,
    pub(crate) contract: Contract,
    pub(crate) scheduler: Option<SessionId>,
    /// Open worker sessions by rank.
    pub(crate) workers: BTreeMap<u16, SessionId>,
    /// Sessions that name this instance, closed ones included.
    pub(crate) sessions: usize,
    pub(crate) active: bool,
}

/// How pages of a group lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) slot_bytes: u64,
    /// Bytes of one shard, without header.
    pub(crate) payload_bytes: u32,
    pub(crate) shards: u16,
}

impl Shape {
    /// Bytes of all shards of one page, headers included.
    pub(crate) fn page_bytes(self) -> u64 {
        self.slot_bytes * u64::from(self.shards)
    }
}

impl Instance {
    /// The shape of a group. A probe page is one shard with the payload of the first group.
    pub(crate) fn shape(&self, group: GroupId) -> Option<Shape> {
        let probe = group == GroupId::PROBE;
        let spec = self.groups.iter().find(|g| probe || g.group == group)?;
        let slot_bytes =
            (spec.page_bytes + crate::config::SLOT_HEADER_BYTES).next_multiple_of(SLOT_ALIGN_BYTES);
        let payload_bytes = u32::try_from(spec.page_bytes).ok()?;
        Some(Shape { slot_bytes, payload_bytes, shards: if probe { 1 } else { spec.shard_count } })
    }

    /// Whether pages of that group hang together: each is of use only with all before it.
    pub(crate) fn chained(&self, group: GroupId) -> bool {
        self.groups.iter().any(|g| g.group == group && g.rule == Rule::Prefix)
    }

    /// The shapes of all groups.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = Shape> {
        self.groups.iter().filter_map(|g| self.shape(g.group))
    }
}
