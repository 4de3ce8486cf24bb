//! How long to wait before the next attempt.

use std::time::Duration;

const FIRST_MS: u64 = 50;
const LAST_MS: u64 = 1_000;
/// After the manager said no: the answer will not change soon, and a person may be reading its log.
const REJECTED: Duration = Duration::from_secs(5);

/// Doubling delays with jitter, so that the clients of a restarted manager do not come all at once.
pub(super) struct Backoff {
    next_ms: u64,
    random: u64,
}

impl Backoff {
    pub(super) fn new(seed: u64) -> Self {
        Self { next_ms: FIRST_MS, random: seed | 1 }
    }

    /// The delay after a failed attempt: between half of the step and all of it.
    pub(super) fn next(&mut self) -> Duration {
        let step_ms = self.next_ms;
        self.next_ms = (step_ms * 2).min(LAST_MS);
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        Duration::from_millis(step_ms / 2 + self.random % (step_ms / 2 + 1))
    }

    /// The delay after a rejection.
    pub(super) fn rejected(&mut self) -> Duration {
        self.next_ms = FIRST_MS;
        REJECTED
    }

    /// An attempt succeeded.
    pub(super) fn reset(&mut self) {
        self.next_ms = FIRST_MS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_one_second_and_start_again() {
        let mut backoff = Backoff::new(7);
        let mut top_ms = 50;
        for _ in 0..20 {
            let delay_ms = u64::try_from(backoff.next().as_millis()).unwrap();
            assert!((top_ms / 2..=top_ms).contains(&delay_ms), "{delay_ms} of {top_ms}");
            top_ms = (top_ms * 2).min(1000);
        }
        assert_eq!(backoff.rejected(), Duration::from_secs(5));
        assert!(backoff.next() <= Duration::from_millis(50));
    }
}
