//! Every limit of the core.

use crate::Plant;
use thiserror::Error;

/// Bytes of the manager's own header in front of each slot's payload, so that an SSD page will be one I/O.
pub(crate) const SLOT_HEADER_BYTES: u64 = 4096;

/// Limits and budgets. [`Config::for_pool`] fills in the documented defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Hard cap on the bytes of all segments.
    pub pool_bytes: u64,
    /// Bytes of one segment; a multiple of 2 MiB unless the pool is smaller.
    pub segment_bytes: u64,
    /// Cap on bytes owned by queries of all instances.
    pub query_budget_bytes: u64,
    /// Cap on bytes owned by queries of one instance.
    pub query_instance_budget_bytes: u64,
    /// Live queries of one session.
    pub operations_per_session: usize,
    /// Live queries in all.
    pub operations: usize,
    /// Reservations of one session with slots that are neither committed nor given back.
    pub saves_per_session: usize,
    /// Such reservations in all.
    pub saves: usize,
    /// Open or not yet gone sessions.
    pub sessions: usize,
    /// Hashes in one request.
    pub hashes_per_request: usize,
    /// Slots named in one answer: what fits a frame of the protocol.
    pub parts_per_answer: usize,
    /// Waiting demands are ordered by deadline within so many arrivals: none is overtaken as often as that.
    pub arrivals_per_turn: u64,
    /// A query that has not become ready ends after this.
    pub operation_lifetime_ms: u64,
    /// A ready lease that is not handed out is asked back after this.
    pub lease_ttl_ms: u64,
    /// Share of the pool, in percent, that may be reserved for saves and not yet sealed.
    pub filling_percent: u64,
    /// Whether there is a slower tier. Sealed pages are written to it, and read back when asked for.
    pub tier: bool,
    /// Which pages are written to it.
    pub tier_policy: WritePolicy,
    /// Pages being written to the slower tier at once; more are not written.
    pub tier_writes: usize,
    /// Bytes of the reads that a demand submits at once; zero: all.
    pub read_batch_bytes: u64,
    /// Batches that a demand may submit; zero: any number.
    pub read_batches: u32,
    /// A demand that has not been answered ends its reads after this; zero: at its deadline.
    pub read_timeout_ms: u64,
    /// Share of both query budgets, in percent, that reads ahead of demand may own.
    pub speculative_percent: u64,
    /// Preparations of one session that are not claimed.
    pub preparations_per_session: usize,
    /// Warm-ups of one session.
    pub warm_ups_per_session: usize,
    /// Preparations that are not claimed, and warm-ups, in all.
    pub speculations: usize,
    /// A preparation ends this long after its owner was last heard to want it.
    pub unclaimed_ttl_ms: u64,
    /// A warm-up submits nothing after this.
    pub warm_up_lifetime_ms: u64,
    /// Bytes of the reads that a preparation or warm-up submits at once.
    pub prepared_batch_bytes: u64,
    /// Defect to plant; ignored without the `plant` feature.
    pub plant: Option<Plant>,
}

/// Which pages are written to the slower tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritePolicy {
    /// Every page, when it is sealed.
    #[default]
    All,
    /// Those that have been of use, when a demand gets them. What nobody asks for twice wears no disk.
    Reuse,
}

/// A configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Too small to hold anything.
    #[error("{name} is {got}; it must be at least {min}")]
    TooSmall {
        /// Which value.
        name: &'static str,
        /// What it is.
        got: u64,
        /// The least that works.
        min: u64,
    },
    /// A budget above what it is a share of.
    #[error("{name} is {got} bytes, more than {of} ({max} bytes); lower it")]
    TooLarge {
        /// Which value.
        name: &'static str,
        /// What it is.
        got: u64,
        /// What limits it.
        of: &'static str,
        /// That limit.
        max: u64,
    },
}

const MIB: u64 = 1 << 20;

