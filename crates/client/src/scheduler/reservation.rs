//! Room to save pages into, as its owner sees it.

use crate::ClientError;
use crate::operations::{Operations, REQUEST_PAGES, ReservationCell};
use crate::ticket::{PagePart, REVISION, Section, Ticket, TicketKind};
use orbitkv_wire::GrantStatus;
use std::sync::Arc;

/// Room to save pages into.
pub struct Reservation {
    /// One for each [`REQUEST_PAGES`] pages.
    cells: Vec<Arc<ReservationCell>>,
    operations: Arc<Operations>,
}

impl Reservation {
    pub(crate) fn new(cells: Vec<Arc<ReservationCell>>, operations: Arc<Operations>) -> Self {
        Self { cells, operations }
    }

    /// True when answered, or impossible.
    #[must_use]
    pub fn poll(&self) -> bool {
        self.cells.iter().all(|cell| cell.grants().is_some())
    }

    /// One for each page; empty while not answered.
    #[must_use]
    pub fn statuses(&self) -> Vec<GrantStatus> {
        if !self.poll() {
            return Vec::new();
        }
        self.cells.iter().filter_map(|cell| cell.grants()).flat_map(|g| &g.statuses).copied().collect()
    }

    /// Ticket for the workers' `save` of those pages. Where they come of several requests to the manager, it names
    /// the first as its operation.
    ///
    /// # Errors
    /// An index that is not granted, is in a ticket already, or was given back; no page is taken then.
    pub fn ticket(&self, indices: &[usize]) -> Result<Ticket, ClientError> {
        let want = "granted, in no other ticket, and not abandoned";
        let Some(first) = indices.first().and_then(|&i| self.cells.get(i / REQUEST_PAGES)) else {
            return Err(ClientError::value("indices", format!("{indices:?}"), "at least one page of these"));
        };
        self.claim(indices).map_err(|i| ClientError::value("page index", i, want))?;
        let mut hashes = Vec::with_capacity(indices.len());
        let mut parts: Vec<PagePart> = Vec::new();
        for &i in indices {
            // All are there: `claim` has seen the grant, and grants are as many as hashes.
            let cell = self.cells.get(i / REQUEST_PAGES);
            let granted = cell.and_then(|cell| {
                let within = i % REQUEST_PAGES;
                Some((cell.hashes.get(within)?, cell.grants()?.parts_of(within)?))
            });
            if let Some((hash, of_page)) = granted {
                hashes.push(*hash);
                parts.extend_from_slice(of_page);
            }
        }
        Ok(Ticket {
            kind: TicketKind::Save,
            boot: first.boot,
            scheduler: first.session,
            operation: first.operation,
            revision: REVISION,
            sections: vec![Section {
                group: first.group,
                first_page: 0,
                pages: u32::try_from(hashes.len()).unwrap_or(u32::MAX),
                shards: first.grants().map_or(1, |g| g.shards),
            }],
            issued_us: first.issued_us,
            hashes,
            parts,
        })
    }

    /// Takes pages for a ticket, all or none; the index that cannot be taken, otherwise.
    fn claim(&self, indices: &[usize]) -> Result<(), usize> {
        for (n, &i) in indices.iter().enumerate() {
            let cell = self.cells.get(i / REQUEST_PAGES);
            if !cell.is_some_and(|cell| cell.claim(i % REQUEST_PAGES)) {
                for &undo in &indices[..n] {
                    if let Some(cell) = self.cells.get(undo / REQUEST_PAGES) {
                        self.operations.abort(cell.session, &cell.unclaim(undo % REQUEST_PAGES));
                    }
                }
                return Err(i);
            }
        }
        Ok(())
    }

    /// Gives back every granted page that is in no ticket, now or when the answer comes. Idempotent.
    pub fn abandon(&self) {
        self.cells.iter().for_each(|cell| self.operations.abandon(cell));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.abandon();
    }
}
