//! What a scheduler does in its turns.

use crate::failure::Checked;
use crate::heap::Happening;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::scheduler::{Ask, AskState};
use crate::world::World;
use orbitkv_core::{BlockHash, GroupId};
use orbitkv_wire::{KeepItem, QueryMode, QueryRule, ToManager};

/// Operations that a scheduler keeps at once, at most: some worlds allow fewer.
const MOST_ASKS: usize = 20;

impl World {
    /// One turn, and the next one.
    pub(crate) fn turn(&mut self, client: usize) -> Checked {
        if !self.runs(client) {
            return Ok(());
        }
        let pause = Plan::pause(&mut self.rng, self.plan.turn_us);
        if let Some(until) = self.stopped_until(client) {
            self.heap.push(until + pause, Happening::Turn { client });
            return Ok(());
        }
        self.heap.push(self.now_us + pause, Happening::Turn { client });
        if self.quiet() {
            self.quiet_turn(client);
            return Ok(());
        }
        self.misfortune(client)?;
        if !self.runs(client) || self.clients[client].session.is_none() {
            return Ok(());
        }
        if self.rng.chance(self.plan.faults.abuse) {
            self.abuse(client);
        }
        if self.rng.chance(self.plan.faults.forget) {
            self.forget(client);
        }
        self.ordinary_turn(client);
        Ok(())
    }

    fn ordinary_turn(&mut self, client: usize) {
        let weights = self.plan.weights;
        let mut at = self.rng.below(weights.iter().sum());
        let mut which = 0;
        while at >= weights[which] {
            at -= weights[which];
            which += 1;
        }
        match which {
            0 => self.start_query(client),
            1 => self.start_save(client),
            2 => self.go_on(client),
            3 => self.finish_one(client),
            _ => self.cancel_one(client),
        }
    }

    /// Asks that have not come to their end.
    fn asks(&self, client: usize, which: impl Fn(&Ask) -> bool) -> Vec<u64> {
        let desk = self.clients[client].desk.iter().flat_map(|d| &d.asks);
        desk.filter(|(_, ask)| which(ask)).map(|(operation, _)| *operation).collect()
    }

    fn one(&mut self, client: usize, which: impl Fn(&Ask) -> bool) -> Option<u64> {
        let all = self.asks(client, which);
        self.rng.pick(&all).copied()
    }

    fn group(&mut self, client: usize) -> GroupId {
        let groups = &self.engines[self.clients[client].engine].plan.groups;
        self.rng.pick(groups).map_or(GroupId(0), |g| g.group)
    }

    fn deadline(&mut self) -> u32 {
        if self.rng.chance(self.plan.deadlines) {
            u32::try_from(self.rng.range(1, 300)).unwrap_or(1)
        } else {
            0
        }
    }

    fn prefix(&mut self) -> Vec<BlockHash> {
        let pages = usize::try_from(self.rng.range(1, self.plan.request_pages + 2)).unwrap_or(1);
        self.universe.chain(&mut self.rng).iter().take(pages).copied().collect()
    }

    /// Start and end of a recovery: mostly boundaries that the hashes cover, but not always.
    fn boundary(&mut self, hashes: &[BlockHash]) -> (u32, u32) {
        let pages = hashes.len() as u64;
        let step = if self.rng.chance(80) { 2 } else { 1 };
        let end = self.rng.range(1, pages + 1).next_multiple_of(step);
        let start = if self.rng.chance(60) { 0 } else { self.rng.below(end) / step * step };
        (u32::try_from(start * 16).unwrap_or(0), u32::try_from(end * 16).unwrap_or(16))
    }

    fn rule(&mut self) -> QueryRule {
        let mode = match self.rng.chance(self.plan.ahead) {
            true if self.rng.chance(70) => QueryMode::Prepare,
            true => QueryMode::WarmUp,
            false => QueryMode::Demand,
        };
        let (wait_full_prefix, memory_only) = (self.rng.chance(5), self.rng.chance(5));
        QueryRule { mode, strict: self.rng.chance(self.plan.strict), wait_full_prefix, memory_only }
    }

    /// The request that pages were prepared for has come.
    fn claim(&mut self, client: usize, operation: u64) {
        if self.plan.faults.abuse > 0 && self.rng.chance(60) {
            self.claim_other(client, operation);
        }
        if let Some(ask) = self.ask_mut(client, operation) {
            ask.rule.mode = QueryMode::Demand;
            ask.state = AskState::Asked;
        }
        self.send_ask(client, operation);
    }

