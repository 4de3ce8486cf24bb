//! Which pages are worth keeping when their segment goes.

use orbitkv_store::Extent;
use std::collections::BTreeSet;

/// Pages that are remembered at most, in some 20 bytes each; while there are as many, no more are.
const MAX_PAGES: usize = 1 << 20;

/// Pages that were read since they were written or last kept.
#[derive(Debug, Default)]
pub(super) struct Heat(BTreeSet<Extent>);

impl Heat {
    pub(super) fn read(&mut self, extent: Extent) {
        if self.0.len() < MAX_PAGES {
            self.0.insert(extent);
        }
    }

    /// Whether it was read; it is forgotten.
    pub(super) fn take(&mut self, extent: Extent) -> bool {
        self.0.remove(&extent)
    }
}
