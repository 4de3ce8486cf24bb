//! What the shell itself counts. The core counts the rest.

use orbitkv_core::Histogram;
use orbitkv_wire::Kind;

/// Buckets up to half a second.
pub(crate) const HANDLING_BUCKETS: usize = 16;

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
    pub(crate) handling: Histogram<HANDLING_BUCKETS>,
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
    fn counts_go_to_their_kind() {
        let mut tally = Tally::default();
        tally.received(Kind::Query);
        tally.closed(CloseReason::Drain);
        assert_eq!(tally.received_by_kind().collect::<Vec<_>>(), [("Query", 1)]);
        assert!(tally.closed_by_reason().any(|c| c == ("drain", 1)));
    }
}
