//! What answer a query takes, and until when.

use super::MissReason;
use orbitkv_wire::{Hash, QueryMode, QueryRule};
use std::time::{Duration, Instant};

/// Wait for an answer without a deadline of its own: the manager's operation lifetime and a little.
const LIFETIME: Duration = Duration::from_secs(65);
/// How much later than the manager the client gives up: what is ready at the deadline is answered then, and
/// has to come here first.
const GRACE: Duration = Duration::from_millis(20);

/// What answer a query takes, and until when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Wait at most this long; zero: the manager's operation lifetime.
    pub deadline_ms: u32,
    /// All pages, or none.
    pub strict: bool,
    /// Neither batches nor the deadline cut it short: its pages are still being saved.
    pub wait_full_prefix: bool,
}

impl Demand {
    pub(super) fn rule(self) -> QueryRule {
        let Self { strict, wait_full_prefix, .. } = self;
        QueryRule { mode: QueryMode::Demand, strict, wait_full_prefix }
    }

    /// How long the client waits for the manager.
    pub(super) fn wait(self) -> Duration {
        match self.deadline_ms {
            0 => LIFETIME,
            _ if self.wait_full_prefix => LIFETIME,
            ms => Duration::from_millis(u64::from(ms)) + GRACE,
        }
    }
}

/// What a claim needs to be asked again as a query of its own, until it is answered.
#[derive(Debug)]
pub(super) struct Again {
    pub(super) hashes: Vec<Hash>,
    pub(super) demand: Demand,
    pub(super) asked: Instant,
}

impl Again {
    /// What is left of its deadline; zero for one without.
    pub(super) fn left_ms(&self) -> Result<u32, MissReason> {
        let given_ms = self.demand.deadline_ms;
        let passed_ms = u32::try_from(self.asked.elapsed().as_millis()).unwrap_or(u32::MAX);
        match given_ms.saturating_sub(passed_ms) {
            0 if given_ms > 0 => Err(MissReason::Deadline),
            left_ms => Ok(left_ms),
        }
    }
}
