//! What the manager reports about itself: `/status` as JSON, `/metrics` made of the same numbers.

use crate::sessions::InstanceRow;
use crate::ssd::SsdStatus;
use crate::tally::Tally;
use orbitkv_core::{BUDGET_WAIT_BUCKETS, Counters, Histogram};
use serde::Serialize;
use std::collections::BTreeMap;

/// One look at everything, taken on the core thread between two events.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) status: Status,
    pub(crate) tally: Tally,
    pub(crate) counters: Counters,
    /// How long queries waited for budget.
    pub(crate) budget_wait: Histogram<BUDGET_WAIT_BUCKETS>,
}

/// Body of `GET /status`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Status {
    pub(crate) version: &'static str,
    pub(crate) pid: u32,
    /// Random identity of this run, 32 hex digits.
    pub(crate) boot: String,
    pub(crate) uptime_seconds: u64,
    pub(crate) draining: bool,
    pub(crate) socket: String,
    /// Address of this HTTP server.
    pub(crate) http: Option<String>,
    pub(crate) pool: PoolStatus,
    pub(crate) query: QueryStatus,
    pub(crate) save: SaveStatus,
    pub(crate) load: LoadStatus,
    /// What stands behind the pool, if anything does.
    pub(crate) tier: Option<TierStatus>,
    /// Each directory of the SSD cache.
    pub(crate) ssd: Vec<SsdStatus>,
    pub(crate) scrub: ScrubStatus,
    pub(crate) sessions: SessionStatus,
    pub(crate) instances: Vec<InstanceRow>,
    pub(crate) counters: CounterStatus,
}

/// Memory for pages.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PoolStatus {
    /// The limit.
    pub(crate) limit_bytes: u64,
    /// Segments, growing ones included.
    pub(crate) bytes: u64,
    /// Slots in use, headers included.
    pub(crate) used_bytes: u64,
    /// Slots that a process may still write although its session has ended.
    pub(crate) quarantined_bytes: u64,
    /// What of the segments lies in huge pages.
    pub(crate) huge_page_bytes: u64,
    pub(crate) segments: usize,
    /// Pages that can be restored.
    pub(crate) pages: usize,
}

/// Bytes that queries own.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct QueryStatus {
    pub(crate) budget_bytes: u64,
    pub(crate) instance_budget_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) peak_reserved_bytes: u64,
    pub(crate) speculative_reserved_bytes: u64,
    pub(crate) peak_speculative_reserved_bytes: u64,
    /// The ledger, by account.
    pub(crate) reserved_bytes_by_phase: BTreeMap<&'static str, u64>,
    /// Queries that are not over, by phase.
    pub(crate) operations: BTreeMap<&'static str, usize>,
    /// Queries with leased pages.
    pub(crate) leases: usize,
    pub(crate) oldest_lease_seconds: Option<f64>,
}

/// Pages on their way in.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SaveStatus {
    /// Reservations with slots out.
    pub(crate) reservations: usize,
    /// Granted and not committed; zero only when custody has ended.
    pub(crate) inflight_bytes: u64,
}

/// Pages on their way out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LoadStatus {
    /// Pages that workers may be copying; zero only when custody has ended.
    pub(crate) inflight_bytes: u64,
    /// Connected workers by which restored pages they compare: `off`, `sample`, `all`.
    pub(crate) verifying_workers: BTreeMap<&'static str, u64>,
}

/// The slower tier.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TierStatus {
    /// `memory` or `ssd`.
    pub(crate) kind: &'static str,
    /// Pages that it holds.
    pub(crate) pages: usize,
    /// Pages being written to it, and read from it.
    pub(crate) write_queue_pending: usize,
    pub(crate) read_queue_pending: usize,
}

/// The check of pages in memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ScrubStatus {
    /// The most that is read; zero: nothing is.
    pub(crate) rate_bytes_per_second: u64,
    /// Read again since the start, each shard as one page.
    pub(crate) pages: u64,
    pub(crate) bytes: u64,
    /// Pages that had changed: they were forgotten.
    pub(crate) bad_pages: u64,
    /// How often all of memory was gone through.
    pub(crate) passes: u64,
}

/// Connections.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SessionStatus {
    pub(crate) open: usize,
    /// Ended, with a process that may still be copying.
    pub(crate) unfinished: usize,
}

/// The core's counters.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct CounterStatus {
    pub(crate) queries: u64,
    pub(crate) ram_pages: u64,
    pub(crate) tier_pages: u64,
    pub(crate) missed_pages: u64,
    pub(crate) budget_waits: u64,
    pub(crate) budget_bypasses: u64,
    pub(crate) timed_out: u64,
    pub(crate) expired_leases: u64,
    pub(crate) restored_pages: u64,
    pub(crate) bad_pages: u64,
    pub(crate) granted_pages: u64,
    pub(crate) refused_pages: u64,
    pub(crate) committed_pages: u64,
    pub(crate) duplicate_pages: u64,
    pub(crate) aborted_pages: u64,
    pub(crate) evicted_pages: u64,
    pub(crate) dropped_pages: u64,
    pub(crate) quarantined_slots: u64,
    pub(crate) read_pages: u64,
    pub(crate) failed_reads: u64,
    pub(crate) coalesced_reads: u64,
    pub(crate) written_pages: u64,
    pub(crate) found_pages: u64,
    pub(crate) dropped_writes: u64,
    pub(crate) speculations: u64,
    pub(crate) skipped_speculations: u64,
    pub(crate) claims: u64,
    pub(crate) expired_preparations: u64,
    pub(crate) ahead_read_bytes: u64,
    pub(crate) ahead_restored_bytes: u64,
    pub(crate) ahead_unused_bytes: u64,
    pub(crate) refusals: u64,
}

impl From<&Counters> for CounterStatus {
    fn from(c: &Counters) -> Self {
        // Named one by one: a counter that is added to the core does not compile here until it is reported.
        let Counters {
            queries,
            ram_pages,
            tier_pages,
            missed_pages,
            budget_waits,
            budget_bypasses,
            timed_out,
            expired_leases,
            restored_pages,
            bad_pages,
            granted_pages,
            refused_pages,
            committed_pages,
            duplicate_pages,
            aborted_pages,
            evicted_pages,
            dropped_pages,
            quarantined_slots,
            read_pages,
            failed_reads,
            coalesced_reads,
            written_pages,
            found_pages,
            dropped_writes,
            speculations,
            skipped_speculations,
            claims,
            expired_preparations,
            ahead_read_bytes,
            ahead_restored_bytes,
            ahead_unused_bytes,
            refusals,
            scrub: _, // In `ScrubStatus`.
        } = *c;
        Self {
            queries,
            ram_pages,
            tier_pages,
            missed_pages,
            budget_waits,
            budget_bypasses,
            timed_out,
            expired_leases,
            restored_pages,
            bad_pages,
            granted_pages,
            refused_pages,
            committed_pages,
            duplicate_pages,
            aborted_pages,
            evicted_pages,
            dropped_pages,
            quarantined_slots,
            read_pages,
            failed_reads,
            coalesced_reads,
            written_pages,
            found_pages,
            dropped_writes,
            speculations,
            skipped_speculations,
            claims,
            expired_preparations,
            ahead_read_bytes,
            ahead_restored_bytes,
            ahead_unused_bytes,
            refusals,
        }
    }
}
