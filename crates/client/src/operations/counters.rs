//! What happened to the operations of one client.

use crate::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident),+ $(,)?) => {
        /// Each only grows.
        #[derive(Debug, Default)]
        pub(crate) struct OperationCounters { $(pub(crate) $name: AtomicU64,)+ }

        impl OperationCounters {
            /// All of them by name.
            pub(crate) fn read(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)+]
            }
        }
    };
}

counters! {
    queries,
    hits,
    hits_pages,
    misses,
    deadline_misses,
    reserved_pages,
    granted_pages,
    refusals,
    preparations,
    preparations_claimed,
    preparations_expired,
    preparations_skipped,
    warm_ups,
    warm_ups_skipped,
    warmed_pages,
    candidate_queries,
    tier_reads,
    tier_read_pages,
    tier_read_us,
    tier_left,
    tier_left_pages,
}

/// One more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
