//! What must hold after every step, and when all has come to rest.

use crate::failure::{Checked, Checker, ensure, fail};
use crate::world::World;
use orbitkv_core::{Account, Effect, Event, Micros};

impl World {
    /// The model after every step; the core's own audit after every step of a small world, and every
    /// few steps of a large one.
    pub(crate) fn check_step(&mut self, event: &Event<'_>, effects: &[Effect]) -> Checked {
        self.model.observe(Micros(self.now_us), event, effects, &self.core)?;
        if self.steps.is_multiple_of(self.audit_every) { self.audit() } else { Ok(()) }
    }

    fn audit(&self) -> Checked {
        self.core.audit().or_else(|words| fail(Checker::Audit, words))
    }

    /// Whether everything has ended: operations, custody, outages.
    pub(crate) fn settled(&self) -> bool {
        let connected = |client: &usize| self.clients[*client].session.is_some();
        let up = self.engines.iter().all(|e| {
            e.up && e.scheduler.iter().chain(&e.workers).all(connected)
                && e.scheduler.is_some_and(|c| {
                    let instance = self.clients[c].instance;
                    self.core.instances().any(|(id, active, _)| id == instance && active)
                })
        });
        let idle = |client: &crate::engine::Client| client.desk.iter().all(|desk| desk.asks.is_empty());
        up && self.copies.is_empty()
            && self.disk.idle()
            && self.scrubs.is_empty()
            && !self.core.is_finding()
            && self.clients.iter().all(|client| !self.processes[client.process].alive || idle(client))
            && self.core.operations().next().is_none()
            && self.core.saves() == 0
            && self.core.filling_bytes() == 0
            && self.core.quarantined_bytes() == 0
    }

    /// What has not ended, in words.
    pub(crate) fn unsettled(&self) -> String {
        let operations: Vec<_> = self.core.operations().map(|op| (op.ticket, op.phase, op.owing)).collect();
        let away: Vec<_> = self
            .engines
            .iter()
            .flat_map(|e| e.scheduler.iter().chain(&e.workers))
            .filter(|c| self.clients[**c].session.is_none())
            .collect();
        format!(
            "operations {operations:?}, {} reservations, {} bytes being saved, {} in quarantine, {} copies, \
             clients without a session {away:?}",
            self.core.saves(),
            self.core.filling_bytes(),
            self.core.quarantined_bytes(),
            self.copies.len(),
        )
    }

    /// All has ended: nothing may be charged, held or forgotten.
    pub(crate) fn check_rest(&self) -> Checked {
        self.audit()?;
        let ledger = self.core.ledger();
        for account in Account::ALL {
            let bytes = ledger.account_bytes(account);
            ensure(bytes == 0, Checker::Ledger, || format!("{bytes} bytes are left {}", account.name()))?;
        }
        // One extent a shard of what the core knows to be stored, and nothing that nobody knows of.
        let extents = self.model.stored_parts();
        ensure(self.disk.len() == extents, Checker::Ledger, || {
            format!("the disk holds {} extents, {extents} are known", self.disk.len())
        })?;
        let held = self.core.slots().find(|s| s.readers > 0 || s.scrubbing);
        ensure(held.is_none(), Checker::Custody, || format!("nobody copies, but {held:?}"))?;
        let alive = self.sessions.values().filter(|s| s.link.is_some()).count();
        let known = self.core.sessions();
        ensure(known <= alive, Checker::Liveness, || {
            format!("the core remembers {known} sessions, {alive} are connected")
        })
    }
}
