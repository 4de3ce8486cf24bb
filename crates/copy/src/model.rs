//! A job without bytes, for models of this crate's users (`--cfg loom` only).

use crate::{KvLayout, KvRegion, LayoutError, Progress};
use std::sync::Arc;

/// A job of one step that its owner runs.
#[derive(Debug)]
pub struct ModelJob(Arc<Progress>);

impl ModelJob {
    /// A job that has not started.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a job is made for a place in a model")]
    pub fn new() -> ModelJob {
        ModelJob(Arc::new(Progress::new(1)))
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> &Arc<Progress> {
        &self.0
    }

    /// Runs it to its end, or not at all once it is stopped; `step` moves the bytes.
    pub fn run(&self, step: impl FnOnce()) {
        let Some(moving) = self.0.enter() else { return };
        step();
        drop(moving);
        if !self.0.is_stopped() {
            self.0.step_done();
            self.0.complete();
        }
    }
}

/// A layout that no copy may be planned from.
///
/// # Errors
/// None: the region is sound.
pub fn layout() -> Result<KvLayout, LayoutError> {
    let region = KvRegion { base: 4096, block_stride_bytes: 64, block_bytes: 64, num_blocks: 4 };
    // SAFETY: models run jobs without bytes, so no address is ever read or written.
    unsafe { KvLayout::new(vec![region]) }
}
