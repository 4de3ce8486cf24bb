//! A scheduler client: what it has asked for, and what it does with the answers.

use crate::content::Key;
use crate::engine::{Direction, TicketPage, WorkTicket};
use crate::exam::Exam;
use crate::failure::{Checked, Checker, fail};
use crate::heap::Happening;
use crate::translate;
use crate::world::World;
use orbitkv_core::{BlockHash, GroupId, OperationId, PagePart, Revision, SessionId, Ticket};
use orbitkv_wire::{
    GrantStatus, GrantedBody, Part, QueryMode, QueryRule, RecoverBody, RecoveredItem, Slot, ToClient,
    ToManager, WireMiss,
};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What it knows of one of its operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AskState {
    /// No answer yet, or it was lost.
    Asked,
    /// A query that waits for budget or reads.
    Waiting,
    /// Pages that are leased for it until it claims them.
    Prepared,
    /// Leased pages.
    Ready { pages: Vec<(GroupId, BlockHash, Vec<PagePart>)> },
    /// First page and number of pages in the workers' hands, ranks that have not told yet, and whether all told
    /// of success.
    Handed { left: BTreeSet<u16>, range: (u32, u32), well: bool },
    /// Slots that no worker knows of.
    Granted { pages: Vec<(BlockHash, Vec<PagePart>)> },
}

/// A query or a reservation.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) save: bool,
    pub(crate) revision: u32,
    pub(crate) group: GroupId,
    pub(crate) hashes: Vec<BlockHash>,
    /// Start and end of a recovery, in tokens; of no group then.
    pub(crate) recovery: Option<(u32, u32)>,
    pub(crate) parent: Option<BlockHash>,
    pub(crate) first_depth: u32,
    pub(crate) deadline_ms: u32,
    /// What a query is for, and what answer it takes.
    pub(crate) rule: QueryRule,
    /// Before it was first sent. A repetition gets the first answer, so it keeps the first time.
    pub(crate) issued_us: u64,
    /// Requests of the same name that broke a rule on purpose and have not been refused yet.
    pub(crate) abuses: u32,
    pub(crate) state: AskState,
}

/// All its operations, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Desk {
    pub(crate) asks: BTreeMap<u64, Ask>,
    pub(crate) exam: Exam,
}

impl World {
    pub(crate) fn ask(&self, client: usize, operation: u64) -> Option<&Ask> {
        self.clients[client].desk.as_ref()?.asks.get(&operation)
    }

    pub(crate) fn ask_mut(&mut self, client: usize, operation: u64) -> Option<&mut Ask> {
        self.clients[client].desk.as_mut()?.asks.get_mut(&operation)
    }

    pub(crate) fn drop_ask(&mut self, client: usize, operation: u64) -> Option<Ask> {
        self.clients[client].desk.as_mut()?.asks.remove(&operation)
    }

    pub(crate) fn operation(&mut self, client: usize) -> u64 {
        self.clients[client].next_operation += 1;
        self.clients[client].next_operation
    }

    /// Sends the request behind an ask, for the first time or again.
    pub(crate) fn send_ask(&mut self, client: usize, operation: u64) {
        let Some(ask) = self.ask(client, operation).cloned() else {
            return;
        };
        self.send_request(client, operation, &ask);
    }

    /// Sends a request as it is described.
    pub(crate) fn send_request(&mut self, client: usize, operation: u64, ask: &Ask) {
        let hashes: Vec<_> = ask.hashes.iter().map(|h| h.0).collect();
        let (group, rule, deadline_ms, hashes) = (ask.group.0, ask.rule, ask.deadline_ms, &hashes[..]);
        let message = match ask.recovery {
            _ if ask.save => {
                let (parent, first_depth) = (ask.parent.map(|p| p.0), ask.first_depth);
                ToManager::Reserve { group, parent, first_depth, hashes }
            }
            Some((start_tokens, end_tokens)) => {
                let (mode, ranges) = (rule.mode, &[][..]);
                ToManager::Recover(RecoverBody {
                    start_tokens,
                    end_tokens,
                    deadline_ms,
                    mode,
                    ranges,
                    hashes,
                })
            }
            None => ToManager::Query { group, deadline_ms, rule, hashes },
        };
        self.send_up(client, (operation, ask.revision), &message);
    }

