//! What tests plan, and what they count.

/// Counters of one device since its first use.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FakeStats {
    /// Calls of `cuMemcpyHtoDAsync` and `cuMemcpyDtoHAsync`.
    pub plain_copies: u64,
    /// Calls of `cuMemcpy2DAsync`.
    pub row_copies: u64,
    /// Calls of `cuMemcpyBatchAsync` in either form.
    pub batch_calls: u64,
    /// Largest number of copies in one batch.
    pub largest_batch: u64,
    /// Calls of `cuLaunchKernel`.
    pub launches: u64,
    /// Copies on lists that kernels have been through.
    pub listed_copies: u64,
    /// Modules that exist now.
    pub modules: u64,
    /// Copies that returned only when done, because their host side was not registered.
    pub synchronous_copies: u64,
    /// Bytes registered now.
    pub registered_bytes: u64,
    /// Largest registration so far.
    pub largest_registration: u64,
    /// Waits on events that had never been recorded.
    pub waits_without_record: u64,
    /// Events that exist now.
    pub events: u64,
    /// Streams that exist now.
    pub streams: u64,
    /// Calls that spoiled a graph capture.
    pub spoiled_captures: u64,
    /// References to the primary context.
    pub context_references: u64,
    /// Device allocations that exist now.
    pub allocations: u64,
}

/// The `nth` next call of `function` (1 is the next) returns `code`, once.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) function: String,
    pub(crate) nth: u64,
    pub(crate) code: i32,
}
