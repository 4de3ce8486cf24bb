//! What the shell itself counts. The core counts the rest.

use orbitkv_wire::Kind;
use std::time::Duration;

/// Upper bounds of the buckets are 16 µs × 2^i.
const BUCKETS: usize = 16;
const FIRST_BUCKET_MICROS: u64 = 16;

/// Durations in buckets of powers of two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    counts: [u64; BUCKETS + 1],
    sum_micros: u64,
}

impl Histogram {
    pub(crate) fn observe(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let steps = micros.div_ceil(FIRST_BUCKET_MICROS).max(1);
        // Smallest i with 2^i >= steps.
        let bucket = (u64::BITS - (steps - 1).leading_zeros()) as usize;
        self.counts[bucket.min(BUCKETS)] += 1;
        self.sum_micros = self.sum_micros.saturating_add(micros);
    }

    /// Upper bound in seconds and own count of each bucket. Longer durations are in the total alone.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        let bound = |i| (FIRST_BUCKET_MICROS << i) as f64 / 1e6;
        self.counts.iter().take(BUCKETS).enumerate().map(|(i, count)| (bound(i), *count)).collect()
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn sum_seconds(&self) -> f64 {
        self.sum_micros as f64 / 1e6
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The client closed it.
    ClientClosed,
    /// Its process ended.
    ProcessExit,
    /// A newer connection of the same client.
    Replaced,
    /// Bytes that are no frame, or a frame that may not come now.
    Protocol,
    /// No hello in time.
    NoHello,
    /// The hello was refused.
    Rejected,
    /// Replies were not read.
    SlowReader,
    /// The socket failed.
    Socket,
    /// The manager stops.
    Drain,
}

impl CloseReason {
    pub(crate) const ALL: [Self; 9] = [
        Self::ClientClosed,
        Self::ProcessExit,
        Self::Replaced,
        Self::Protocol,
        Self::NoHello,
        Self::Rejected,
        Self::SlowReader,
        Self::Socket,
        Self::Drain,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ClientClosed => "client_closed",
            Self::ProcessExit => "process_exit",
            Self::Replaced => "replaced",
            Self::Protocol => "protocol",
            Self::NoHello => "no_hello",
            Self::Rejected => "rejected",
            Self::SlowReader => "slow_reader",
            Self::Socket => "socket",
            Self::Drain => "drain",
        }
    }
}

/// All counts of the shell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    received: [u64; Kind::ALL.len()],
    sent: [u64; Kind::ALL.len()],
    closed: [u64; CloseReason::ALL.len()],
    pub(crate) connections: u64,
    pub(crate) segments_failed: u64,
    pub(crate) handling: Histogram,
}

impl Tally {
    pub(crate) fn received(&mut self, kind: Kind) {
        bump(&mut self.received, Kind::ALL, &kind);
    }

    pub(crate) fn sent(&mut self, kind: Kind) {
        bump(&mut self.sent, Kind::ALL, &kind);
    }

    pub(crate) fn closed(&mut self, reason: CloseReason) {
        bump(&mut self.closed, &CloseReason::ALL, &reason);
    }

    /// Frames from clients by kind, kinds that came only.
    pub(crate) fn received_by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Kind::ALL.iter().map(|k| k.name()).zip(self.received).filter(|(_, count)| *count > 0)
    }

    /// Frames to clients by kind, kinds that went only.
    pub(crate) fn sent_by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Kind::ALL.iter().map(|k| k.name()).zip(self.sent).filter(|(_, count)| *count > 0)
    }

    /// Ended connections by reason.
    pub(crate) fn closed_by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CloseReason::ALL.iter().map(|r| r.name()).zip(self.closed)
    }
}

fn bump<T: PartialEq>(counts: &mut [u64], all: &[T], one: &T) {
    if let Some(count) = all.iter().position(|t| t == one).and_then(|i| counts.get_mut(i)) {
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_powers_of_two_from_16_micros() {
        let mut histogram = Histogram::default();
        for micros in [0, 16, 17, 32, 33, u64::MAX] {
            histogram.observe(Duration::from_micros(micros));
        }
        let buckets = histogram.buckets();
        assert_eq!(buckets[0], (16e-6, 2));
        assert_eq!(buckets[1], (32e-6, 2));
        assert_eq!(buckets[2], (64e-6, 1));
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 5);
        assert_eq!(histogram.count(), 6, "the one beyond all bounds is counted");
    }

    #[test]
    fn counts_go_to_their_kind() {
        let mut tally = Tally::default();
        tally.received(Kind::Query);
        tally.closed(CloseReason::Drain);
        assert_eq!(tally.received_by_kind().collect::<Vec<_>>(), [("Query", 1)]);
        assert!(tally.closed_by_reason().any(|c| c == ("drain", 1)));
    }
}
