//! One step of the core against the model.

use super::Model;
use super::events::Verdict;
use crate::failure::{Checked, Checker, ensure};
use orbitkv_core::{Account, Core, Effect, Event, Micros, Phase};
use std::collections::BTreeMap;

impl Model {
    /// Judges the answer to an event, learns from it, and compares what both sides know.
    pub(crate) fn observe(
        &mut self,
        now: Micros,
        event: &Event<'_>,
        effects: &[Effect],
        core: &Core,
    ) -> Checked {
        let refused = effects.iter().find_map(|e| match e {
            Effect::Refused { refusal, .. } => Some(refusal.to_string()),
            _ => None,
        });
        self.fresh = None;
        let verdict = self.verdict(event);
        let agrees = match verdict {
            Verdict::MustAccept => refused.is_none(),
            Verdict::MustRefuse => refused.is_some(),
            Verdict::Either => true,
        };
        ensure(agrees, Checker::Model, || {
            format!("{event:?}: {verdict:?}, but the core said {}", refused.as_deref().unwrap_or("yes"))
        })?;
        match (refused, event) {
            (None, _) => self.accept(now, event),
            // Refused by a limit: the number is used all the same, so that a repetition is refused too.
            (Some(_), Event::Reserve { session, operation, .. }) if verdict == Verdict::Either => {
                self.use_number(*session, *operation);
            }
            (Some(_), _) => {}
        }
        self.effects(event, effects, core)?;
        self.tidy();
        self.learn_reads(core)?;
        self.check_speculation(now, event, core)?;
        self.compare_operations(core)?;
        self.compare_accounts(core)?;
        let restored = core.counters().restored_pages;
        ensure(restored == self.restored_pages, Checker::Model, || {
            format!("{} pages were handed out, the core counts {restored}", self.restored_pages)
        })?;
        let filling: u64 = self.fills.values().map(|f| f.bytes).sum();
        ensure(core.filling_bytes() == filling, Checker::Custody, || {
            format!("{} bytes are being saved, the core counts {}", filling, core.filling_bytes())
        })?;
        ensure(core.saves() == self.saves.len(), Checker::Model, || {
            format!("{} reservations are open, the core counts {}", self.saves.len(), core.saves())
        })
    }

    /// How far reads have come is the core's own business, within these bounds: bytes of a demand that
    /// prepares only shrink, and one that drains without copies does so because of reads.
    fn learn_reads(&mut self, core: &Core) -> Checked {
        let mut admitted = Vec::new();
        let views: BTreeMap<_, _> = core.operations().map(|view| (view.ticket, view)).collect();
        let reads = self.tier.inflight().1;
        self.operations.retain(|ticket, op| {
            views.contains_key(ticket) || !(op.phase == Phase::Draining && op.owing.is_empty())
        });
        for (ticket, op) in &mut self.operations {
            let Some(view) = views.get(ticket) else {
                continue;
            };
            if view.phase == Phase::Preparing && op.phase == Phase::Waiting {
                op.phase = Phase::Preparing;
                op.bytes = view.bytes;
                admitted.push(*ticket);
            }
            let lingering = view.lingering_bytes;
            let sizes = op.shapes.iter().map(|(_, bytes)| *bytes * view.lingering as u64);
            let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
            ensure((least..=most).contains(&lingering), Checker::Ledger, || {
                format!("{ticket:?} pays {lingering} bytes for {} reads", view.lingering)
            })?;
            ensure(lingering == 0 || reads > 0, Checker::Ledger, || {
                format!("{ticket:?} pays for reads that have ended")
            })?;
            let idle = op.phase == Phase::Draining && op.owing.is_empty() && lingering == 0;
            ensure(!idle, Checker::Liveness, || format!("{ticket:?} drains and waits for nobody"))?;
            let bytes = match view.phase {
                Phase::Preparing | Phase::Preloading | Phase::Warming => view.bytes,
                _ => op.bytes_of(view.pages) + lingering,
            };
            let first = !std::mem::replace(&mut op.learned, view.phase != Phase::Waiting);
            let shrinks = first || bytes <= op.bytes || op.lingering_bytes < lingering;
            ensure(shrinks && view.bytes == bytes, Checker::Ledger, || {
                format!("{ticket:?} owned {} bytes, now {view:?}", op.bytes)
            })?;
            op.bytes = bytes;
            op.lingering_bytes = lingering;
        }
        admitted.into_iter().try_for_each(|ticket| self.check_overtaking(ticket, core))?;
        let (stored, inflight) = (self.tier.pages(), self.tier.inflight());
        ensure((core.stored_pages(), core.tier_inflight()) == (stored, inflight), Checker::Model, || {
            format!(
                "{stored} pages are stored and {inflight:?} on their way, the core has {} and {:?}",
                core.stored_pages(),
                core.tier_inflight()
            )
        })
    }

    fn compare_operations(&self, core: &Core) -> Checked {
        let mut seen = 0;
        for view in core.operations() {
            seen += 1;
            let known = self.operations.get(&view.ticket);
            let agrees = known.is_some_and(|op| {
                (op.phase, op.bytes, op.owing.len()) == (view.phase, view.bytes, view.owing)
            });
            ensure(agrees, Checker::Ledger, || format!("the core has {view:?}, the model {known:?}"))?;
        }
        ensure(seen == self.operations.len(), Checker::Model, || {
            format!("{} operations are alive, the core has {seen}", self.operations.len())
        })
    }

    fn compare_accounts(&self, core: &Core) -> Checked {
        let mut rows: BTreeMap<_, u64> = BTreeMap::new();
        let mut totals: BTreeMap<_, u64> = BTreeMap::new();
        for op in self.operations.values().filter(|op| op.phase != Phase::Waiting) {
            let account = match (op.phase, op.handed) {
                (Phase::Preparing | Phase::Preloading | Phase::Warming, _) => op.reading,
                (_, true) => Account::Restoring,
                (_, false) if op.unclaimed => Account::Prepared,
                (_, false) => Account::Ready,
            };
            *rows.entry((op.instance, account)).or_default() += op.bytes - op.lingering_bytes;
            *rows.entry((op.instance, op.reading)).or_default() += op.lingering_bytes;
            *totals.entry(op.instance).or_default() += op.bytes;
        }
        let ledger = core.ledger();
        for (&(instance, account), &bytes) in &rows {
            let held = ledger.held_bytes(instance, account);
            ensure(held == bytes, Checker::Ledger, || {
                format!("{instance:?} owns {bytes} bytes {}, the ledger says {held}", account.name())
            })?;
        }
        let all: u64 = totals.values().sum();
        ensure(ledger.reserved_bytes() == all, Checker::Ledger, || {
            format!("operations own {all} bytes, the ledger says {}", ledger.reserved_bytes())
        })?;
        ensure(all <= self.config.query_budget_bytes, Checker::Ledger, || {
            format!("{all} bytes are over budget")
        })?;
        let most = totals.values().max().copied().unwrap_or(0);
        ensure(most <= self.config.query_instance_budget_bytes, Checker::Ledger, || {
            format!("an instance owns {most} bytes, more than its budget")
        })
    }
}