    /// Begins a query or a reservation.
    pub(crate) fn begin_ask(&mut self, client: usize, ask: Ask) -> u64 {
        let operation = self.operation(client);
        if let Some(desk) = &mut self.clients[client].desk {
            desk.asks.insert(operation, ask);
        }
        self.send_ask(client, operation);
        operation
    }

    /// Its connection is gone, and with it every operation. Workers are fenced by the manager.
    pub(crate) fn desk_lost(&mut self, client: usize) {
        if let Some(desk) = &mut self.clients[client].desk {
            desk.asks.clear();
            desk.exam.restart();
        }
    }

    /// An answer to one of its requests.
    pub(crate) fn desk_answer(
        &mut self,
        client: usize,
        (operation, revision): (u64, u32),
        message: &ToClient<'_>,
    ) -> Checked {
        match message {
            ToClient::Waiting => {
                if let Some(ask) = self.current(client, operation, revision)
                    && ask.state == AskState::Asked
                {
                    ask.state = AskState::Waiting;
                }
            }
            ToClient::Prepared { .. } => {
                if let Some(ask) = self.current(client, operation, revision)
                    && ask.rule.mode == QueryMode::Prepare
                    && matches!(ask.state, AskState::Asked | AskState::Waiting)
                {
                    ask.state = AskState::Prepared;
                }
            }
            ToClient::Warmed { .. } => {
                if self.current(client, operation, revision).is_some() {
                    self.drop_ask(client, operation);
                }
            }
            ToClient::Ready { pages, shards, parts } => {
                let whole =
                    RecoveredItem { shards: (*shards).into(), pages: (*pages).into(), ..Default::default() };
                self.has_pages(client, (operation, revision), &[whole], parts);
            }
            ToClient::Recovered(body) => {
                self.has_pages(client, (operation, revision), body.ranges, body.parts);
            }
            ToClient::Miss(reason) => {
                let ask = self.current(client, operation, revision);
                if ask.as_ref().is_some_and(|ask| matches!(ask.state, AskState::Handed { .. })) {
                    // Expired too late: it ends like any other that the workers have.
                    return Ok(());
                }
                if ask.is_some() {
                    self.drop_ask(client, operation);
                }
                if *reason == WireMiss::Expired {
                    self.send_up(client, (operation, revision), &ToManager::Release);
                }
            }
            ToClient::Granted(body) => return self.granted(client, operation, revision, body),
            ToClient::Refused { .. } => {
                let known = self.current(client, operation, revision);
                match known {
                    Some(ask) if ask.abuses > 0 => ask.abuses -= 1,
                    // It has a lease whatever became of the request: it ends with a release.
                    Some(Ask { state: AskState::Ready { .. } | AskState::Handed { .. }, .. }) | None => {}
                    Some(_) => drop(self.drop_ask(client, operation)),
                }
            }
            ToClient::InstanceState { .. }
            | ToClient::Segment { .. }
            | ToClient::SegmentGone { .. }
            | ToClient::Candidates(_)
            | ToClient::TierReads { .. }
            | ToClient::ResetDone => {}
            other => return fail(Checker::Protocol, format!("a scheduler got {other:?}")),
        }
        Ok(())
    }

    /// A query has its pages: which hash each range's pages have is for the engine to know.
    fn has_pages(
        &mut self,
        client: usize,
        (operation, revision): (u64, u32),
        ranges: &[RecoveredItem],
        parts: &[Part],
    ) {
        let groups = self.engines[self.clients[client].engine].plan.groups.clone();
        let hash_tokens = groups.iter().map(|g| g.page_tokens).min().unwrap_or(1);
        let Some(ask) = self.current(client, operation, revision) else {
            return;
        };
        if !matches!(ask.state, AskState::Asked | AskState::Waiting) {
            return;
        }
        let (mut rest, mut pages) = (parts, Vec::new());
        for range in ranges {
            let tokens = groups.iter().find(|g| g.group.0 == range.group.get()).map_or(1, |g| g.page_tokens);
            for page in range.first_page.get()..range.first_page.get() + range.pages.get() {
                let (group, at) = match ask.recovery {
                    Some(_) => (GroupId(range.group.get()), (page + 1) * tokens / hash_tokens - 1),
                    None => (ask.group, page),
                };
                let (of_page, behind) = rest.split_at(usize::from(range.shards.get()));
                rest = behind;
                if let Some(hash) = ask.hashes.get(at as usize) {
                    pages.push((group, *hash, of_page.iter().map(translate::page_part).collect()));
                }
            }
        }
        ask.state = AskState::Ready { pages };
    }

