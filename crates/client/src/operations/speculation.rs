//! Reading ahead: preparations, which a request claims, and warm-ups, which nobody owns.

use super::counters::count;
use super::demand::{Again, Demand};
use super::preparation::PreparationCell;
use super::recovery::{Kept, Wants, ahead};
use super::table::{Entry, MAX_LIVE, Operations, Table};
use super::{MissReason, QueryCell};
use crate::link::{SendError, Urgency};
use crate::sync::atomic::Ordering;
use orbitkv_wire::{Hash, QueryMode, ToManager};
use std::sync::Arc;
use std::time::Instant;

/// Most warm-ups whose end has not come; the manager works on fewer.
const MAX_WARM_UPS: usize = 64;

impl Operations {
    /// Begins to read ahead for one request; never blocks.
    pub(crate) fn prepare(&self, wants: Wants<'_>) -> Arc<PreparationCell> {
        count(&self.counters.preparations);
        let mut table = self.lock();
        let full = table.preparations.is_full();
        let opened = if full {
            Err(MissReason::Limit)
        } else {
            self.open_ahead(&mut table, wants, QueryMode::Prepare)
        };
        match opened {
            Ok(ids) => {
                let cell = Arc::new(PreparationCell::pending(ids, wants.keep(), Instant::now()));
                let look_at = table.preparations.insert(&cell);
                table.look_at(look_at, &self.link);
                cell
            }
            Err(reason) => {
                count(&self.counters.preparations_skipped);
                Arc::new(PreparationCell::missed(wants.keep(), reason))
            }
        }
    }

    /// Asks that pages be brought into memory; true if the manager was asked.
    pub(crate) fn warm_up(&self, group: u16, hashes: &[Hash]) -> bool {
        let mut table = self.lock();
        if table.warm_ups.len() >= MAX_WARM_UPS {
            return false;
        }
        let wants = Wants::Prefix { group, hashes };
        let Ok((_, _, operation)) = self.open_ahead(&mut table, wants, QueryMode::WarmUp) else {
            return false;
        };
        table.warm_ups.insert(operation);
        count(&self.counters.warm_ups);
        true
    }

    fn open_ahead(
        &self,
        table: &mut Table,
        wants: Wants<'_>,
        mode: QueryMode,
    ) -> Result<(u64, u128, u64), MissReason> {
        if wants.is_empty() {
            return Err(MissReason::Absent);
        }
        if wants.is_too_long() || table.live.len() >= MAX_LIVE {
            return Err(MissReason::Limit);
        }
        let message = wants.message(0, ahead(mode, &wants));
        let (session, operation) = table.open(&self.link, &message)?;
        Ok((session.number, session.boot, operation))
    }

    /// The request that the pages were prepared for has come: its demand is the same operation. Where that
    /// has ended, an ordinary query for the same hashes. `None` if it was claimed before.
    pub(crate) fn claim(&self, cell: &PreparationCell, deadline_ms: u32) -> Option<Arc<QueryCell>> {
        let strict = matches!(cell.wants, Kept::Recovery(..));
        let demand = Demand { deadline_ms, strict, ..Demand::default() };
        cell.spend().then(|| {
            self.ask(|table| {
                if table.preparations.take(cell) {
                    cell.end(MissReason::Released);
                    self.claim_live(table, cell, demand)
                } else {
                    self.open_query(table, cell.wants.wants(), demand)
                }
            })
        })
    }

    fn claim_live(
        &self,
        table: &mut Table,
        cell: &PreparationCell,
        demand: Demand,
    ) -> Result<Arc<QueryCell>, MissReason> {
        let wants = cell.wants.wants();
        let message = wants.message(demand.deadline_ms, demand.rule());
        if let Err(error) = self.link.send(cell.session, (cell.operation, 1), &message, Urgency::Request) {
            self.send(cell.session, cell.operation, &ToManager::Cancel);
            return Err(error.into());
        }
        count(&self.counters.preparations_claimed);
        let again = Again { wants: cell.wants.clone(), demand, asked: Instant::now() };
        let ids = (cell.session, cell.boot, cell.operation);
        Ok(self.watch(table, ids, wants.group(), demand, Some(Box::new(again))))
    }

