//! How long leases have been out.

use orbitkv_core::{Micros, Ticket};
use std::collections::BTreeMap;

/// When each lease was promised. Ended ones are left in until there are too many.
#[derive(Debug, Default)]
pub(crate) struct LeaseClock {
    since: BTreeMap<Ticket, Micros>,
}

impl LeaseClock {
    /// Notes a lease. With more than `most` noted, those of which `live` says no are forgotten.
    pub(crate) fn started(
        &mut self,
        ticket: Ticket,
        now: Micros,
        most: usize,
        live: impl FnOnce() -> Vec<Ticket>,
    ) {
        // A repeated query is answered again; its lease is as old as before.
        self.since.entry(ticket).or_insert(now);
        if self.since.len() > most {
            let live = live();
            self.since.retain(|ticket, _| live.binary_search(ticket).is_ok());
        }
    }

    /// Start of the oldest of these.
    pub(crate) fn oldest(&self, leases: impl Iterator<Item = Ticket>) -> Option<Micros> {
        leases.filter_map(|ticket| self.since.get(&ticket).copied()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_core::{OperationId, Revision, SessionId};

    fn ticket(operation: u64) -> Ticket {
        Ticket { session: SessionId(1), operation: OperationId(operation), revision: Revision(0) }
    }

    #[test]
    fn only_live_leases_count_and_repetitions_do_not_renew() {
        let mut clock = LeaseClock::default();
        for (operation, at) in [(1, 10), (2, 20), (2, 30), (3, 40)] {
            clock.started(ticket(operation), Micros(at), 10, Vec::new);
        }
        assert_eq!(clock.oldest([2, 3, 4].map(ticket).into_iter()), Some(Micros(20)));
    }

    #[test]
    fn the_number_of_notes_is_bounded() {
        let mut clock = LeaseClock::default();
        for operation in 0..100 {
            let live = || (operation.max(1) - 1..=operation).map(ticket).collect();
            clock.started(ticket(operation), Micros(operation), 4, live);
            assert!(clock.since.len() <= 5);
        }
        assert_eq!(clock.oldest([99].map(ticket).into_iter()), Some(Micros(99)));
    }
}