    /// A claim of other pages than were prepared.
    fn claim_other(&mut self, client: usize, operation: u64) {
        let other = self.prefix();
        let Some(ask) = self.ask_mut(client, operation) else {
            return;
        };
        // A recovery that was refused is not there to be claimed.
        let known = ask.recovery.is_none() || ask.state != AskState::Asked;
        if other == ask.hashes || !known {
            return;
        }
        let mut request = ask.clone();
        request.rule.mode = QueryMode::Demand;
        match &mut request.recovery {
            Some((_, end_tokens)) => *end_tokens += 32,
            None => request.hashes = other,
        }
        ask.abuses += 1;
        self.send_request(client, operation, &request);
    }

    /// Says of some preparations, or of all, that they are still wanted.
    fn keep(&mut self, client: usize) {
        let all = self.asks(client, |ask| !ask.save && ask.rule.mode == QueryMode::Prepare);
        let mut items = Vec::new();
        for operation in all {
            let Some(revision) = self.ask(client, operation).map(|ask| ask.revision) else {
                continue;
            };
            if self.rng.chance(80) {
                items.push(KeepItem {
                    operation: operation.into(),
                    revision: revision.into(),
                    zero: 0.into(),
                });
            }
        }
        self.send_up(client, (0, 0), &ToManager::Keep(&items));
    }

    fn start_query(&mut self, client: usize) {
        if self.asks(client, |_| true).len() >= MOST_ASKS {
            return self.cancel_one(client);
        }
        let (group, hashes, deadline_ms) = (self.group(client), self.prefix(), self.deadline());
        let recovery = self.rng.chance(self.plan.recoveries).then(|| self.boundary(&hashes));
        if let Some((start_tokens, _)) = recovery.filter(|_| self.rng.chance(40)) {
            let hashes: Vec<_> = hashes.iter().map(|h| h.0).collect();
            let message = ToManager::Candidates { start_tokens, hashes: &hashes };
            self.send_up(client, (0, 0), &message);
        }
        let ask = Ask {
            save: false,
            revision: u32::try_from(self.rng.range(1, 3)).unwrap_or(1),
            group,
            hashes,
            recovery,
            parent: None,
            first_depth: 0,
            deadline_ms,
            rule: self.rule(),
            issued_us: self.now_us,
            abuses: 0,
            state: AskState::Asked,
        };
        self.begin_ask(client, ask);
    }

    fn start_save(&mut self, client: usize) {
        if self.asks(client, |_| true).len() >= MOST_ASKS {
            return self.finish_one(client);
        }
        let group = self.group(client);
        let most = usize::try_from(self.plan.request_pages).unwrap_or(1);
        let chain = self.universe.chain(&mut self.rng);
        // Mostly from the start: a page whose parents are not here serves nobody.
        let start = if self.rng.chance(60) { 0 } else { self.rng.index(chain.len()) };
        let count = 1 + self.rng.index(most);
        let ask = Ask {
            save: true,
            revision: 1,
            group,
            hashes: chain.iter().skip(start).take(count).copied().collect(),
            recovery: None,
            parent: start.checked_sub(1).and_then(|i| chain.get(i)).copied(),
            first_depth: u32::try_from(start).unwrap_or(0),
            deadline_ms: 0,
            rule: QueryRule::default(),
            issued_us: self.now_us,
            abuses: 0,
            state: AskState::Asked,
        };
        self.begin_ask(client, ask);
    }

    /// Takes something to its next step: hands out, or asks again for an answer that may be lost.
    fn go_on(&mut self, client: usize) {
        if self.rng.chance(60) {
            self.keep(client);
        }
        let ahead = |ask: &Ask| !ask.save && ask.rule.mode == QueryMode::Prepare;
        if let Some(operation) = self.one(client, ahead)
            && self.rng.chance(50)
        {
            self.claim(client, operation);
        }
        if let Some(operation) = self.one(client, |ask| matches!(ask.state, AskState::Ready { .. })) {
            if self.plan.faults.abuse > 0 && self.rng.chance(30) {
                self.restore_other(client, operation);
            }
            self.hand_restore(client, operation);
        }
        if let Some(operation) = self.one(client, |ask| matches!(ask.state, AskState::Granted { .. })) {
            if self.rng.chance(85) {
                self.hand_save(client, operation);
            } else {
                self.abandon(client, operation);
            }
        }
        if let Some(operation) = self.one(client, |_| true) {
            let granted = |ask: &Ask| matches!(ask.state, AskState::Granted { .. });
            // A repetition of a query in any state gets the same answer once more.
            if !self.ask(client, operation).is_some_and(granted) {
                self.send_ask(client, operation);
            }
        }
    }

    fn finish_one(&mut self, client: usize) {
        match self.one(client, |ask| !matches!(ask.state, AskState::Asked | AskState::Waiting)) {
            Some(operation) => self.end_ask(client, operation, true),
            None => self.go_on(client),
        }
    }