    /// The ask of that name, unless the answer is about an earlier revision.
    fn current(&mut self, client: usize, operation: u64, revision: u32) -> Option<&mut Ask> {
        self.ask_mut(client, operation).filter(|ask| ask.revision == revision)
    }

    fn granted(&mut self, client: usize, operation: u64, revision: u32, body: &GrantedBody<'_>) -> Checked {
        let Some(ask) = self.current(client, operation, revision) else {
            // The answer to a repetition; the first one came and was used.
            return Ok(());
        };
        if body.statuses.len() != ask.hashes.len() {
            let (got, want) = (body.statuses.len(), ask.hashes.len());
            return fail(Checker::Protocol, format!("{got} grants for {want} pages"));
        }
        if ask.state != AskState::Asked {
            return Ok(());
        }
        let mut parts = body.parts.chunks(usize::from(body.shards.max(1)));
        let mut pages = Vec::new();
        for (i, hash) in ask.hashes.iter().enumerate() {
            if body.status(i) == Some(GrantStatus::Slots) {
                let of_page = parts.next().unwrap_or_default();
                pages.push((*hash, of_page.iter().map(translate::page_part).collect()));
            }
        }
        if pages.is_empty() {
            self.drop_ask(client, operation);
        } else {
            ask.state = AskState::Granted { pages };
        }
        Ok(())
    }

    fn ticket(&self, client: usize, operation: u64, ask: &Ask, direction: Direction) -> WorkTicket {
        let known = &self.clients[client];
        let owner = Ticket {
            session: SessionId(known.session.unwrap_or(0)),
            operation: OperationId(operation),
            revision: Revision(ask.revision),
        };
        WorkTicket { direction, owner, issued_us: ask.issued_us, pages: Vec::new() }
    }

    fn key(&self, client: usize, group: GroupId, hash: BlockHash) -> Key {
        let namespace = self.engines[self.clients[client].engine].plan.namespace;
        Key { namespace, group, hash }
    }

    /// Pages of a lease that are handed out: the engine may have got others elsewhere since it asked.
    fn some_of(&mut self, ask: &Ask, leased: usize) -> (usize, usize) {
        let whole = ask.recovery.is_some() || self.quiet() || !self.rng.chance(self.plan.parts);
        if whole {
            return (0, leased);
        }
        let first = self.rng.index(leased);
        (first, 1 + self.rng.index(leased - first))
    }

    fn send_restore(&mut self, client: usize, (operation, revision): (u64, u32), (first, pages): (u32, u32)) {
        self.send_up(client, (operation, revision), &ToManager::Restore { first, pages });
    }

    /// A restore of pages that are not leased, of a part of a recovery, or of others than were handed out.
    /// Or that of the same pages again, which changes nothing.
    pub(crate) fn restore_other(&mut self, client: usize, operation: u64) {
        let choice = self.rng.index(4);
        let Some(ask) = self.ask_mut(client, operation) else {
            return;
        };
        let (range, again) = match &ask.state {
            AskState::Ready { pages } => {
                let leased = u32::try_from(pages.len()).unwrap_or(u32::MAX);
                let ranges = match ask.recovery {
                    Some(_) => [(0, leased - 1), (1, leased - 1), (0, leased + 1), (leased, 1)],
                    None => [(0, 0), (leased, 1), (0, leased + 1), (u32::MAX, u32::MAX)],
                };
                (ranges[choice], false)
            }
            AskState::Handed { range: (first, pages), .. } if choice > 0 => ((*first, *pages + 1), false),
            AskState::Handed { range, .. } => (*range, true),
            _ => return,
        };
        ask.abuses += u32::from(!again);
        let revision = ask.revision;
        self.send_restore(client, (operation, revision), range);
    }

