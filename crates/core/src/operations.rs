//! Queries by their tickets.

use crate::operation::Operation;
use crate::{OperationId, Phase, Revision, SessionId, Ticket};
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// Every query that is not over. An event looks its operation up many times, so the map is a hash map; its
/// order is nobody's: who changes anything for several operations takes [`Operations::tickets`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations {
    /// Boxed: an operation is large, and moving it about costs more than one more allocation.
    by_name: HashMap<(SessionId, OperationId), Revisions>,
    len: usize,
    /// Those that were begun ahead of demand and not claimed: few among many.
    ahead: BTreeSet<Ticket>,
}

/// All revisions of one operation: at most one is live, and seldom do others still drain.
type Revisions = SmallVec<[(Revision, Box<Operation>); 1]>;

fn name(ticket: Ticket) -> (SessionId, OperationId) {
    (ticket.session, ticket.operation)
}

impl Operations {
    pub(crate) fn get(&self, ticket: &Ticket) -> Option<&Operation> {
        let revisions = self.by_name.get(&name(*ticket))?;
        revisions.iter().find(|(revision, _)| *revision == ticket.revision).map(|(_, op)| &**op)
    }

    pub(crate) fn get_mut(&mut self, ticket: &Ticket) -> Option<&mut Operation> {
        let revisions = self.by_name.get_mut(&name(*ticket))?;
        revisions.iter_mut().find(|(revision, _)| *revision == ticket.revision).map(|(_, op)| &mut **op)
    }

    /// The revision whose interest has not ended.
    pub(crate) fn live(&self, session: SessionId, operation: OperationId) -> Option<Ticket> {
        let mut revisions = self.by_name.get(&(session, operation))?.iter();
        let (revision, _) = revisions.find(|(_, op)| op.phase != Phase::Draining)?;
        Some(Ticket { session, operation, revision: *revision })
    }

    /// Adds an operation whose ticket is not in use.
    pub(crate) fn insert(&mut self, ticket: Ticket, operation: Operation) {
        if operation.phase.speculative() {
            self.ahead.insert(ticket);
        }
        self.by_name.entry(name(ticket)).or_default().push((ticket.revision, Box::new(operation)));
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, ticket: &Ticket) -> Option<Box<Operation>> {
        let revisions = self.by_name.get_mut(&name(*ticket))?;
        let at = revisions.iter().position(|(revision, _)| *revision == ticket.revision)?;
        let (_, operation) = revisions.swap_remove(at);
        if revisions.is_empty() {
            self.by_name.remove(&name(*ticket));
        }
        self.claimed(ticket);
        self.len -= 1;
        Some(operation)
    }

    /// A demand has come for what was begun ahead of it.
    pub(crate) fn claimed(&mut self, ticket: &Ticket) {
        if !self.ahead.is_empty() {
            self.ahead.remove(ticket);
        }
    }

    /// Those that nobody has claimed and whose interest has not ended.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = (SessionId, Phase)> + '_ {
        let phases = self.ahead.iter().filter_map(|t| Some((t.session, self.get(t)?.phase)));
        phases.filter(|(_, phase)| phase.speculative())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ticket, &Operation)> {
        self.by_name.iter().flat_map(|(&(session, operation), revisions)| {
            let ticket = move |revision| Ticket { session, operation, revision };
            revisions.iter().map(move |(revision, op)| (ticket(*revision), &**op))
        })
    }

    /// Those of one session, or all, in their order.
    pub(crate) fn tickets(&self, session: Option<SessionId>) -> Vec<Ticket> {
        let of = |ticket: &Ticket| session.is_none_or(|session| ticket.session == session);
        let mut tickets: Vec<_> = self.iter().map(|(ticket, _)| ticket).filter(of).collect();
        tickets.sort_unstable();
        tickets
    }
}
