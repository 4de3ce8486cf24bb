//! Time that processes of one host can compare.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds of the host's monotonic clock.
///
/// Tickets carry it from the scheduler's process to the worker's. Processes in different time namespaces
/// would disagree; engine processes of one instance share theirs.
pub(crate) fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(nanos / 1_000)
}
