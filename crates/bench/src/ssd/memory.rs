//! Memory for pages, ours and fio's, as alike as they can be.
//!
//! How fast a disk is may depend on how scattered memory is: a virtual machine's, for one, pays for each piece of a
//! request, and fio's private memory has fewer of them than shared memory whose pages come one by one. So fio gets
//! shared memory too, taken in turn with ours.

use anyhow::{Context, Result};
use orbitkv_shm::Segment;
use std::io::Write;
use tempfile::NamedTempFile;

/// Where shared memory has names.
const SHARED: &str = "/dev/shm";
/// Taken at a time.
const PART_BYTES: usize = 64 << 10;

/// A segment, and a file in memory of the same size.
pub(crate) struct Memory {
    segment: Segment,
    /// None where there is no such place.
    file: Option<NamedTempFile>,
}

impl Memory {
    /// Takes `bytes` of both.
    pub(crate) fn take(bytes: usize) -> Result<Self> {
        let segment = Segment::create("orbitkv-bench", bytes)?;
        let mut file = NamedTempFile::new_in(SHARED).ok();
        let zeros = vec![0; PART_BYTES];
        for offset in (0..bytes).step_by(PART_BYTES) {
            let part = &zeros[..PART_BYTES.min(bytes - offset)];
            segment.write_at(offset, part)?;
            if let Some(file) = &mut file {
                file.write_all(part).with_context(|| format!("memory in {SHARED}"))?;
            }
        }
        Ok(Self { segment, file })
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The value of its `--mem`.
    pub(crate) fn for_fio(&self) -> String {
        match &self.file {
            Some(file) => format!("mmapshared:{}", file.path().display()),
            None => "mmapshared".to_owned(),
        }
    }
}
