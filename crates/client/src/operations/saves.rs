//! Reservations: room to save into, and giving it back.

use super::table::{Entry, MAX_LIVE, Operations};
use super::{Grants, ReservationCell};
use crate::clock::monotonic_us;
use crate::sync::atomic::Ordering;
use orbitkv_wire::{GrantStatus, GrantedBody, Hash, MAX_HASHES, Slot, ToManager};
use std::sync::Arc;

/// Most slots in one abort.
const ABORT_BATCH: usize = 4096;

impl Operations {
    /// Asks for slots. Impossible requests are answered in the cell.
    pub(crate) fn reserve(
        &self,
        group: u16,
        parent: Option<Hash>,
        first_depth: u32,
        hashes: Vec<Hash>,
    ) -> Arc<ReservationCell> {
        self.counters.reserved_pages.fetch_add(hashes.len() as u64, Ordering::Relaxed);
        let mut table = self.lock();
        let fits = !hashes.is_empty() && hashes.len() <= MAX_HASHES && table.live.len() < MAX_LIVE;
        // Before the request: the worker compares it with the beginning of its own session.
        let issued_us = monotonic_us();
        let message = ToManager::Reserve { group, parent, first_depth, hashes: &hashes };
        let opened = if fits { table.open(&self.link, &message).ok() } else { None };
        let Some((session, operation)) = opened else {
            return Arc::new(ReservationCell::refused(hashes));
        };
        let ids = (session.number, session.boot, operation);
        let cell = Arc::new(ReservationCell::pending(ids, group, issued_us, hashes));
        table.live.insert(operation, Entry::Reservation(Arc::clone(&cell)));
        cell
    }

    /// Gives back what a reservation was granted and no ticket holds.
    pub(crate) fn abandon(&self, cell: &ReservationCell) {
        // An unanswered one stays in the table: its answer is given back when it comes.
        self.abort(cell.session, &cell.abandon());
    }

    /// Gives slots back, in batches.
    pub(crate) fn abort(&self, session: u64, slots: &[Slot]) {
        for batch in slots.chunks(ABORT_BATCH) {
            self.send(session, 0, &ToManager::Abort(batch));
        }
    }

    /// The manager's answer to a reserve.
    pub(super) fn granted(&self, operation: u64, body: &GrantedBody<'_>) -> Result<(), String> {
        let mut table = self.lock();
        let Some(Entry::Reservation(cell)) = table.live.get(&operation) else { return Ok(()) };
        let cell = Arc::clone(cell);
        table.live.remove(&operation);
        drop(table);
        let grants = Grants::from_wire(body, cell.hashes.len())?;
        let granted = grants.statuses.iter().filter(|s| **s == GrantStatus::Slots).count() as u64;
        self.counters.granted_pages.fetch_add(granted, Ordering::Relaxed);
        self.abort(cell.session, &cell.answer(grants));
        Ok(())
    }
}