impl Config {
    /// The defaults for a pool of that many bytes: both query budgets three quarters of it, segments
    /// an eighth of it up to 64 MiB.
    #[must_use]
    pub fn for_pool(pool_bytes: u64) -> Self {
        let eighth = (pool_bytes / 8).min(64 * MIB);
        let budget_bytes = pool_bytes / 4 * 3;
        Self {
            pool_bytes,
            segment_bytes: if eighth >= 2 * MIB { eighth / (2 * MIB) * (2 * MIB) } else { eighth },
            query_budget_bytes: budget_bytes,
            query_instance_budget_bytes: budget_bytes,
            operations_per_session: 128,
            operations: 1024,
            saves_per_session: 2048,
            saves: 16_384,
            sessions: 1024,
            hashes_per_request: 16_384,
            parts_per_answer: 50_000,
            arrivals_per_turn: 32,
            operation_lifetime_ms: 60_000,
            lease_ttl_ms: 600_000,
            filling_percent: 50,
            tier: false,
            tier_policy: WritePolicy::All,
            tier_writes: 64,
            read_batch_bytes: 0,
            read_batches: 0,
            read_timeout_ms: 0,
            speculative_percent: 25,
            preparations_per_session: 4,
            warm_ups_per_session: 16,
            speculations: 128,
            unclaimed_ttl_ms: 1_000,
            warm_up_lifetime_ms: 5_000,
            prepared_batch_bytes: 32 * MIB,
            plant: None,
        }
    }

    /// The speculative share of a budget.
    pub(crate) fn speculative_share(&self, budget_bytes: u64) -> u64 {
        let bytes = u128::from(budget_bytes) * u128::from(self.speculative_percent) / 100;
        u64::try_from(bytes).unwrap_or(budget_bytes)
    }

    /// Cap on bytes that are granted to savers and not sealed.
    pub(crate) fn filling_bytes(&self) -> u64 {
        let bytes = u128::from(self.pool_bytes) * u128::from(self.filling_percent) / 100;
        u64::try_from(bytes).unwrap_or(self.pool_bytes)
    }

    /// Checks that the values agree with each other.
    ///
    /// # Errors
    /// The first value that cannot work, with the value that would.
    pub fn check(&self) -> Result<(), ConfigError> {
        let least = [
            ("pool size", self.pool_bytes, 1),
            ("segment size", self.segment_bytes, 1),
            ("query budget", self.query_budget_bytes, 1),
            ("query instance budget", self.query_instance_budget_bytes, 1),
            ("operations per session", self.operations_per_session as u64, 1),
            ("operations", self.operations as u64, 1),
            ("saves per session", self.saves_per_session as u64, 1),
            ("saves", self.saves as u64, 1),
            ("sessions", self.sessions as u64, 1),
            ("arrivals per turn", self.arrivals_per_turn, 1),
            ("hashes per request", self.hashes_per_request as u64, 1),
        ];
        if let Some(&(name, got, min)) = least.iter().find(|(_, got, min)| got < min) {
            return Err(ConfigError::TooSmall { name, got, min });
        }
        let most = [
            ("segment size", self.segment_bytes, "the pool size", self.pool_bytes),
            ("query budget", self.query_budget_bytes, "the pool size", self.pool_bytes),
            (
                "query instance budget",
                self.query_instance_budget_bytes,
                "the query budget",
                self.query_budget_bytes,
            ),
            ("speculative percent", self.speculative_percent, "100 percent", 100),
            ("filling percent", self.filling_percent, "100 percent", 100),
        ];
        if let Some(&(name, got, of, max)) = most.iter().find(|m| m.1 > m.3) {
            return Err(ConfigError::TooLarge { name, got, of, max });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_hold_for_small_and_large_pools() {
        for pool_bytes in [64, MIB, 100 * MIB, 4 << 30, 1 << 42] {
            Config::for_pool(pool_bytes).check().unwrap();
        }
    }

    #[test]
    fn a_budget_above_the_pool_is_named() {
        let config = Config { query_budget_bytes: 101, ..Config::for_pool(100) };
        let text = config.check().unwrap_err().to_string();
        assert!(text.contains("query budget is 101 bytes"), "{text}");
    }
}
