//! Read-only looks at the core, for metrics and checkers.

use crate::{PageKey, Phase, SlotRef, SlotState, Ticket};

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationView {
    /// Its name.
    pub ticket: Ticket,
    /// Where it is.
    pub phase: Phase,
    /// Bytes it has reserved.
    pub bytes: u64,
    /// Pages whose reads go on after it has stopped to wait for them; their bytes are counted.
    pub lingering: usize,
    /// Those bytes.
    pub lingering_bytes: u64,
    /// Pages it leases.
    pub pages: usize,
    /// Workers that owe it an end of copy.
    pub owing: usize,
}

/// One slot in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Where.
    pub slot: SlotRef,
    /// For what.
    pub state: SlotState,
    /// Workers that may be reading it.
    pub readers: u32,
    /// A write to the slower tier reads it.
    pub writing: bool,
    /// The check of memory reads it.
    pub scrubbing: bool,
    /// Its page is a second copy, kept for those who leased it.
    pub spare: bool,
    /// Operations lease its page.
    pub leased: bool,
    /// Its page is no more; somebody may still touch its bytes.
    pub condemned: bool,
    /// Whose bytes.
    pub key: Option<PageKey>,
}
