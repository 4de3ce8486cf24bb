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
    /// Pages asked for and not answered.
    pub missed_pages: u64,
    /// Queries that waited for budget, once each.
    pub budget_waits: u64,
    /// Demands larger than their budget.
    pub budget_bypasses: u64,
    /// Waiting queries ended by deadline or lifetime.
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
    /// Requests that broke a rule.
    pub refusals: u64,
}

impl Counters {
    /// A query for `asked` pages got its final answer.
    pub(crate) fn answer(&mut self, group: GroupId, asked: usize, answered: usize) {
        if group != GroupId::PROBE {
            self.queries += 1;
            self.ram_pages += answered as u64;
            self.missed_pages += (asked - answered) as u64;
        }
    }
}
