//! What the memory tier holds.

use crate::tier::{Done, Job, Place};
use crc_fast::{CrcAlgorithm, checksum};
use orbitkv_core::{ExtentId, NamespaceDigest, StoredName};
use std::collections::{BTreeMap, VecDeque};

/// Payloads by extent.
#[derive(Debug, Default)]
pub(super) struct Store {
    capacity_bytes: u64,
    used_bytes: u64,
    payloads: BTreeMap<ExtentId, (StoredName, Vec<u8>)>,
    /// Oldest first; erased ones too.
    order: VecDeque<ExtentId>,
    next: u64,
}

impl Store {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, ..Self::default() }
    }

    /// Does a job whose time has come.
    pub(super) fn carry_out(&mut self, job: Job, mut tell: impl FnMut(Done)) {
        match job {
            Job::Write { slot, shard, from } => {
                let extent = self.write(shard.name, &from, &mut tell);
                tell(Done::Written { slot, extent });
            }
            Job::Read { slot, extent, name, crc, into, .. } => {
                tell(Done::Read { slot, good: self.read(extent, &name, crc, &into) });
            }
        }
    }

    /// Makes room by dropping the oldest, and keeps a copy.
    fn write(&mut self, name: StoredName, from: &Place, tell: &mut impl FnMut(Done)) -> Option<ExtentId> {
        let bytes = from.bytes as u64;
        if bytes > self.capacity_bytes {
            return None;
        }
        while self.used_bytes + bytes > self.capacity_bytes {
            let oldest = self.order.pop_front()?;
            if let Some((name, _)) = self.payloads.get(&oldest) {
                tell(Done::Lost { name: *name, extent: oldest });
                self.erase(oldest);
            }
        }
        let mut payload = vec![0; from.bytes];
        from.segment.read_at(from.offset, &mut payload).ok()?;
        self.next += 1;
        let extent = ExtentId(self.next);
        self.used_bytes += bytes;
        self.payloads.insert(extent, (name, payload));
        self.order.push_back(extent);
        Some(extent)
    }

    fn read(&self, extent: ExtentId, name: &StoredName, crc: u64, into: &Place) -> bool {
        let Some((stored, payload)) = self.payloads.get(&extent) else {
            return false;
        };
        stored == name
            && payload.len() == into.bytes
            && checksum(CrcAlgorithm::Crc64Nvme, payload) == crc
            && into.segment.write_at(into.offset, payload).is_ok()
    }

    /// Drops whatever is left of a namespace.
    pub(super) fn forget(&mut self, namespace: &NamespaceDigest) {
        let of_it = self.payloads.iter().filter(|(_, (name, _))| name.namespace == *namespace);
        let extents: Vec<ExtentId> = of_it.map(|(extent, _)| *extent).collect();
        extents.into_iter().for_each(|extent| self.erase(extent));
    }

    pub(super) fn erase(&mut self, extent: ExtentId) {
        if let Some((_, payload)) = self.payloads.remove(&extent) {
            self.used_bytes -= payload.len() as u64;
        }
        // Erased numbers stay in the order until they come to its front, but never more than live ones.
        if self.order.len() > 2 * self.payloads.len() + 64 {
            self.order.retain(|extent| self.payloads.contains_key(extent));
        }
    }
}
