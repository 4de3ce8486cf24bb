//! A worker client: tickets become copies, fences and ended copies become attestations.

use crate::engine::{Copy, CopyPage, Direction, WorkTicket};
use crate::failure::Checked;
use crate::heap::Happening;
use crate::probe::Probe;
use crate::translate;
use crate::world::World;
use orbitkv_core::{SessionId, Ticket};
use orbitkv_wire::{Slot, ToManager};
use std::collections::BTreeSet;
use std::rc::Rc;

/// A worker's own state. Its copies live in the world: they outlast it.
#[derive(Clone, Debug)]
pub(crate) struct Hands {
    pub(crate) rank: u16,
    /// Ended scheduler sessions: tickets of theirs are never begun.
    fenced: BTreeSet<u64>,
    /// Fences that wait for copies to end.
    to_answer: Vec<u64>,
    /// Tickets that came without a connection: refused at the next welcome.
    refused: Vec<Rc<WorkTicket>>,
    pub(crate) probe: Option<Probe>,
}

impl Hands {
    pub(crate) fn new(rank: u16) -> Self {
        Self { rank, fenced: BTreeSet::new(), to_answer: Vec::new(), refused: Vec::new(), probe: None }
    }
}

impl World {
    /// The engine delivers a ticket.
    pub(crate) fn take_ticket(&mut self, client: usize, ticket: &Rc<WorkTicket>) -> Checked {
        if !self.runs(client) {
            return Ok(());
        }
        if let Some(until) = self.stopped_until(client) {
            let ticket = Rc::clone(ticket);
            self.heap.push(until, Happening::Dispatch { client, ticket });
            return Ok(());
        }
        let (session, since) = (self.clients[client].session, self.clients[client].since_us);
        let Some(hands) = &mut self.clients[client].hands else {
            return Ok(());
        };
        let Some(session) = session else {
            // Nothing begins between two sessions. The answer waits for the next one: by then the
            // manager may count this worker in.
            hands.refused.push(Rc::clone(ticket));
            return Ok(());
        };
        if ticket.issued_us <= since || hands.fenced.contains(&ticket.owner.session.0) {
            self.refuse_ticket(client, ticket);
            return Ok(());
        }
        self.begin_copy(client, session, ticket)
    }

    /// The slots of a save ticket that this rank writes.
    fn own_slots(&self, client: usize, ticket: &WorkTicket) -> Vec<Slot> {
        let rank = self.clients[client].hands.as_ref().map_or(0, |h| usize::from(h.rank));
        ticket.pages.iter().filter_map(|p| p.parts.get(rank)).map(|p| translate::slot(p.slot)).collect()
    }

    /// Says that it will not copy, so that nobody waits for it.
    fn refuse_ticket(&mut self, client: usize, ticket: &WorkTicket) {
        self.note(|| format!("  client {client} refuses {:?}", ticket.owner));
        match ticket.direction {
            Direction::Restore => {
                self.copy_done(client, ticket.owner);
                self.tell(client, ticket.owner, false);
            }
            Direction::Save => {
                let slots = self.own_slots(client, ticket);
                if !slots.is_empty() {
                    self.send_up(client, (0, 0), &ToManager::Abort(&slots));
                }
            }
        }
    }

    pub(crate) fn copy_done(&mut self, client: usize, ticket: Ticket) {
        let (session, operation, revision) = (ticket.session.0, ticket.operation.0, ticket.revision.0);
        self.send_up(client, (0, 0), &ToManager::CopyDone { session, operation, revision });
    }

    /// The engine's own way back to its scheduler.
    pub(crate) fn tell(&mut self, client: usize, owner: Ticket, restored: bool) {
        let rank = self.clients[client].hands.as_ref().map_or(0, |h| h.rank);
        let Some(scheduler) = self.engines[self.clients[client].engine].scheduler else {
            return;
        };
        let at = self.now_us + self.rng.range(1, self.plan.engine_us);
        let (session, operation) = (owner.session.0, owner.operation.0);
        self.heap.push(at, Happening::Told { client: scheduler, session, operation, rank, restored });
    }

    fn begin_copy(&mut self, client: usize, session: u64, ticket: &WorkTicket) -> Checked {
        let rank = self.clients[client].hands.as_ref().map_or(0, |h| usize::from(h.rank));
        let mut pages = Vec::new();
        for page in &ticket.pages {
            let shard = match ticket.direction {
                Direction::Restore => rank % page.parts.len().max(1),
                Direction::Save => rank,
            };
            if let Some(part) = page.parts.get(shard) {
                let shard = u16::try_from(shard).unwrap_or(u16::MAX);
                pages.push(CopyPage { key: page.key, shard, part: *part, words: Default::default() });
            }
        }
        // A rank without a shard of its own has nothing to save.
        if pages.is_empty() {
            return Ok(());
        }
        self.start_copy(client, session, ticket.owner, ticket.direction, pages, false)
    }

    pub(crate) fn start_copy(
        &mut self,
        client: usize,
        session: u64,
        owner: Ticket,
        direction: Direction,
        pages: Vec<CopyPage>,
        probe: bool,
    ) -> Checked {
        let slow = self.rng.chance(self.plan.slow_copies);
        let longest = if slow { self.plan.slow_beat_us } else { self.plan.beat_us };
        let beat_us = self.rng.range(1, longest);
        let gives_up = direction == Direction::Save && !probe && self.rng.chance(self.plan.faults.abort);
        let abort_at = gives_up.then(|| self.rng.index(pages.len() * crate::content::STRIPES));
        let owed = self.model.owes(owner, SessionId(session));
        self.next_copy += 1;
        let copy = Copy {
            client,
            session,
            owner,
            direction,
            pages,
            beat: 0,
            beat_us,
            abort_at,
            owed,
            early: direction == Direction::Restore && !owed,
            probe,
        };
        self.copies.insert(self.next_copy, copy);
        self.heap.push(self.now_us + beat_us, Happening::Beat { copy: self.next_copy });
        Ok(())
    }

    /// The manager asks for the end of all copies of an ended scheduler session.
    pub(crate) fn fence(&mut self, client: usize, scheduler: u64) {
        if let Some(hands) = &mut self.clients[client].hands {
            hands.fenced.insert(scheduler);
            hands.to_answer.push(scheduler);
        }
        self.answer_fences(client);
    }

    pub(crate) fn answer_fences(&mut self, client: usize) {
        let Some(hands) = &self.clients[client].hands else {
            return;
        };
        for scheduler in hands.to_answer.clone() {
            let copies = self.copies.values();
            let runs = copies.filter(|c| c.client == client).any(|c| c.owner.session.0 == scheduler);
            if !runs {
                if let Some(hands) = &mut self.clients[client].hands {
                    hands.to_answer.retain(|s| *s != scheduler);
                }
                self.send_up(client, (0, 0), &ToManager::Fenced { scheduler });
            }
        }
    }

    /// The connection is gone: the manager asks again, if it still has to.
    pub(crate) fn hands_lost(&mut self, client: usize) {
        if let Some(hands) = &mut self.clients[client].hands {
            hands.to_answer.clear();
            hands.probe = None;
        }
    }

    /// A new session: answers what came in between, then the self-test.
    pub(crate) fn hands_welcome(&mut self, client: usize) {
        let Some(hands) = &mut self.clients[client].hands else {
            return;
        };
        for ticket in std::mem::take(&mut hands.refused) {
            self.refuse_ticket(client, &ticket);
        }
        self.begin_probe(client);
    }
}
