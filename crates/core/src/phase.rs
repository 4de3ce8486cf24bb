//! The life of an operation, as data.

/// Where an operation is in its life. Metrics report these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Pages are read ahead for nobody in particular.
    Warming,
    /// Pages are read ahead for a request.
    Preloading,
    /// They are leased and not yet claimed.
    Prepared,
    /// A demand waits for budget.
    Waiting,
    /// A demand is admitted and its pages are being made resident.
    Preparing,
    /// Pages are leased and promised to the owner.
    Ready,
    /// Workers copy.
    Restoring,
    /// Interest has ended; submitted work has not.
    Draining,
}

/// What moves an operation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trigger {
    /// The budget holds its bytes.
    Admit,
    /// Every page of the answer is resident and leased.
    Lease,
    /// The request came for what was prepared.
    Claim,
    /// The owner handed the lease to the workers.
    Hand,
    /// Interest ended: cancel, release, expiry, newer revision or end of session.
    Stop,
}

/// Every legal move. Anything else is a bug of the core or a refusal of the request.
const MOVES: [(Phase, Trigger, Phase); 12] = [
    (Phase::Preloading, Trigger::Lease, Phase::Prepared),
    (Phase::Preloading, Trigger::Claim, Phase::Preparing),
    (Phase::Prepared, Trigger::Claim, Phase::Ready),
    (Phase::Waiting, Trigger::Admit, Phase::Preparing),
    (Phase::Preparing, Trigger::Lease, Phase::Ready),
    (Phase::Ready, Trigger::Hand, Phase::Restoring),
    (Phase::Warming, Trigger::Stop, Phase::Draining),
    (Phase::Preloading, Trigger::Stop, Phase::Draining),
    (Phase::Prepared, Trigger::Stop, Phase::Draining),
    (Phase::Preparing, Trigger::Stop, Phase::Draining),
    (Phase::Ready, Trigger::Stop, Phase::Draining),
    (Phase::Restoring, Trigger::Stop, Phase::Draining),
];

impl Phase {
    /// All phases, in the order of metrics.
    pub const ALL: [Self; 8] = [
        Self::Warming,
        Self::Preloading,
        Self::Prepared,
        Self::Waiting,
        Self::Preparing,
        Self::Ready,
        Self::Restoring,
        Self::Draining,
    ];

    /// Whether no request has asked for its pages yet.
    #[must_use]
    pub fn speculative(self) -> bool {
        matches!(self, Self::Warming | Self::Preloading | Self::Prepared)
    }

    /// The phase after `trigger`, or `None` if this phase does not allow it.
    #[must_use]
    pub fn after(self, trigger: Trigger) -> Option<Self> {
        MOVES.iter().find(|m| m.0 == self && m.1 == trigger).map(|m| m.2)
    }

    /// Lower-case name, as in metrics and refusals.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Warming => "warming",
            Self::Preloading => "preloading",
            Self::Prepared => "prepared",
            Self::Waiting => "waiting",
            Self::Preparing => "preparing",
            Self::Ready => "ready",
            Self::Restoring => "restoring",
            Self::Draining => "draining",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_runs_from_waiting_to_restoring() {
        let steps = [Trigger::Admit, Trigger::Lease, Trigger::Hand, Trigger::Stop];
        let end = steps.iter().try_fold(Phase::Waiting, |p, t| p.after(*t));
        assert_eq!(end, Some(Phase::Draining));
    }

    #[test]
    fn a_waiting_demand_cannot_be_handed_out() {
        assert_eq!(Phase::Waiting.after(Trigger::Hand), None);
        assert_eq!(Phase::Draining.after(Trigger::Lease), None);
    }
}
