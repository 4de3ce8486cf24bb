//! Reservations: room to save into, and giving it back.

use super::table::{Entry, MAX_LIVE, Operations};
use super::{Grants, ReservationCell};
use crate::clock::monotonic_us;
use crate::sync::atomic::Ordering;
use orbitkv_wire::{GrantStatus, GrantedBody, Hash, Slot, ToManager};
use std::sync::Arc;

/// Most pages that are reserved, committed or given back in one message. The manager handles a message at once, and
/// making room for a page costs it most of a microsecond: a query of another engine waits no longer than so many take.
pub(crate) const REQUEST_PAGES: usize = 16;

impl Operations {
    /// Asks for slots: a cell for each [`REQUEST_PAGES`] pages, all of one session. What is impossible is
    /// answered in its cell.
    pub(crate) fn reserve(
        &self,
        group: u16,
        parent: Option<Hash>,
        first_depth: u32,
        hashes: &[Hash],
    ) -> Vec<Arc<ReservationCell>> {
        self.counters.reserved_pages.fetch_add(hashes.len() as u64, Ordering::Relaxed);
        let mut table = self.lock();
        // Before the request: the worker compares it with the beginning of its own session.
        let issued_us = monotonic_us();
        let room = MAX_LIVE.saturating_sub(table.live.len());
        let mut next = (parent, first_depth);
        let messages = hashes.chunks(REQUEST_PAGES).take(room).map(|part| {
            let (parent, first_depth) = next;
            let depth = u32::try_from(part.len()).unwrap_or(u32::MAX);
            next = (part.last().copied(), first_depth.saturating_add(depth));
            ToManager::Reserve { group, parent, first_depth, hashes: part }
        });
        let mut opened = table.open_all(&self.link, messages).into_iter();
        let cells = hashes.chunks(REQUEST_PAGES).map(|part| {
            let Some(Ok((session, operation))) = opened.next() else {
                return Arc::new(ReservationCell::refused(part.to_vec()));
            };
            let ids = (session.number, session.boot, operation);
            let cell = Arc::new(ReservationCell::pending(ids, group, issued_us, part.to_vec()));
            table.live.insert(operation, Entry::Reservation(Arc::clone(&cell)));
            cell
        });
        cells.collect()
    }

    /// Gives back what a reservation was granted and no ticket holds.
    pub(crate) fn abandon(&self, cell: &ReservationCell) {
        // An unanswered one stays in the table: its answer is given back when it comes.
        self.abort(cell.session, &cell.abandon());
    }

    /// Gives slots back, in batches.
    pub(crate) fn abort(&self, session: u64, slots: &[Slot]) {
        for batch in slots.chunks(REQUEST_PAGES) {
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
