//! What answer a query takes, and until when.

use super::MissReason;
use super::recovery::Kept;
use orbitkv_wire::{QueryMode, QueryRule};
use std::time::{Duration, Instant};

/// Wait for an answer without a deadline of its own: the manager's operation lifetime and a little.
const LIFETIME: Duration = Duration::from_secs(65);
/// How much later than the manager the client gives up: what is ready at the deadline is answered then, and
/// has to come here first.
const GRACE: Duration = Duration::from_millis(50);

/// What answer a query takes, and until when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Wait at most this long; zero: the manager's operation lifetime.
    pub deadline_ms: u32,
    /// All pages, or none.
    pub strict: bool,
    /// Neither batches nor the deadline cut it short: its pages are still being saved.
    pub wait_full_prefix: bool,
    /// Nothing is read for it from a slower tier: what is in memory is the answer.
    pub memory_only: bool,
}

impl Demand {
    pub(super) fn rule(self) -> QueryRule {
        let Self { strict, wait_full_prefix, memory_only, .. } = self;
        QueryRule { mode: QueryMode::Demand, strict, wait_full_prefix, memory_only }
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
    pub(super) wants: Kept,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_gives_up_later_than_the_manager() {
        let demand =
            |deadline_ms, wait_full_prefix| Demand { deadline_ms, wait_full_prefix, ..Demand::default() };
        assert!(demand(200, false).wait() > Duration::from_millis(200));
        assert_eq!(demand(0, false).wait(), LIFETIME);
        assert_eq!(demand(200, true).wait(), LIFETIME, "no deadline ends it");
    }

    #[test]
    fn what_is_asked_again_has_the_time_that_is_left() {
        let asked = |passed_ms| Instant::now().checked_sub(Duration::from_millis(passed_ms)).unwrap();
        let again = |deadline_ms, passed_ms| Again {
            wants: Kept::Prefix { group: 0, hashes: Vec::new() },
            demand: Demand { deadline_ms, ..Demand::default() },
            asked: asked(passed_ms),
        };
        assert!(matches!(again(60_000, 20_000).left_ms(), Ok(1..=40_000)));
        assert_eq!(again(10, 20).left_ms(), Err(MissReason::Deadline));
        assert_eq!(again(0, 20).left_ms(), Ok(0), "none is none");
    }
}
