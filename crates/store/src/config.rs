//! How much of the disk, and in which pieces.

use crate::error::StoreError;
use crate::format::BLOCK_BYTES_U64;

/// Smallest segment: a head, a few small pages, a footer.
const MIN_SEGMENT_BYTES: u64 = 16 * BLOCK_BYTES_U64;
/// Largest segment: what an [`crate::Extent`] can address.
const MAX_SEGMENT_BYTES: u64 = 1 << 30;
/// Room kept for what a file system needs beside the data of a file: its maps of extents.
pub(crate) const FILE_SLACK_BYTES: u64 = 16 * BLOCK_BYTES_U64;

/// Limits of one cache directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Hard cap on what the file system has given to the directory, all files and the directory included.
    pub capacity_bytes: u64,
    /// Bytes of a segment file that is created from now on: a multiple of 4 KiB from 64 KiB to 1 GiB. Those
    /// that exist keep theirs until they are evicted.
    pub segment_bytes: u64,
    /// What must stay free on the file system for others.
    pub min_free_bytes: u64,
}

impl LogConfig {
    /// Segments of a 64th of the capacity, from 64 MiB to 1 GiB: small enough that evicting one is no event,
    /// large enough that the number of files stays small.
    #[must_use]
    pub fn for_capacity(capacity_bytes: u64) -> Self {
        let segment_bytes = (capacity_bytes / 64).clamp(64 << 20, MAX_SEGMENT_BYTES) & !((1 << 20) - 1);
        Self { capacity_bytes, segment_bytes, min_free_bytes: 0 }
    }

    /// Least capacity for segments of that size: one is filled while another is evicted.
    fn min_capacity_bytes(&self) -> u64 {
        2 * self.segment_bytes + FILE_SLACK_BYTES + 8 * BLOCK_BYTES_U64
    }

    /// # Errors
    /// The first value that cannot work, with what would.
    pub fn check(&self) -> Result<(), StoreError> {
        let bytes = self.segment_bytes;
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes) || !bytes.is_multiple_of(BLOCK_BYTES_U64)
        {
            let fix = format!("use a multiple of 4096 from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES} bytes");
            return Err(StoreError::Config { name: "segment size", got: bytes, fix });
        }
        let least = self.min_capacity_bytes();
        if self.capacity_bytes < least {
            let fix = format!("two segments of {bytes} bytes need at least {least} bytes; raise it");
            return Err(StoreError::Config { name: "capacity", got: self.capacity_bytes, fix });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold_for_small_and_large_capacities() {
        for capacity_bytes in [256 << 20, 64 << 30, 4 << 40] {
            LogConfig::for_capacity(capacity_bytes).check().unwrap();
        }
    }

    #[test]
    fn what_cannot_work_is_named_with_what_would() {
        let small = LogConfig { capacity_bytes: 1 << 20, segment_bytes: 1 << 20, min_free_bytes: 0 };
        let text = small.check().unwrap_err().to_string();
        assert!(text.contains("capacity is 1048576") && text.contains("2195456"), "{text}");
        let odd = LogConfig { segment_bytes: (1 << 20) + 1, ..small };
        assert!(odd.check().unwrap_err().to_string().contains("segment size is 1048577"));
    }
}
