//! A worker's self-test: it saves and restores a page of its own, then attests.

use crate::content::Key;
use crate::engine::{CopyPage, Direction};
use crate::failure::{Checked, Checker, fail};
use crate::heap::Happening;
use crate::translate;
use crate::universe::block_hash;
use crate::world::World;
use orbitkv_core::{GroupId, OperationId, Revision, SessionId, Ticket};
use orbitkv_wire::{QueryRule, ToClient, ToManager};

/// Numbers of hashes that only probes use.
const PROBE_HASHES: u64 = 1 << 41;
/// Attempts before the worker attests without a probe.
const TRIES: u32 = 4;
/// Pause between attempts.
const PAUSE_US: u64 = 60_000;

/// How far a self-test has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    step: Step,
    /// The operation whose answer it waits for.
    operation: u64,
    hash: u64,
    tries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Pause,
    Reserving,
    Saving,
    Querying,
    Restoring,
}

impl World {
    fn probe(&self, client: usize) -> Option<Probe> {
        self.clients[client].hands.as_ref()?.probe
    }

    fn set_probe(&mut self, client: usize, probe: Option<Probe>) {
        if let Some(hands) = &mut self.clients[client].hands {
            hands.probe = probe;
        }
    }

    /// The operation of the running self-test.
    pub(crate) fn probe_operation(&self, client: usize) -> Option<u64> {
        self.probe(client).map(|p| p.operation).filter(|operation| *operation > 0)
    }

    fn shard(&self, client: usize) -> u16 {
        let groups = &self.engines[self.clients[client].engine].plan.groups;
        let rank = self.clients[client].hands.as_ref().map_or(0, |h| h.rank);
        rank % groups.first().map_or(1, |g| g.shard_count)
    }

    /// Begins the self-test of a new session, or attests at once where this world has none.
    pub(crate) fn begin_probe(&mut self, client: usize) {
        if !self.engines[self.clients[client].engine].plan.probes {
            if self.rng.chance(20) && !self.quiet() {
                self.send_up(client, (0, 0), &ToManager::Attest { passed: false });
            }
            return self.send_up(client, (0, 0), &ToManager::Attest { passed: true });
        }
        self.set_probe(client, Some(Probe { step: Step::Pause, operation: 0, hash: 0, tries: 0 }));
        self.heap.push(self.now_us + 1, Happening::Probe { client });
    }

    /// Time for the next attempt, if the last one came to nothing.
    pub(crate) fn probe_turn(&mut self, client: usize) -> Checked {
        let Some(probe) = self.probe(client).filter(|p| p.step == Step::Pause) else {
            return Ok(());
        };
        if !self.runs(client) {
            return Ok(());
        }
        if probe.tries == TRIES {
            self.set_probe(client, None);
            self.send_up(client, (0, 0), &ToManager::Attest { passed: true });
            return Ok(());
        }
        let (operation, hash) = (self.operation(client), PROBE_HASHES + self.unique());
        let probe = Probe { step: Step::Reserving, operation, hash, tries: probe.tries + 1 };
        self.set_probe(client, Some(probe));
        let hashes = [block_hash(hash).0];
        let group = GroupId::PROBE.0;
        self.send_up(
            client,
            (operation, 1),
            &ToManager::Reserve { group, parent: None, first_depth: 0, hashes: &hashes },
        );
        Ok(())
    }

    fn try_again(&mut self, client: usize, probe: Probe) {
        self.set_probe(client, Some(Probe { step: Step::Pause, operation: 0, ..probe }));
        self.heap.push(self.now_us + PAUSE_US, Happening::Probe { client });
    }

    /// The manager answers a request of the self-test.
    pub(crate) fn probe_answer(&mut self, client: usize, message: &ToClient<'_>) -> Checked {
        let (Some(probe), Some(session)) = (self.probe(client), self.clients[client].session) else {
            return Ok(());
        };
        let (direction, parts) = match (probe.step, message) {
            (Step::Reserving, ToClient::Granted(body)) if !body.parts.is_empty() => {
                (Direction::Save, body.parts)
            }
            (Step::Querying, ToClient::Ready { parts, .. }) => (Direction::Restore, *parts),
            // Its lease expired while the restore was on its way: it ends with the copy.
            (_, ToClient::Waiting) | (Step::Restoring, ToClient::Miss(_)) => return Ok(()),
            (_, ToClient::Granted(_) | ToClient::Miss(_) | ToClient::Refused { .. }) => {
                self.try_again(client, probe);
                return Ok(());
            }
            (_, other) => return fail(Checker::Protocol, format!("a self-test got {other:?}")),
        };
        let namespace = self.engines[self.clients[client].engine].plan.namespace;
        let key = Key { namespace, group: GroupId::PROBE, hash: block_hash(probe.hash) };
        let shard = self.shard(client);
        let page =
            |part| CopyPage { key, shard, part: translate::page_part(part), words: Default::default() };
        let pages: Vec<_> = parts.iter().map(page).collect();
        let owner = Ticket {
            session: SessionId(session),
            operation: OperationId(probe.operation),
            revision: Revision(1),
        };
        if direction == Direction::Restore {
            self.send_up(client, (probe.operation, 1), &ToManager::Restore { first: 0, pages: 1 });
        }
        let step = if direction == Direction::Save { Step::Saving } else { Step::Restoring };
        self.set_probe(client, Some(Probe { step, ..probe }));
        self.start_copy(client, session, owner, direction, pages, true)
    }

    /// A copy of the self-test has ended and has been reported.
    pub(crate) fn probe_copied(&mut self, client: usize, operation: u64, well: bool) {
        // A copy of an earlier session's self-test says nothing about this one.
        let Some(probe) = self.probe(client).filter(|p| p.operation == operation) else {
            return;
        };
        match probe.step {
            Step::Saving if well => {
                let operation = self.operation(client);
                self.set_probe(client, Some(Probe { step: Step::Querying, operation, ..probe }));
                let hashes = [block_hash(probe.hash).0];
                let (group, deadline_ms) = (GroupId::PROBE.0, 0);
                self.send_up(
                    client,
                    (operation, 1),
                    &ToManager::Query { group, deadline_ms, rule: QueryRule::default(), hashes: &hashes },
                );
            }
            Step::Restoring => {
                self.send_up(client, (probe.operation, 1), &ToManager::Release);
                if well {
                    self.set_probe(client, None);
                    let hashes = [block_hash(probe.hash).0];
                    self.send_up(
                        client,
                        (0, 0),
                        &ToManager::Forget { group: GroupId::PROBE.0, hashes: &hashes },
                    );
                    self.send_up(client, (0, 0), &ToManager::Attest { passed: true });
                } else {
                    self.try_again(client, probe);
                }
            }
            _ => self.try_again(client, probe),
        }
    }
}
