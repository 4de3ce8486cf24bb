//! How many bytes may be written in a time, by all directories together: what a page over it costs is a miss later,
//! never a wait now.
//!
//! A bucket of tokens, one a byte. It holds what a part of the period brings, and fills by as much less than the
//! rate: so no period, wherever it begins, sees more than its bytes. It begins full, and is kept nowhere: a manager
//! that is started again has that part once more.

use crate::{Period, Rate};
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The part of a period's bytes that can be written at once, so that saves may come in bursts.
const PARTS: u64 = 24;
/// Of a period, without the part that is there at its beginning.
const FILLING_PARTS: u64 = PARTS - 1;

/// The rule, without a clock.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// What it holds when it is full.
    capacity_bytes: u64,
    /// What comes in a period, and how long that is.
    filling: Rate,
    /// Below zero after a page that is larger than the bucket.
    left_bytes: i128,
    /// Until when it has been filled.
    filled_us: u64,
    /// It has been too empty for a page, and not been full since.
    over: bool,
}

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spending {
    /// It may be written.
    Granted,
    /// It may not.
    Over {
        /// The first one since the bucket was full.
        first: bool,
    },
}

impl Bucket {
    fn new(rate: Rate) -> Self {
        // A second is too short for a page: the same rate by the hour is what is meant.
        let bytes = match rate.period {
            Period::Second => rate.bytes.saturating_mul(Period::Hour.seconds()),
            Period::Hour | Period::Day => rate.bytes,
        };
        let period = if rate.period == Period::Day { Period::Day } else { Period::Hour };
        let capacity_bytes = (bytes / PARTS).max(1);
        let filling = Rate { bytes: (bytes / PARTS * FILLING_PARTS).max(1), period };
        Self { capacity_bytes, filling, left_bytes: capacity_bytes.into(), filled_us: 0, over: false }
    }

    /// What comes until then. Time that brings no whole byte is kept for later.
    fn fill(&mut self, now_us: u64) {
        let bytes = self.filling.bytes_in(now_us.saturating_sub(self.filled_us));
        let capacity = i128::from(self.capacity_bytes);
        self.left_bytes = (self.left_bytes + i128::from(bytes)).min(capacity);
        if self.left_bytes == capacity {
            (self.filled_us, self.over) = (self.filled_us.max(now_us), false);
        } else {
            // At most what those bytes took.
            let used_us = self.filling.micros_of(bytes).min(now_us.saturating_sub(self.filled_us));
            self.filled_us += used_us;
        }
    }

    fn spend(&mut self, bytes: u64, now_us: u64) -> Spending {
        self.fill(now_us);
        // A page larger than the bucket waits until it is full, or it would never be written.
        if self.left_bytes >= i128::from(bytes.min(self.capacity_bytes)) {
            self.left_bytes -= i128::from(bytes);
            return Spending::Granted;
        }
        Spending::Over { first: !std::mem::replace(&mut self.over, true) }
    }

    /// They were not written after all.
    fn give_back(&mut self, bytes: u64) {
        self.left_bytes = (self.left_bytes + i128::from(bytes)).min(self.capacity_bytes.into());
    }
}

/// The budget of all directories, or none. See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteBudget(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    rate: Rate,
    begun: Instant,
    bucket: Mutex<Bucket>,
}

/// What `/status` says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BudgetStatus {
    /// Of all directories together, in each period.
    pub(crate) bytes: u64,
    /// `day`, `hour` or `s`.
    pub(crate) period: &'static str,
    /// What could be written now.
    pub(crate) left_bytes: u64,
}

impl WriteBudget {
    pub(crate) fn new(rate: Option<Rate>) -> Self {
        let shared = |rate| Shared { rate, begun: Instant::now(), bucket: Mutex::new(Bucket::new(rate)) };
        Self(rate.map(|rate| Arc::new(shared(rate))))
    }

    /// Asks for a page that is about to be written.
    pub(super) fn spend(&self, bytes: u64) -> Spending {
        let Some(shared) = &self.0 else { return Spending::Granted };
        let spending = shared.lock().spend(bytes, shared.now_us());
        if spending == (Spending::Over { first: true }) {
            tracing::warn!(
                budget = %shared.rate,
                "--ssd-write-budget is used up: pages over it are not written until there is room again; what is on \
                 the SSD is read on"
            );
        }
        spending
    }

    /// A page was granted and has not been written.
    pub(super) fn give_back(&self, bytes: u64) {
        if let Some(shared) = &self.0 {
            shared.lock().give_back(bytes);
        }
    }

    pub(crate) fn status(&self) -> Option<BudgetStatus> {
        let shared = self.0.as_ref()?;
        let mut bucket = shared.lock();
        bucket.fill(shared.now_us());
        let left_bytes = u64::try_from(bucket.left_bytes).unwrap_or(0);
        let Rate { bytes, period } = shared.rate;
        Some(BudgetStatus { bytes, period: period.name(), left_bytes })
    }
}