    /// The manager had ended the preparation before its claim came: asks once more, as an operation of its
    /// own and for the time that is left. False if that operation is no unanswered claim.
    pub(super) fn ask_anew(&self, table: &mut Table, operation: u64) -> bool {
        let Some(Entry::Query(cell, again)) = table.live.get_mut(&operation) else { return false };
        let Some(again) = again.take() else { return false };
        let cell = Arc::clone(cell);
        table.live.remove(&operation);
        table.deadlines.remove(&(cell.deadline, operation));
        let opened = again.left_ms().and_then(|deadline_ms| {
            let wants = again.wants.wants();
            Ok(table.open(&self.link, &wants.message(deadline_ms, again.demand.rule()))?)
        });
        match opened {
            Ok((_, operation)) => {
                cell.operation.store(operation, Ordering::Release);
                table.deadlines.insert((cell.deadline, operation));
                table.live.insert(operation, Entry::Query(cell, None));
            }
            Err(reason) => {
                self.miss(&cell, reason);
            }
        }
        true
    }

    /// A miss of a claimed operation that was sent before the claim arrived; the refusal of the claim is
    /// still to come. A miss that answers the claim itself looks the same, except by its reason: asking once
    /// more is right for both.
    pub(super) fn missed_before_claim(&self, table: &mut Table, operation: u64, reason: MissReason) -> bool {
        if matches!(reason, MissReason::Deadline | MissReason::Lifetime) || !self.ask_anew(table, operation) {
            return false;
        }
        table.expect_refusal(operation);
        true
    }

    /// Ends interest, unless it was claimed or has ended.
    pub(crate) fn cancel(&self, cell: &PreparationCell) {
        let mut table = self.lock();
        if table.preparations.take(cell) {
            cell.end(MissReason::Released);
            self.send(cell.session, cell.operation, &ToManager::Cancel);
        }
    }

    /// Keeps what was polled, lets go what was not; when to look again.
    pub(super) fn keep(&self, table: &mut Table, now: Instant) -> Option<Instant> {
        let due = table.preparations.due(now);
        for cell in due.let_go {
            count(&self.counters.preparations_expired);
            cell.end(MissReason::Expired);
            self.send(cell.session, cell.operation, &ToManager::Cancel);
        }
        if let (Some(session), false) = (table.session, due.keep.is_empty()) {
            // One that is lost costs a preparation: a manager that does not read will not read ahead either.
            let _ = self.link.send(session.number, (0, 0), &ToManager::Keep(&due.keep), Urgency::Request);
        }
        table.preparations.next_look()
    }

    /// All pages of a preparation are in memory.
    pub(super) fn prepared(&self, operation: u64, pages: u32) {
        if let Some(cell) = self.lock().preparations.get(operation) {
            cell.prepared(pages);
        }
    }

    /// A warm-up has ended.
    pub(super) fn warmed(&self, operation: u64, pages: u32) {
        if self.lock().warm_ups.remove(&operation) {
            self.counters.warmed_pages.fetch_add(u64::from(pages), Ordering::Relaxed);
        }
    }

    /// The manager will not go on with something read ahead; false for any other operation.
    pub(super) fn ended_ahead(&self, table: &mut Table, operation: u64, reason: MissReason) -> bool {
        if let Some(cell) = table.preparations.remove(operation) {
            let expired = reason == MissReason::Expired;
            let counters = &self.counters;
            count(if expired { &counters.preparations_expired } else { &counters.preparations_skipped });
            cell.end(reason);
            return true;
        }
        let warming = table.warm_ups.remove(&operation);
        if warming {
            count(&self.counters.warm_ups_skipped);
        }
        warming
    }
}

impl From<SendError> for MissReason {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Stale => Self::Disconnected,
            SendError::Full => Self::Limit,
        }
    }
}
