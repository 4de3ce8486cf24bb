//! Plain counts since the start. The shell turns them into metrics.

use crate::GroupId;

/// What has happened. All values only grow. Self-tests are left out of queries and of
/// pages granted, sealed, answered and restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Foreground queries that got a final answer.
    pub queries: u64,
    /// Pages answered from DRAM.
    pub ram_pages: u64,
    /// Pages answered from the slower tier.
    pub tier_pages: u64,
    /// Pages asked for and not answered.
    pub missed_pages: u64,
    /// Queries that waited for budget, once each.
    pub budget_waits: u64,
    /// Demands larger than their budget.
    pub budget_bypasses: u64,
    /// Waiting or reading queries ended by deadline or lifetime.
    pub timed_out: u64,
    /// Ready leases nobody handed out in time.
    pub expired_leases: u64,
    /// Pages handed to workers.
    pub restored_pages: u64,
    /// Restored pages whose bytes did not match.
    pub bad_pages: u64,
    /// Pages for which slots were granted.
    pub granted_pages: u64,
    /// Pages not granted.
    pub refused_pages: u64,
    /// Pages sealed.
    pub committed_pages: u64,
    /// Sealed twice: the second one was freed.
    pub duplicate_pages: u64,
    /// Granted pages that were never sealed.
    pub aborted_pages: u64,
    /// Sealed pages evicted for room.
    pub evicted_pages: u64,
    /// Sealed pages dropped by reset, forget or an administrator.
    pub dropped_pages: u64,
    /// Slots put into quarantine.
    pub quarantined_slots: u64,
    /// Pages read from the slower tier.
    pub read_pages: u64,
    /// Reads of pages that failed, or whose bytes did not match.
    pub failed_reads: u64,
    /// Reads that one more demand waited for.
    pub coalesced_reads: u64,
    /// Preparations and warm-ups that were begun.
    pub speculations: u64,
    /// Preparations and warm-ups that were not: larger than their share, too many, or demands came first.
    pub skipped_speculations: u64,
    /// Preparations that were claimed.
    pub claims: u64,
    /// Preparations that nobody claimed in time.
    pub expired_preparations: u64,
    /// Bytes read ahead of demand, once a page.
    pub ahead_read_bytes: u64,
    /// The part of them that was restored since.
    pub ahead_restored_bytes: u64,
    /// The part of them that left memory unused.
    pub ahead_unused_bytes: u64,
    /// Pages found in the slower tier that an earlier run had written.
    pub found_pages: u64,
    /// Pages written to the slower tier.
    pub written_pages: u64,
    /// Pages not written: too many at once, or the tier failed.
    pub dropped_writes: u64,
    /// The check of pages in memory.
    pub scrub: ScrubCounters,
    /// Requests that broke a rule.
    pub refusals: u64,
}

/// What the check of pages in memory has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubCounters {
    /// Read again and compared with their checksum, each shard as one.
    pub pages: u64,
    /// Their payload.
    pub bytes: u64,
    /// Pages that were found changed, and forgotten.
    pub bad_pages: u64,
    /// Walks over all of memory that have ended.
    pub passes: u64,
}

impl Counters {
    /// A query for `asked` pages got its final answer.
    pub(crate) fn answer(&mut self, group: GroupId, asked: usize, (ram, tier): (usize, usize)) {
        if group != GroupId::PROBE {
            self.queries += 1;
            self.ram_pages += ram as u64;
            self.tier_pages += tier as u64;
            self.missed_pages += (asked - ram - tier) as u64;
        }
    }
}