impl Shared {
    fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Bucket> {
        // Numbers alone: none is worse for a thread that has ended in between.
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const SECOND_US: u64 = 1_000_000;
    const DAY_S: u64 = 86_400;

    fn bucket(rate: &str) -> Bucket {
        Bucket::new(rate.parse().unwrap())
    }

    /// Offers a page as often as that and gives what was written when, in microseconds and bytes.
    fn written(bucket: &mut Bucket, page_bytes: u64, pause_us: u64, until_us: u64) -> Vec<(u64, u64)> {
        let times = (0..).map(|i| i * pause_us).take_while(|at| *at < until_us);
        let granted = |at: &u64| bucket.spend(page_bytes, *at) == Spending::Granted;
        times.filter(granted).map(|at| (at, page_bytes)).collect()
    }

    /// The most that was written in any period of that length.
    fn most_in(written: &[(u64, u64)], period_us: u64) -> u64 {
        let (mut window, mut bytes, mut most) = (VecDeque::new(), 0, 0);
        for &(at, page) in written {
            window.push_back((at, page));
            bytes += page;
            while window.front().is_some_and(|(first, _)| first + period_us <= at) {
                bytes -= window.pop_front().map_or(0, |(_, page)| page);
            }
            most = most.max(bytes);
        }
        most
    }

    #[test]
    fn no_day_sees_more_than_a_day_of_it_and_little_is_wasted() {
        let budget = 1_000_000_000_000;
        for page_bytes in [16_384, 2 << 20, 9 << 20] {
            // 50 MB/s, four times what there is.
            let pause_us = page_bytes / 50;
            let mut bucket = bucket("1tb/day");
            // Two days of the smallest pages are too many steps.
            let until_us = if page_bytes < 1 << 20 { 600 * SECOND_US } else { 2 * DAY_S * SECOND_US };
            let written = written(&mut bucket, page_bytes, pause_us, until_us);
            assert!(most_in(&written, DAY_S * SECOND_US) <= budget, "pages of {page_bytes}");
            let sum: u64 = written.iter().map(|(_, bytes)| bytes).sum();
            let least = u128::from(budget) * u128::from(until_us) * 95 / 100 / u128::from(DAY_S * SECOND_US);
            assert!(u128::from(sum) >= least, "{sum} of {least} bytes, pages of {page_bytes}");
        }
    }

    #[test]
    fn a_burst_takes_what_is_there_and_the_rest_comes_evenly() {
        // 24 KB at once, 552 KB in an hour: 1533 bytes in ten seconds.
        let mut bucket = bucket("576kb/hour");
        assert_eq!(written(&mut bucket, 1_000, 1, 100).len(), 24);
        assert_eq!(bucket.spend(1_000, 6 * SECOND_US), Spending::Over { first: false });
        assert_eq!(bucket.spend(1_000, 7 * SECOND_US), Spending::Granted);
        assert_eq!(bucket.spend(1_000, 7 * SECOND_US), Spending::Over { first: false });
        // Asking often loses nothing of what comes in between.
        let pages = (7 * SECOND_US..1_007 * SECOND_US).step_by(10_000);
        let granted = pages.filter(|at| bucket.spend(1_000, *at) == Spending::Granted).count();
        assert_eq!(granted, 153);
    }

    #[test]
    fn it_is_said_once_until_the_bucket_has_been_full() {
        let mut bucket = bucket("576kb/hour");
        assert_eq!(written(&mut bucket, 24_000, 1, 2).len(), 1);
        assert!(bucket.over, "the second one was over");
        assert_eq!(bucket.spend(24_000, 100), Spending::Over { first: false });
        let full_us = 157 * SECOND_US;
        assert_eq!(bucket.spend(24_000, full_us), Spending::Granted, "a 23rd of an hour later");
        assert_eq!(bucket.spend(1, full_us), Spending::Over { first: true });
    }

    #[test]
    fn a_page_larger_than_the_bucket_is_written_when_it_is_full_and_paid_off() {
        let mut bucket = bucket("576kb/hour");
        assert_eq!(bucket.spend(48_000, 0), Spending::Granted);
        assert_eq!(bucket.left_bytes, -24_000);
        assert_eq!(bucket.spend(1, 150 * SECOND_US), Spending::Over { first: true });
        assert_eq!(bucket.spend(48_000, 320 * SECOND_US), Spending::Granted, "48,000 bytes later");
    }

    #[test]
    fn what_was_not_written_is_there_again() {
        let mut bucket = bucket("576kb/hour");
        assert_eq!(bucket.spend(24_000, 0), Spending::Granted);
        bucket.give_back(24_000);
        assert_eq!(bucket.spend(24_000, 0), Spending::Granted);
        bucket.give_back(u64::MAX);
        assert_eq!(bucket.left_bytes, 24_000, "and never more than it holds");
    }

    #[test]
    fn a_second_is_counted_by_the_hour() {
        let (second, hour) = (bucket("160b/s"), bucket("576kb/hour"));
        assert_eq!((second.capacity_bytes, second.filling), (hour.capacity_bytes, hour.filling));
    }

    #[test]
    fn without_a_budget_everything_is_written() {
        let budget = WriteBudget::new(None);
        assert_eq!((budget.spend(u64::MAX), budget.status()), (Spending::Granted, None));
    }
}
