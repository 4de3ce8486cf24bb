//! What a worker has copied.

use crate::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counters of one worker. Copies of the self-test are in none of them.
        #[derive(Debug, Default)]
        pub(crate) struct Stats { $($(#[$doc])* pub(crate) $name: AtomicU64,)+ }

        impl Stats {
            /// Every counter by name.
            pub(crate) fn read(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)+]
            }
        }
    };
}

counters! {
    /// Pages copied into the pool and committed.
    saved_pages,
    /// Their bytes.
    saved_bytes,
    /// Microseconds from the order to the end of the copy, summed over the pages that were copied.
    save_us,
    /// Pages of saves that were given up.
    aborted_pages,
    /// Pages that landed complete.
    restored_pages,
    /// Their bytes.
    restored_bytes,
    /// Microseconds from the order to the end of a restore, summed over restores, failed ones included.
    restore_us,
    /// Bytes of restores whose copying could be timed by itself, without what it waited for.
    timed_bytes,
    /// Microseconds which that took, summed over restores.
    timed_us,
    /// Pages of restores that did not land.
    failed_pages,
    /// Pages whose checksum was compared before the copy.
    verified_pages,
    /// Pages whose checksum did not match.
    bad_pages,
    /// Tickets of another manager run, an earlier session or a fenced scheduler.
    stale_tickets,
    /// Bytes of saves whose source may still be read.
    save_inflight_bytes,
    /// Bytes of restores whose destination may still be written.
    load_inflight_bytes,
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Adds the time since `start`.
pub(crate) fn add_since(counter: &AtomicU64, start: Instant) {
    add(counter, u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX));
}

pub(crate) fn sub(counter: &AtomicU64, by: u64) {
    let before = counter.fetch_sub(by, Ordering::Relaxed);
    debug_assert!(before >= by, "more left than entered");
}
