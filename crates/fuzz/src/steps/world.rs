//! A core, and what a shell around it would remember.

use super::cast::{config, hash, seat};
use super::tier::Tier;
use crate::bytes::Bytes;
use orbitkv_core::{
    BlockHash, Core, Effect, Event, Evidence, Grant, Mark, Micros, OperationId, OperationOutcome, PagePart,
    Revision, SegmentId, SessionId, SlotRef, Ticket,
};

/// How far back something can be named.
const RECENT: usize = 16;

pub(super) struct World {
    core: Core,
    now_us: u64,
    effects: Vec<Effect>,
    /// Every session, the newest last.
    sessions: Vec<SessionId>,
    /// Newest epoch of each client.
    epochs: [u32; 8],
    operations: u64,
    tickets: Vec<Ticket>,
    /// Queries: ticket, pages and choices.
    queries: Vec<(Ticket, u8, u8)>,
    slots: Vec<(SlotRef, BlockHash)>,
    /// Segments asked for.
    growing: Vec<SegmentId>,
    pub(super) tier: Tier,
}

/// The `back`-th of a list from its end.
fn recent<T: Copy>(list: &[T], back: u8) -> Option<T> {
    list.iter().rev().take(RECENT).nth(usize::from(back) % RECENT.min(list.len().max(1))).copied()
}

impl World {
    pub(super) fn new(pool: u8, limits: u8) -> Self {
        #[expect(clippy::expect_used, reason = "its own configuration")]
        let core = Core::new(config(pool, limits)).expect("limits that agree");
        Self {
            core,
            now_us: 0,
            effects: Vec::new(),
            sessions: Vec::new(),
            epochs: [0; 8],
            operations: 0,
            tickets: Vec::new(),
            queries: Vec::new(),
            slots: Vec::new(),
            growing: Vec::new(),
            tier: Tier::default(),
        }
    }

    /// One event, one audit; what the effects give to clients and shell is remembered.
    pub(super) fn step(&mut self, event: Event<'_>) {
        self.now_us += 1;
        self.core.step(Micros(self.now_us), event, &mut self.effects);
        let audit = self.core.audit();
        assert_eq!(audit, Ok(()), "after {event:?}");
        for effect in self.effects.drain(..) {
            self.tier.carry_out(&effect);
            match effect {
                Effect::GrowSegment { segment, .. } => self.growing.push(segment),
                Effect::Granted { grants, .. } => {
                    for page in grants {
                        if let Grant::Slots(parts) = page.grant {
                            // An answer that is repeated names the same generation.
                            let early = |part: &&PagePart| self.tier.uses_an_older(part.slot);
                            assert_eq!(parts.iter().find(early), None, "granted while the tier copies");
                            self.slots.extend(parts.iter().map(|part| (part.slot, page.hash)));
                        }
                    }
                }
                Effect::Operation { outcome: OperationOutcome::Ready { pages, shards, parts }, .. } => {
                    assert_eq!(parts.len(), pages as usize * usize::from(shards));
                    self.slots.extend(parts.iter().map(|part| (part.slot, hash(0))));
                }
                Effect::Operation { outcome: OperationOutcome::Recovered { ranges, parts }, .. } => {
                    let named = ranges.iter().map(|range| range.pages as usize * usize::from(range.shards));
                    assert_eq!(parts.len(), named.sum::<usize>());
                    self.slots.extend(parts.iter().map(|part| (part.slot, hash(0))));
                }
                _ => {}
            }
        }
    }

    pub(super) fn step_if(&mut self, event: Option<Event<'_>>) {
        if let Some(event) = event {
            self.step(event);
        }
    }

    /// Remembers a query for [`World::asked`].
    pub(super) fn note(&mut self, ticket: Ticket, pages: u8, choice: u8) {
        self.queries.push((ticket, pages, choice));
    }

    /// One of the last queries.
    pub(super) fn asked(&self, choice: u8) -> Option<(Ticket, u8, u8)> {
        recent(&self.queries, choice)
    }

    /// Time passes: 1 µs to half an hour.
    pub(super) fn wait(&mut self, choice: u8) {
        self.now_us += 1 << (choice & 31);
    }

    /// A client of a seat connects, mostly with a newer epoch.
    pub(super) fn open(&mut self, choice: u8, epoch: u8) {
        let (client, spec) = seat(choice);
        let known = &mut self.epochs[usize::from(choice & 7)];
        if epoch & 3 != 3 {
            *known += 1;
        }
        let epoch = *known;
        let session = SessionId(self.sessions.len() as u64 + 1);
        self.sessions.push(session);
        self.step(Event::SessionOpened { session, client, epoch, spec: &spec });
    }

