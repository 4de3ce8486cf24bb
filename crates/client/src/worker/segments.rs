//! Pool memory that the manager shares: a segment is mapped as its descriptor comes, and unmapped when the manager takes
//! it back and the last copy that uses it has ended.

use super::session::Departed;
use super::state::{Origin, Work};
use crate::ticket::PagePart;
use orbitkv_shm::{Mapping, Region};
use orbitkv_wire::SLOT_HEADER_BYTES;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Most segments; a pool of 4 TiB has that many of 64 MiB.
const MAX_SEGMENTS: usize = 65_536;

/// A mapped segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) region: Arc<Region>,
    pub(super) slot_bytes: u64,
}

impl Segment {
    /// Offset of a slot's payload, if the slot holds `page_bytes` and its number can be.
    pub(crate) fn payload(&self, index: u32, page_bytes: usize) -> Option<usize> {
        let page_bytes = u64::try_from(page_bytes).ok()?;
        let start = u64::from(index).checked_mul(self.slot_bytes)?.checked_add(SLOT_HEADER_BYTES)?;
        let end = start.checked_add(page_bytes)?;
        // A page longer than its slot would run into the next one.
        let fits = page_bytes.checked_add(SLOT_HEADER_BYTES)? <= self.slot_bytes;
        (fits && end <= self.region.bytes() as u64).then(|| usize::try_from(start).ok()).flatten()
    }
}

impl Work {
    /// Maps a segment.
    pub(super) fn segment(
        &self,
        (number, slot_bytes, bytes): (u32, u64, u64),
        fd: OwnedFd,
    ) -> Result<(), String> {
        let size = usize::try_from(bytes).map_err(|_| format!("segment {number} of {bytes} bytes"))?;
        let mapping = Mapping::from_fd(fd, size).map_err(|e| format!("segment {number}: {e}"))?;
        let mut inner = self.lock();
        if inner.segments.len() >= MAX_SEGMENTS {
            return Err(format!("more than {MAX_SEGMENTS} segments"));
        }
        let region = Arc::clone(mapping.region());
        let before = inner.segments.insert(number, Segment { region: Arc::clone(&region), slot_bytes });
        drop(inner);
        before.into_iter().for_each(|segment| self.forget(segment));
        if let Some(cuda) = &self.cuda {
            cuda.register(&region);
        }
        self.signal.raise();
        Ok(())
    }

    pub(super) fn forget_all(&self, departed: Option<Departed>) {
        departed
            .into_iter()
            .flat_map(|gone| gone.segments.into_values())
            .for_each(|segment| self.forget(segment));
    }

    pub(super) fn forget(&self, segment: Segment) {
        if let Some(cuda) = &self.cuda {
            cuda.unregister(segment.region);
        }
    }

    pub(super) fn segment_gone(&self, number: u32) {
        // Unmapped when the last copy that uses it has ended.
        let gone = self.lock().segments.remove(&number);
        gone.into_iter().for_each(|segment| self.forget(segment));
    }

    /// The segments of those parts, of the session that the ticket was accepted in: another manager run gives the same
    /// numbers to other memory.
    pub(super) fn segments_of(&self, origin: Origin, parts: &[PagePart]) -> Vec<Option<Segment>> {
        let inner = self.lock();
        let void = inner.is_void(origin);
        parts.iter().map(|part| inner.segments.get(&part.segment).filter(|_| !void).cloned()).collect()
    }
}
