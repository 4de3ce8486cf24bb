//! The core's time: microseconds since the manager started.

use orbitkv_core::Micros;
use std::time::{Duration, Instant};

/// Counts from its creation. Never wall time: a clock that is set must not end a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now(self) -> Micros {
        Micros(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// How long until `deadline`; zero if it has passed.
    pub(crate) fn until(self, deadline: Micros) -> Duration {
        Duration::from_micros(deadline.0.saturating_sub(self.now().0))
    }
}
