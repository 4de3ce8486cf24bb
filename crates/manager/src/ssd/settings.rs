//! Where the SSD cache lies and how large it may become.

use crate::AmountOrNone;
use orbitkv_uring::DiskEngine;
use std::path::PathBuf;

/// Room of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capacity {
    /// Bytes of each directory.
    Each(u64),
    /// A share of the file system of each directory.
    Percent(u8),
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SsdSettings {
    /// At least one; no two are the same.
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) capacity: Capacity,
    /// What stays free for others: bytes, or a share of each file system.
    pub(crate) min_free: AmountOrNone,
    /// What brings pages to the kernel.
    pub(crate) engine: DiskEngine,
    /// Of new segments; `None`: as the capacity suggests.
    pub(crate) segment_bytes: Option<u64>,
}
