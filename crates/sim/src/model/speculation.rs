//! Reads ahead of demand keep to their share, give way, and end in time.

use super::{Model, Operation};
use crate::failure::{Checked, Checker, ensure};
use orbitkv_core::{Account, Core, Demand, Event, Micros, Mode, Phase, Recovery, Ticket};
use std::collections::BTreeMap;

impl Model {
    pub(super) fn check_speculation(&self, now: Micros, event: &Event<'_>, core: &Core) -> Checked {
        self.check_shares(core)?;
        self.check_limits()?;
        self.check_expiry(now)?;
        match *event {
            Event::Query { session, operation, revision, demand: Demand { mode, .. } }
            | Event::Recover { session, operation, revision, recovery: Recovery { mode, .. } }
                if mode != Mode::Demand =>
            {
                self.check_begin(Ticket { session, operation, revision }, core)
            }
            _ => Ok(()),
        }
    }

    /// Never more than their share of both budgets, draining reads included.
    fn check_shares(&self, core: &Core) -> Checked {
        let percent = self.config.speculative_percent;
        let (ledger, config) = (core.ledger(), &self.config);
        let all = ledger.speculative_bytes();
        ensure(all * 100 <= config.query_budget_bytes * percent, Checker::Ledger, || {
            format!("{all} bytes are read ahead, more than {percent} % of {}", config.query_budget_bytes)
        })?;
        let mut own: BTreeMap<_, u64> = BTreeMap::new();
        for op in self.operations.values() {
            let held = |account| ledger.held_bytes(op.instance, account);
            let ahead = [Account::Warming, Account::Preloading, Account::Prepared];
            own.insert(op.instance, ahead.into_iter().map(held).sum());
        }
        let most = own.values().max().copied().unwrap_or(0);
        ensure(most * 100 <= config.query_instance_budget_bytes * percent, Checker::Ledger, || {
            format!("an instance reads {most} bytes ahead")
        })
    }

    fn check_limits(&self) -> Checked {
        let mut of_session: BTreeMap<_, (usize, usize)> = BTreeMap::new();
        let ahead = self.operations.iter().filter(|(_, op)| op.phase.speculative());
        for (ticket, op) in ahead.clone() {
            let counts = of_session.entry(ticket.session).or_default();
            match op.phase {
                Phase::Warming => counts.1 += 1,
                _ => counts.0 += 1,
            }
        }
        let config = &self.config;
        let fits = ahead.count() <= config.speculations
            && of_session.values().all(|(prepared, warm)| {
                *prepared <= config.preparations_per_session && *warm <= config.warm_ups_per_session
            });
        ensure(fits, Checker::Model, || "more is read ahead at once than is allowed".into())
    }

    /// What nobody claims or keeps is gone with the first event after its time.
    fn check_expiry(&self, now: Micros) -> Checked {
        let ttl_us = self.config.unclaimed_ttl_ms * 1_000;
        let waits = |op: &&Operation| matches!(op.phase, Phase::Preloading | Phase::Prepared);
        let late = self.operations.iter().find(|(_, op)| waits(op) && op.kept_us + ttl_us <= now.0);
        ensure(late.is_none(), Checker::Liveness, || format!("{late:?} should have expired"))
    }

    /// A read ahead was begun just now, not repeated: nobody may wait for bytes, and a warm-up gives way to any owner.
    fn check_begin(&self, ticket: Ticket, core: &Core) -> Checked {
        let begun = |op: &&Operation| op.phase.speculative() && self.fresh == Some(ticket);
        let Some(op) = self.operations.get(&ticket).filter(begun) else {
            return Ok(());
        };
        let waits = self.operations.values().any(|op| op.phase == Phase::Waiting);
        ensure(!waits, Checker::Fairness, || {
            format!("{ticket:?} was begun in front of a demand that waits")
        })?;
        let ledger = core.ledger();
        let demands = ledger.reserved_bytes() - ledger.speculative_bytes();
        ensure(op.phase != Phase::Warming || demands == 0, Checker::Fairness, || {
            format!("{ticket:?} warms up beside demands that own {demands} bytes")
        })
    }
}