    /// Hands pages of a ready lease to the workers.
    pub(crate) fn hand_restore(&mut self, client: usize, operation: u64) {
        let Some(ask) = self.ask(client, operation).cloned() else {
            return;
        };
        let AskState::Ready { pages } = &ask.state else {
            return;
        };
        let mut ticket = self.ticket(client, operation, &ask, Direction::Restore);
        // Before the manager is told: a worker compares it with the beginning of its own session.
        ticket.issued_us = self.now_us;
        let (first, count) = self.some_of(&ask, pages.len());
        for (group, hash, parts) in pages.iter().skip(first).take(count) {
            let key = self.key(client, *group, *hash);
            ticket.pages.push(TicketPage { key, parts: parts.clone() });
        }
        let range = (u32::try_from(first).unwrap_or(u32::MAX), u32::try_from(count).unwrap_or(u32::MAX));
        self.send_restore(client, (operation, ask.revision), range);
        let workers = self.engines[self.clients[client].engine].workers.clone();
        let left = (0..u16::try_from(workers.len()).unwrap_or(0)).collect();
        if let Some(ask) = self.ask_mut(client, operation) {
            ask.state = AskState::Handed { left, range, well: true };
        }
        // Usually the engine's way to its workers is longer than ours to the manager, but not always.
        let read = self.clients[client].link.map_or(0, |link| self.links[link].up.drained_us());
        let from = if self.plan.faults.early_tickets { self.now_us } else { read };
        self.dispatch(&workers, from, ticket);
    }

    /// Hands granted slots to the workers.
    pub(crate) fn hand_save(&mut self, client: usize, operation: u64) {
        let Some(ask) = self.drop_ask(client, operation) else {
            return;
        };
        let AskState::Granted { pages } = &ask.state else {
            return;
        };
        let mut ticket = self.ticket(client, operation, &ask, Direction::Save);
        for (hash, parts) in pages {
            let key = self.key(client, ask.group, *hash);
            ticket.pages.push(TicketPage { key, parts: parts.clone() });
        }
        let workers = self.engines[self.clients[client].engine].workers.clone();
        self.dispatch(&workers, self.now_us, ticket);
    }

    fn dispatch(&mut self, workers: &[usize], from_us: u64, ticket: WorkTicket) {
        let ticket = Rc::new(ticket);
        for &worker in workers {
            let at = from_us + self.rng.range(1, self.plan.engine_us);
            self.heap.push(at, Happening::Dispatch { client: worker, ticket: Rc::clone(&ticket) });
        }
    }

    /// Gives back slots that no worker knows of.
    pub(crate) fn abandon(&mut self, client: usize, operation: u64) {
        let Some(ask) = self.drop_ask(client, operation) else {
            return;
        };
        if let AskState::Granted { pages } = &ask.state {
            let slots: Vec<Slot> =
                pages.iter().flat_map(|(_, parts)| parts).map(|p| translate::slot(p.slot)).collect();
            self.send_up(client, (0, 0), &ToManager::Abort(&slots));
        }
    }

    /// A worker's restore has ended, says the engine. With the last one the lease is needed no more.
    pub(crate) fn told(&mut self, client: usize, session: u64, operation: u64, rank: u16, restored: bool) {
        if !self.runs(client) || self.clients[client].session != Some(session) {
            return;
        }
        let Some(ask) = self.ask_mut(client, operation) else {
            return;
        };
        let revision = ask.revision;
        let AskState::Handed { left, range, well } = &mut ask.state else {
            return;
        };
        left.remove(&rank);
        *well &= restored;
        if left.is_empty() {
            let pages = if *well { range.1 } else { 0 };
            self.drop_ask(client, operation);
            self.send_up(client, (operation, revision), &ToManager::Release);
            self.exam_restored(client, operation, pages);
        }
    }
}
