//! The manager's report, as far as people are shown it. Unknown fields are ignored: the manager may be
//! newer.

use serde::Deserialize;

/// Body of `/status`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) uptime_seconds: u64,
    pub(crate) draining: bool,
    pub(crate) pool: Pool,
    pub(crate) query: Queries,
    pub(crate) save: InFlight,
    pub(crate) load: InFlight,
    /// Each directory of the SSD cache.
    #[serde(default)]
    pub(crate) ssd: Vec<SsdDirectory>,
    pub(crate) sessions: Sessions,
    pub(crate) instances: Vec<Instance>,
    pub(crate) counters: Counters,
}

/// Memory for pages, in bytes.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Pool {
    pub(crate) limit_bytes: u64,
    /// Memory that segments take now.
    pub(crate) bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) quarantined_bytes: u64,
    /// Pages that can be restored.
    pub(crate) pages: u64,
}

/// What queries own.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Queries {
    pub(crate) budget_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) leases: u64,
}

/// Bytes that a process may be copying.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct InFlight {
    pub(crate) inflight_bytes: u64,
}

/// One directory of the SSD cache.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SsdDirectory {
    pub(crate) path: String,
    /// `serving` when all is well.
    pub(crate) state: String,
    /// How pages are read and written, in words.
    pub(crate) mode: String,
    pub(crate) capacity_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) pages: u64,
}

/// Connections.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Sessions {
    pub(crate) open: u64,
    pub(crate) unfinished: u64,
}

/// One engine.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Instance {
    /// 32 hex digits.
    pub(crate) instance: String,
    pub(crate) engine: String,
    pub(crate) engine_version: String,
    pub(crate) model: String,
    pub(crate) world_size: u64,
    /// Hits and saves are on.
    pub(crate) active: bool,
    /// Ranks whose self-test passed.
    pub(crate) ranks_attested: Vec<u64>,
}

/// Since the manager started.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Counters {
    pub(crate) queries: u64,
    pub(crate) ram_pages: u64,
    /// Found in the slower tier.
    pub(crate) tier_pages: u64,
    pub(crate) missed_pages: u64,
    pub(crate) budget_bypasses: u64,
    pub(crate) timed_out: u64,
    pub(crate) restored_pages: u64,
    pub(crate) bad_pages: u64,
    pub(crate) refused_pages: u64,
    pub(crate) committed_pages: u64,
    pub(crate) aborted_pages: u64,
    pub(crate) evicted_pages: u64,
    pub(crate) refusals: u64,
}

impl Counters {
    /// Pages found of those asked for, in percent; `None` before the first question.
    pub(crate) fn hit_percent(&self) -> Option<f64> {
        let asked = self.asked_pages();
        (asked > 0).then(|| 100.0 * self.found_pages() as f64 / asked as f64)
    }

    /// Pages found, in memory or behind it.
    pub(crate) fn found_pages(&self) -> u64 {
        self.ram_pages + self.tier_pages
    }

    /// Pages asked for.
    pub(crate) fn asked_pages(&self) -> u64 {
        self.found_pages() + self.missed_pages
    }
}