    pub(super) fn session(&self, choice: u8) -> SessionId {
        let known = if choice & 63 == 63 { None } else { recent(&self.sessions, choice) };
        known.unwrap_or(SessionId(u64::MAX - u64::from(choice)))
    }

    /// A new operation of some session, or one seen before, perhaps of a newer revision.
    pub(super) fn ticket(&mut self, bytes: &mut Bytes<'_>) -> Ticket {
        let choice = bytes.u8();
        if choice & 128 == 0 {
            self.operations += 1;
            let operation = OperationId(self.operations);
            let ticket = Ticket { session: self.session(choice), operation, revision: Revision(1) };
            self.tickets.push(ticket);
            return ticket;
        }
        let nobody = Ticket { session: SessionId(0), operation: OperationId(0), revision: Revision(0) };
        let mut ticket = recent(&self.tickets, choice & 15).unwrap_or(nobody);
        match choice >> 4 & 7 {
            0 => {
                ticket.revision.0 += 1;
                self.tickets.push(ticket);
            }
            1 => ticket.revision.0 = ticket.revision.0.wrapping_sub(1),
            2 => ticket.session = self.session(choice & 15),
            _ => {}
        }
        ticket
    }

    /// Pages for a restore: all that are leased, or as bits 0 to 2 and 3 to 6 of the choice name them.
    pub(super) fn some_of(&self, ticket: Ticket, choice: u8) -> (u32, u32) {
        let leased = self.core.operations().find(|view| view.ticket == ticket).map_or(1, |view| view.pages);
        match choice {
            0 => (0, u32::try_from(leased).unwrap_or(u32::MAX)),
            _ => (u32::from(choice & 7), u32::from(choice >> 3)),
        }
    }

    /// A slot seen in an answer with the page it was granted for, or one made up.
    pub(super) fn slot(&self, choice: u8) -> (SlotRef, BlockHash) {
        let made_up = SlotRef {
            segment: SegmentId(u32::from(choice & 3)),
            index: u32::from(choice >> 2 & 7),
            generation: u32::from(choice >> 5 & 1),
        };
        let known = if choice >> 6 == 3 { None } else { recent(&self.slots, choice & 15) };
        let (slot, page) = known.unwrap_or((made_up, hash(choice & 15)));
        (slot, if choice >> 6 == 2 { hash(choice & 15) } else { page })
    }

    pub(super) fn segment(&mut self, choice: u8) -> SegmentId {
        match choice {
            0..=95 if !self.growing.is_empty() => {
                self.growing.remove(usize::from(choice) % self.growing.len())
            }
            _ => SegmentId(u32::from(choice & 7)),
        }
    }

    /// Everybody leaves, and what the tier has begun ends; nothing may stay owned. Gives what the core went
    /// through.
    pub(super) fn end(mut self) -> Vec<Mark> {
        for session in std::mem::take(&mut self.sessions) {
            self.step(Event::SessionClosed { session });
            self.step(Event::SessionGone { session, evidence: Evidence::ProcessExit });
        }
        while let Some(ended) =
            self.tier.end_read(0).or_else(|| self.tier.end_write(0)).or_else(|| self.tier.end_scrub(0))
        {
            self.step(ended);
        }
        assert_eq!(self.core.scrubbing_pages(), 0, "the core waits for a check of memory");
        self.step(Event::FoundAll);
        let core = &self.core;
        assert_eq!(core.tier_inflight(), (0, 0), "the core waits for the tier");
        assert_eq!(core.sessions(), 0, "sessions are left");
        assert_eq!((core.operations().count(), core.saves()), (0, 0), "operations are left");
        let owned = (core.ledger().reserved_bytes(), core.filling_bytes(), core.quarantined_bytes());
        assert_eq!(owned, (0, 0, 0), "reserved, filling and quarantined bytes are left");
        let pages = self.tier.pages();
        assert!(
            pages.iter().all(|name| core.is_stored(name)),
            "extents are left of pages that are not stored"
        );
        assert_eq!(pages.len(), core.stored_pages(), "stored pages have no extents");
        self.step(Event::DropUnleased);
        assert_eq!(self.core.used_bytes(), 0, "slots are in use without an owner");
        Mark::ALL.iter().copied().filter(|mark| self.core.marked(*mark)).collect()
    }
}
