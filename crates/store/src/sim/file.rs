//! A file of sectors, each in the versions that a crash may leave.

use super::rng::Rng;
use crate::error::DiskError;
use crate::format::{BLOCK_BYTES, BLOCK_BYTES_U64, Block};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Zeros where there is none.
type Sector = Option<Rc<Block>>;

#[derive(Clone, Debug, Default)]
pub(super) struct SimFile {
    pub(super) bytes: u64,
    /// What a reader sees.
    sectors: BTreeMap<u64, Sector>,
    /// Versions of sectors that are not durable, without the one that a reader sees: the durable one first.
    older: BTreeMap<u64, Vec<Sector>>,
}

impl SimFile {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Bytes given to it; all of it, since files are allocated when they are created.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.bytes.next_multiple_of(BLOCK_BYTES_U64)
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        if offset + bytes.len() as u64 > self.bytes {
            return Err(DiskError::Short);
        }
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (sector, within) = (at / BLOCK_BYTES_U64, (at % BLOCK_BYTES_U64) as usize);
            let length = rest.len().min(BLOCK_BYTES - within);
            let (now, later) = rest.split_at_mut(length);
            match self.sectors.get(&sector).and_then(Option::as_ref) {
                Some(block) => now.copy_from_slice(&block[within..within + length]),
                None => now.fill(0),
            }
            at += length as u64;
            rest = later;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.bytes = self.bytes.max(offset + bytes.len() as u64);
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (sector, within) = (at / BLOCK_BYTES_U64, (at % BLOCK_BYTES_U64) as usize);
            let length = rest.len().min(BLOCK_BYTES - within);
            let before = self.sectors.get(&sector).cloned().flatten();
            let mut block: Rc<Block> = before.clone().unwrap_or_else(|| Rc::new([0; BLOCK_BYTES]));
            Rc::make_mut(&mut block)[within..within + length].copy_from_slice(&rest[..length]);
            self.older.entry(sector).or_default().push(before);
            self.sectors.insert(sector, Some(block));
            at += length as u64;
            rest = &rest[length..];
        }
    }

    pub(super) fn sync(&mut self) {
        self.older.clear();
    }

    /// Every sector in one of its versions.
    pub(super) fn crash(&mut self, rng: &mut Rng) {
        for (sector, versions) in std::mem::take(&mut self.older) {
            let pick = rng.below(versions.len() as u64 + 1);
            // Beyond the older ones: what the reader saw.
            if let Some(version) = versions.into_iter().nth(usize::try_from(pick).unwrap_or(0)) {
                self.sectors.insert(sector, version);
            }
        }
    }

    pub(super) fn truncate(&mut self, bytes: u64) {
        self.bytes = bytes;
        let kept = bytes.div_ceil(BLOCK_BYTES_U64);
        self.sectors.retain(|sector, _| *sector < kept);
        self.older.retain(|sector, _| *sector < kept);
    }
}
