//! Tickets that are not served: of an earlier session, of a fenced scheduler, or come while disconnected.
//!
//! The manager may have counted this worker in before or after, on its present session or on the next one.
//! So it is told, on whatever session there is, that nothing of the ticket runs here. To a manager that
//! never counted on it the answer means nothing.

use crate::operations::REQUEST_PAGES;
use crate::ticket::{PagePart, Ticket, TicketKind};
use orbitkv_wire::{Slot, ToManager};
use std::collections::VecDeque;

/// Most answers kept for the next connection. What is lost beyond it ends with the session.
const MAX_KEPT: usize = 4096;

/// What the manager may wait for.
#[derive(Debug)]
pub(super) enum Unserved {
    Restore { session: u64, operation: u64, revision: u32 },
    Save(Vec<Slot>),
}

impl Unserved {
    /// `own` are this rank's parts of the ticket.
    pub(super) fn new(ticket: &Ticket, own: &[PagePart]) -> Self {
        let Ticket { scheduler: session, operation, revision, .. } = *ticket;
        match ticket.kind {
            TicketKind::Restore => Self::Restore { session, operation, revision },
            TicketKind::Save => Self::Save(own.iter().map(|part| part.slot()).collect()),
        }
    }

    /// The messages that say it.
    pub(super) fn send(&self, mut must: impl FnMut(&ToManager<'_>)) {
        match self {
            Self::Restore { session, operation, revision } => {
                must(&ToManager::CopyDone { session: *session, operation: *operation, revision: *revision });
            }
            Self::Save(slots) => slots.chunks(REQUEST_PAGES).for_each(|s| must(&ToManager::Abort(s))),
        }
    }
}

/// Answers that wait for a connection to the manager run they are about.
#[derive(Debug, Default)]
pub(super) struct Kept(VecDeque<(u128, Unserved)>);

impl Kept {
    pub(super) fn push(&mut self, boot: u128, unserved: Unserved) {
        if self.0.len() >= MAX_KEPT {
            self.0.pop_front();
        }
        self.0.push_back((boot, unserved));
    }

    /// Everything about that manager run; what is about another one is dropped.
    pub(super) fn take(&mut self, boot: u128) -> impl Iterator<Item = Unserved> + use<> {
        std::mem::take(&mut self.0).into_iter().filter(move |(b, _)| *b == boot).map(|(_, u)| u)
    }
}