    fn cancel_one(&mut self, client: usize) {
        if let Some(operation) = self.one(client, |ask| !ask.save || ask.state != AskState::Asked) {
            self.end_ask(client, operation, false);
        }
    }

    /// Ends interest in whatever state it is.
    fn end_ask(&mut self, client: usize, operation: u64, release: bool) {
        let Some(ask) = self.ask(client, operation) else {
            return;
        };
        let revision = ask.revision;
        if ask.save {
            return self.abandon(client, operation);
        }
        self.drop_ask(client, operation);
        let message = if release { ToManager::Release } else { ToManager::Cancel };
        self.send_up(client, (operation, revision), &message);
    }

    /// A request that must be refused, or that replaces an earlier one.
    fn abuse(&mut self, client: usize) {
        let kind = self.rng.below(9);
        // Few are read ahead at a time, and their claims have rules of their own.
        let ahead = self.one(client, |ask| !ask.save && ask.rule.mode == QueryMode::Prepare);
        let any = self.one(client, |_| true);
        let ahead = ahead.filter(|_| self.rng.chance(40));
        let Some(operation) = ahead.or(any) else {
            return;
        };
        let other = self.prefix();
        let mut rng = Rng::new(self.rng.next_u64());
        let Some(ask) = self.ask_mut(client, operation) else {
            return;
        };
        let mut request = ask.clone();
        // A recovery that is refused leaves its name unused: what is wrong about it must be known first.
        if ask.recovery.is_some() && ask.state == AskState::Asked {
            return;
        }
        match kind {
            // The same name, other parameters. A reservation must have been accepted for that.
            0 if other != ask.hashes && (!ask.save || matches!(ask.state, AskState::Granted { .. })) => {
                // Of a recovery other hashes behind its end are no change.
                match &mut request.recovery {
                    Some((_, end_tokens)) => *end_tokens += 32,
                    None => request.hashes = other,
                }
                ask.abuses += 1;
            }
            // A prefix is no claim of a recovery, nor the reverse.
            7 if !ask.save => {
                request.recovery = match ask.recovery {
                    Some(_) => None,
                    None => Some((0, 32)),
                };
                ask.abuses += 1;
            }
            // A version that has been replaced, or never was.
            1 | 2 if ask.revision > 1 => request.revision = 1 + rng.below(u64::from(ask.revision - 1)) as u32,
            // A new version takes over.
            3 if !ask.save => {
                ask.revision += 1 + rng.below(2) as u32;
                ask.abuses = 0;
                (ask.state, request.revision) = (AskState::Asked, ask.revision);
                // Other hashes may not cover the boundary of a recovery: refused, it would replace nothing.
                if ask.recovery.is_none() {
                    ask.hashes = other;
                }
                return self.send_ask(client, operation);
            }
            // A version that nobody has asked for cannot be handed out.
            4 if ask.revision > 1 => {
                let revision = ask.revision - 1;
                return self.send_up(
                    client,
                    (operation, revision),
                    &ToManager::Restore { first: 0, pages: 1 },
                );
            }
            8 if !ask.save => return self.restore_other(client, operation),
            // Nobody owns a warm-up, so nobody can claim it.
            6 if request.rule.mode == QueryMode::WarmUp && !request.save => {
                ask.abuses += 1;
                request.rule.mode = QueryMode::Demand;
            }
            // A number that has been used.
            5 if operation > 1 => {
                let old = 1 + self.rng.below(operation - 1);
                if self.ask(client, old).is_none() && self.probe_operation(client) != Some(old) {
                    self.send_request(client, old, &request);
                }
                return;
            }
            _ => return,
        }
        self.send_request(client, operation, &request);
    }

    fn forget(&mut self, client: usize) {
        if self.rng.chance(30) {
            return self.send_up(client, (0, 0), &ToManager::Reset);
        }
        let (group, hashes) = (self.group(client), self.prefix());
        let hashes: Vec<_> = hashes.iter().map(|h| h.0).collect();
        self.send_up(client, (0, 0), &ToManager::Forget { group: group.0, hashes: &hashes });
    }

    /// Faults are over: everything that is open is brought to its end, then the exam begins.
    fn quiet_turn(&mut self, client: usize) {
        if self.clients[client].session.is_none() || self.exam_turn(client) {
            return;
        }
        for operation in self.asks(client, |_| true) {
            let Some(ask) = self.ask(client, operation) else {
                continue;
            };
            match (ask.save, &ask.state) {
                // The answer may have been lost, and with it the slots.
                (true, AskState::Asked) => self.send_ask(client, operation),
                _ => self.end_ask(client, operation, true),
            }
        }
    }
}
