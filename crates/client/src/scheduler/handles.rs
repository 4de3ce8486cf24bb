//! What the engine holds of an operation. Dropping a handle ends its interest.

use crate::ClientError;
use crate::clock::monotonic_us;
use crate::operations::{
    CandidatesCell, Lease, MissReason, Operations, PreparationCell, PreparationState, QueryCell, QueryState,
    ResetCell,
};
use crate::ticket::{REVISION, Section, Ticket, TicketKind};
use std::sync::Arc;
use std::time::Duration;

/// Session, operation and revision as the manager knows them.
fn ids(session: u64, operation: u64) -> (u64, u64, u32) {
    if operation == 0 { (0, 0, 0) } else { (session, operation, REVISION) }
}

/// A foreground demand.
pub struct Query {
    cell: Arc<QueryCell>,
    operations: Arc<Operations>,
}

impl Query {
    pub(crate) fn new(cell: Arc<QueryCell>, operations: Arc<Operations>) -> Self {
        Self { cell, operations }
    }

    /// One atomic load.
    #[must_use]
    pub fn poll(&self) -> QueryState {
        self.cell.state()
    }

    /// Waits at most `timeout` for a final state. The answer is read by this thread, if no other reads.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> QueryState {
        self.operations.wait(&self.cell, timeout)
    }

    /// Pages of the leased prefix; zero unless ready.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.cell.lease().map_or(0, Lease::pages)
    }

    /// Leased pages by cache group: one section for a prefix, one for each group of a recovery; none unless
    /// ready.
    #[must_use]
    pub fn sections(&self) -> &[Section] {
        self.cell.lease().map_or(&[], |lease| &lease.sections)
    }

    /// Why there are none.
    #[must_use]
    pub fn miss_reason(&self) -> Option<MissReason> {
        if self.poll() == QueryState::Miss { self.cell.reason() } else { None }
    }

    /// Its name on the manager: session, operation, revision. Zeros if it never left this process; another
    /// operation after a claim that had to ask again.
    #[must_use]
    pub fn ids(&self) -> (u64, u64, u32) {
        ids(self.cell.session, self.cell.operation())
    }

    /// Hands pages `first .. first + count` to the workers: the ticket for their `restore`. At most once. A
    /// recovery is handed over as a whole.
    ///
    /// # Errors
    /// A range outside the lease, or a part of a recovery; a query that is not ready, or whose connection was lost.
    pub fn restore(&self, first: usize, count: usize) -> Result<Ticket, ClientError> {
        let not_ready = || ClientError::NotReady { state: self.cell.describe() };
        let lease = self.cell.lease().ok_or_else(not_ready)?;
        let (Some((sections, parts)), Ok(first_page), Ok(pages)) =
            (lease.part(first, count), u32::try_from(first), u32::try_from(count))
        else {
            let got = format!("{first} and {count} more");
            let want = match lease.recovery {
                false => format!("inside the {} leased pages", lease.pages()),
                true => format!("0 and {}, all pages of the recovery", lease.pages()),
            };
            return Err(ClientError::value("first and count", got, want));
        };
        // Before the manager is told: the worker compares it with the beginning of its own session.
        let issued_us = monotonic_us();
        if !self.operations.hand_out(&self.cell, first_page, pages) {
            return Err(not_ready());
        }
        Ok(Ticket {
            kind: TicketKind::Restore,
            boot: self.cell.boot,
            scheduler: self.cell.session,
            operation: self.cell.operation(),
            revision: REVISION,
            sections,
            issued_us,
            hashes: Vec::new(),
            parts,
        })
    }

    /// Ends interest, in whatever state. Idempotent. Running copies keep their custody.
    pub fn release(&self) {
        self.operations.release(&self.cell);
    }
}

impl Drop for Query {
    fn drop(&mut self) {
        self.release();
    }
}

/// A question where a recovery could end.
pub struct Candidates {
    operation: u64,
    cell: Arc<CandidatesCell>,
    operations: Arc<Operations>,
}

impl Candidates {
    pub(crate) fn new((operation, cell): (u64, Arc<CandidatesCell>), operations: Arc<Operations>) -> Self {
        Self { operation, cell, operations }
    }

    /// Tokens at which a recovery could end, ascending; `None` while there is no answer. Without a manager,
    /// and when the question is refused, there are none. Nothing is leased for them.
    #[must_use]
    pub fn poll(&self) -> Option<&[u32]> {
        self.cell.boundaries()
    }

    /// As [`Self::poll`], after a wait of at most `timeout` for the answer.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<&[u32]> {
        self.cell.wait(timeout)
    }
}

impl Drop for Candidates {
    fn drop(&mut self) {
        self.operations.drop_candidates(self.operation, &self.cell);
    }
}

/// A read ahead for one request. Only polls keep it: after 900 ms without one it ends by itself.
pub struct Preparation {
    cell: Arc<PreparationCell>,
    operations: Arc<Operations>,
}

impl Preparation {
    pub(crate) fn new(cell: Arc<PreparationCell>, operations: Arc<Operations>) -> Self {
        Self { cell, operations }
    }

    /// One atomic load and one store, which renews it.
    #[must_use]
    pub fn poll(&self) -> PreparationState {
        self.cell.poll()
    }

    /// Pages in memory for it; zero unless prepared.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.cell.pages() as usize
    }

    /// Why there are none.
    #[must_use]
    pub fn miss_reason(&self) -> Option<MissReason> {
        self.cell.reason()
    }

    /// Its name on the manager: session, operation, revision. Zeros if it never left this process.
    #[must_use]
    pub fn ids(&self) -> (u64, u64, u32) {
        ids(self.cell.session, self.cell.operation)
    }

    /// The request has come: its demand. Whatever became of the preparation, this is a query for the same
    /// hashes; `deadline_ms` as in a query. The preparation then is a miss, "released".
    ///
    /// # Errors
    /// It was claimed before.
    pub fn claim(&self, deadline_ms: u32) -> Result<Query, ClientError> {
        let cell = self.operations.claim(&self.cell, deadline_ms).ok_or(ClientError::Spent)?;
        Ok(Query::new(cell, Arc::clone(&self.operations)))
    }

    /// Ends interest, unless it was claimed. Idempotent.
    pub fn cancel(&self) {
        self.operations.cancel(&self.cell);
    }
}

impl Drop for Preparation {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Whether the namespace has been forgotten.
pub struct Reset {
    cell: Arc<ResetCell>,
}

impl Reset {
    pub(crate) fn new(cell: Arc<ResetCell>) -> Self {
        Self { cell }
    }

    /// True once the manager has carried it out.
    #[must_use]
    pub fn poll(&self) -> bool {
        self.cell.is_done()
    }

    /// Waits at most `timeout` for that.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        self.cell.wait(timeout)
    }
}
