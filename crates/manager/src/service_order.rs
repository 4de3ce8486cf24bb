//! In which order a device serves what waits for it.
//!
//! Three classes, the first that has a job first:
//!
//! 1. **Demand**: a request waits for the page.
//! 2. **Ahead**: preparations and warm-ups, which nobody waits for yet.
//! 3. **Write**: pages written behind. They are in memory, so nobody waits for them at all.
//!
//! Within a class of reads, tickets take turns page by page: between two pages of one ticket, each other
//! ticket gets one page at most. So a read of two pages behind one of a thousand waits for about two of the
//! thousand. Pages of one ticket keep their order, because an answer is a prefix; so do writes.
//!
//! No class starves. After [`DEMANDS_PER_AHEAD`] demand reads in a row that passed a waiting read ahead, one
//! read ahead is served; after [`READS_PER_WRITE`] reads in a row that passed a waiting write, one write is.
//! Reads ahead need that because a request may share one of them; writes because a page that is being written
//! cannot be evicted, and a pool full of such pages takes no save and no read.
//!
//! The order knows nothing of the device: how many jobs are under way at once is its owner's affair, and so
//! is how many may wait (reads own reserved bytes, and the core bounds writes).

#[cfg(test)]
mod tests;

use orbitkv_core::Ticket;
use std::collections::{BTreeMap, VecDeque};

/// Demand reads that may pass a waiting read ahead before it is its turn: an eighth of the reads is its.
pub(crate) const DEMANDS_PER_AHEAD: u32 = 7;

/// Reads that may pass a waiting write before it is its turn: a sixteenth of the device is its.
pub(crate) const READS_PER_WRITE: u32 = 15;

/// What a job is, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    /// A read that a request waits for.
    Demand(Ticket),
    /// A read ahead of demand.
    Ahead(Ticket),
    /// A write behind.
    Write,
}

/// Jobs that wait for a device.
#[derive(Debug)]
pub(crate) struct ServiceOrder<J> {
    demand: Turns<J>,
    ahead: Turns<J>,
    writes: VecDeque<J>,
    /// Demand reads since a read ahead was served, while one waited.
    passed_ahead: u32,
    /// Reads since a write was served, while one waited.
    passed_writes: u32,
}

impl<J> Default for ServiceOrder<J> {
    fn default() -> Self {
        Self {
            demand: Turns::default(),
            ahead: Turns::default(),
            writes: VecDeque::new(),
            passed_ahead: 0,
            passed_writes: 0,
        }
    }
}

impl<J> ServiceOrder<J> {
    /// Lines a job up: one page of a ticket, or one write.
    pub(crate) fn push(&mut self, service: Service, job: J) {
        match service {
            Service::Demand(ticket) => self.demand.push(ticket, job),
            Service::Ahead(ticket) => self.ahead.push(ticket, job),
            Service::Write => self.writes.push_back(job),
        }
    }

    /// The next job to serve, if any waits.
    pub(crate) fn pop(&mut self) -> Option<J> {
        let has_reads = !(self.demand.is_empty() && self.ahead.is_empty());
        if !self.writes.is_empty() && (!has_reads || self.passed_writes >= READS_PER_WRITE) {
            self.passed_writes = 0;
            return self.writes.pop_front();
        }
        self.passed_writes += u32::from(has_reads && !self.writes.is_empty());
        if !self.ahead.is_empty() && (self.demand.is_empty() || self.passed_ahead >= DEMANDS_PER_AHEAD) {
            self.passed_ahead = 0;
            return self.ahead.pop();
        }
        self.passed_ahead += u32::from(!self.ahead.is_empty());
        self.demand.pop()
    }

    /// A request has come for what is read ahead under that ticket: from now on it is a demand.
    pub(crate) fn hasten(&mut self, ticket: Ticket) {
        for job in self.ahead.remove(ticket) {
            self.demand.push(ticket, job);
        }
        if self.ahead.is_empty() {
            self.passed_ahead = 0;
        }
    }

    /// Takes writes out that are not wanted any more, in their order.
    pub(crate) fn remove_writes(&mut self, mut unwanted: impl FnMut(&J) -> bool) -> Vec<J> {
        let writes = std::mem::take(&mut self.writes);
        let (removed, kept): (VecDeque<J>, _) = writes.into_iter().partition(|job| unwanted(job));
        self.writes = kept;
        if self.writes.is_empty() {
            self.passed_writes = 0;
        }
        Vec::from(removed)
    }
}

/// Tickets that take turns, one job a turn.
#[derive(Debug)]
struct Turns<J> {
    /// Never empty ones.
    lanes: BTreeMap<Ticket, VecDeque<J>>,
    /// Each ticket with a lane once; whose turn it is comes first.
    ring: VecDeque<Ticket>,
}

impl<J> Default for Turns<J> {
    fn default() -> Self {
        Self { lanes: BTreeMap::new(), ring: VecDeque::new() }
    }
}

impl<J> Turns<J> {
    fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    fn push(&mut self, ticket: Ticket, job: J) {
        let lane = self.lanes.entry(ticket).or_default();
        if lane.is_empty() {
            // Behind all others: one that comes back at once must not overtake who waited.
            self.ring.push_back(ticket);
        }
        lane.push_back(job);
    }

    fn pop(&mut self) -> Option<J> {
        let ticket = self.ring.pop_front()?;
        let lane = self.lanes.get_mut(&ticket)?;
        let job = lane.pop_front();
        if lane.is_empty() {
            self.lanes.remove(&ticket);
        } else {
            self.ring.push_back(ticket);
        }
        job
    }

    fn remove(&mut self, ticket: Ticket) -> VecDeque<J> {
        let lane = self.lanes.remove(&ticket).unwrap_or_default();
        if !lane.is_empty() {
            self.ring.retain(|other| *other != ticket);
        }
        lane
    }
}
