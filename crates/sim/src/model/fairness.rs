//! Nobody is overtaken by somebody behind.

use super::Model;
use crate::failure::{Checked, Checker, ensure};
use orbitkv_core::{Core, Phase, Ticket};
use std::collections::BTreeSet;

impl Model {
    /// `winner` was admitted just now. Nobody of its own instance may still wait before it. Another
    /// instance may, if the first of its waiters waits for that instance's own budget.
    pub(super) fn check_overtaking(&self, winner: Ticket, core: &Core) -> Checked {
        let Some(won) = self.operations.get(&winner) else {
            return Ok(());
        };
        // What was admitted or ended in the same step is answered later in the same list.
        let waits: BTreeSet<Ticket> =
            core.operations().filter(|seen| seen.phase == Phase::Waiting).map(|seen| seen.ticket).collect();
        let mut before: Vec<_> = self
            .operations
            .iter()
            .filter(|(ticket, op)| waits.contains(ticket) && op.place < won.place)
            .collect();
        before.sort_by_key(|(_, op)| op.place);
        let mut first = BTreeSet::new();
        for (ticket, op) in before {
            if !first.insert(op.instance) {
                continue;
            }
            let need = op.bytes_of(self.expected(*ticket, core));
            if need == 0 {
                // Room for the winner was made of its pages: it is a miss when it is looked at next.
                continue;
            }
            let own = core.ledger().instance_bytes(op.instance);
            let blocked = own + need > self.config.query_instance_budget_bytes;
            ensure(op.instance != won.instance && blocked, Checker::Fairness, || {
                format!("{ticket:?} waits since before {winner:?}, which was admitted")
            })?;
        }
        Ok(())
    }
}
