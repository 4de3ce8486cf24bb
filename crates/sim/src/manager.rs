//! The manager's shell: from frames to events of the core, and evidence of the end of custody.

use crate::failure::{Checked, Checker, Failure, fail};
use crate::translate;
use crate::world::World;
use orbitkv_core::{
    BlockHash, ClientId, Demand, Event, Evidence, GroupId, OperationId, Recovery, Revision, SaveRequest,
    SegmentId, SessionId, Ticket,
};
use orbitkv_wire::{Header, Hello, Kind, Resume, ToClient, ToManager};

/// Which run of the manager this is.
pub(crate) const BOOT: u128 = 0x0b17;

/// A session as the shell keeps it, until it is gone.
#[derive(Clone, Debug)]
pub(crate) struct ManagerSession {
    pub(crate) client: u128,
    pub(crate) epoch: u32,
    pub(crate) process: usize,
    pub(crate) link: Option<usize>,
}

impl World {
    /// A whole frame of a client.
    pub(crate) fn manager_frame(
        &mut self,
        link: usize,
        header: &Header,
        kind: Kind,
        payload: &[u8],
    ) -> Checked {
        let message = match ToManager::decode(kind, payload) {
            Ok(message) => message,
            Err(error) => return fail(Checker::Protocol, format!("{kind:?} does not decode: {error}")),
        };
        let session = self.links[link].session;
        if session == 0 {
            return match message {
                ToManager::Hello(json) => self.hello(link, json),
                other => fail(Checker::Protocol, format!("{other:?} before the hello")),
            };
        }
        if (header.session.get(), header.epoch.get()) != (session, self.links[link].epoch) {
            return fail(Checker::Protocol, format!("{message:?} names another session than its connection"));
        }
        self.request(session, header, message)
    }

    fn hello(&mut self, link: usize, json: &[u8]) -> Checked {
        let parsed = Hello::decode(json).map_err(|e| e.to_string()).and_then(|h| {
            let parts = translate::registration(&h)?;
            Ok((parts, h.resume))
        });
        let ((client, epoch, spec), resume) = match parsed {
            Ok(parsed) => parsed,
            Err(words) => return fail(Checker::Protocol, format!("hello: {words}")),
        };
        let process = self.clients[self.links[link].client].process;
        if self.processes[process].gone {
            self.close_by_manager(link);
            return Ok(());
        }
        self.end_unheard((client, epoch), process, resume.as_ref().map_or(0, |r| r.session))?;
        if let Some(Resume { session, copies_ended: true }) = resume {
            self.copies_ended(session, client, process, epoch)?;
        }
        self.last_session += 1;
        let number = self.last_session;
        let event =
            Event::SessionOpened { session: SessionId(number), client: ClientId(client), epoch, spec: &spec };
        let effects = self.step(event)?;
        if let Some(text) = translate::refusal(&effects) {
            self.send_down(link, (0, 0), &ToClient::Rejected { text: &text })?;
            self.close_by_manager(link);
            return self.carry_out(effects);
        }
        self.sessions.insert(number, ManagerSession { client, epoch, process, link: Some(link) });
        (self.links[link].session, self.links[link].epoch) = (number, epoch);
        self.send_down(link, (0, 0), &ToClient::Welcome { boot: BOOT })?;
        self.carry_out(effects)
    }

    /// A client names the last session that welcomed it. It never heard of one between that and this
    /// epoch, so no copy of such a session can run, and nothing but this rule could end its custody.
    fn end_unheard(&mut self, (client, epoch): (u128, u32), process: usize, last_heard: u64) -> Checked {
        let later = self.sessions.range(last_heard + 1..);
        let unheard = later.filter(|(_, s)| s.client == client && s.process == process && s.epoch < epoch);
        let unheard: Vec<u64> = unheard.map(|(id, _)| *id).collect();
        for session in unheard {
            if let Some(link) = self.sessions.get(&session).and_then(|s| s.link) {
                self.end_session(link)?;
            }
            self.sessions.remove(&session);
            self.feed(Event::SessionGone { session: SessionId(session), evidence: Evidence::Attested })?;
        }
        Ok(())
    }

    /// The client says that no copy of an earlier session runs or will start.
    fn copies_ended(&mut self, old: u64, client: u128, process: usize, epoch: u32) -> Checked {
        let Some(known) = self.sessions.get(&old) else {
            return Ok(());
        };
        if known.client != client || known.process != process || known.epoch >= epoch {
            return fail(Checker::Protocol, format!("session {old} is not an earlier one of that client"));
        }
        if let Some(link) = known.link {
            self.end_session(link)?;
        }
        self.sessions.remove(&old);
        self.feed(Event::SessionGone { session: SessionId(old), evidence: Evidence::Attested })
    }

    fn request(&mut self, sender: u64, header: &Header, message: ToManager<'_>) -> Checked {
        let session = SessionId(sender);
        let (operation, revision) = (OperationId(header.operation.get()), Revision(header.revision.get()));
        match message {
            ToManager::Hello(_) => fail(Checker::Protocol, "a second hello"),
            ToManager::Attest { passed } => self.feed(Event::Attest { session, passed }),
            ToManager::Query { .. } | ToManager::Recover(_) | ToManager::Candidates { .. } => {
                self.question((session, operation, revision), message)
            }
            ToManager::Restore { first, pages } => {
                self.feed(Event::Restore { session, operation, revision, first, pages })
            }
            ToManager::Keep(items) => items.iter().try_for_each(|item| {
                let (operation, revision) =
                    (OperationId(item.operation.get()), Revision(item.revision.get()));
                self.feed(Event::Keep { session, operation, revision })
            }),
            ToManager::Release => self.feed(Event::Release { session, operation, revision }),
            ToManager::Cancel => self.feed(Event::Cancel { session, operation, revision }),
            ToManager::CopyDone { session: owner, operation, revision } => {
                let (operation, revision) = (OperationId(operation), Revision(revision));
                let ticket = Ticket { session: SessionId(owner), operation, revision };
                self.feed(Event::CopyDone { session, ticket })
            }
            ToManager::BadPage { slot } => {
                self.feed(Event::BadPage { session, slot: translate::slot_ref(&slot) })
            }
            ToManager::Reserve { group, parent, first_depth, hashes } => {
                let hashes: Vec<_> = hashes.iter().map(|h| BlockHash(*h)).collect();
                let (group, parent) = (GroupId(group), parent.map(BlockHash));
                let request = SaveRequest { group, parent, first_depth, hashes: &hashes };
                self.feed(Event::Reserve { session, operation, revision, request })
            }
            ToManager::Commit(items) => items.iter().try_for_each(|item| {
                let (hash, crc) = (BlockHash(item.hash), item.crc.get());
                self.feed(Event::Commit { session, slot: translate::slot_ref(&item.slot), hash, crc })
            }),
            ToManager::Abort(slots) => slots
                .iter()
                .try_for_each(|slot| self.feed(Event::Abort { session, slot: translate::slot_ref(slot) })),
            ToManager::Fenced { scheduler } => {
                self.feed(Event::Fenced { session, scheduler: SessionId(scheduler) })
            }
            ToManager::Forget { group, hashes } => {
                let hashes: Vec<_> = hashes.iter().map(|h| BlockHash(*h)).collect();
                self.feed(Event::Forget { session, group: GroupId(group), hashes: &hashes })
            }
            ToManager::Reset => self.feed(Event::Reset { session }),
            ToManager::CopiesEnded { session: old } => match self.sessions.get(&sender).cloned() {
                Some(s) => self.copies_ended(old, s.client, s.process, s.epoch),
                None => Ok(()),
            },
        }
    }

    fn question(
        &mut self,
        (session, operation, revision): (SessionId, OperationId, Revision),
        message: ToManager<'_>,
    ) -> Checked {
        match message {
            ToManager::Query { group, deadline_ms, rule, hashes } => {
                let hashes: Vec<_> = hashes.iter().map(|h| BlockHash(*h)).collect();
                let deadline_ms = (deadline_ms > 0).then_some(deadline_ms);
                let demand = Demand {
                    deadline_ms,
                    mode: translate::mode(rule.mode),
                    strict: rule.strict,
                    wait_full_prefix: rule.wait_full_prefix,
                    memory_only: rule.memory_only,
                    ..Demand::prefix(GroupId(group), &hashes)
                };
                self.feed(Event::Query { session, operation, revision, demand })
            }
            ToManager::Recover(body) => {
                let hashes: Vec<_> = body.hashes.iter().map(|h| BlockHash(*h)).collect();
                let recovery = Recovery {
                    start_tokens: body.start_tokens,
                    end_tokens: body.end_tokens,
                    hashes: &hashes,
                    ranges: &[],
                    deadline_ms: (body.deadline_ms > 0).then_some(body.deadline_ms),
                    mode: translate::mode(body.mode),
                };
                self.feed(Event::Recover { session, operation, revision, recovery })
            }
            ToManager::Candidates { start_tokens, hashes } => {
                let hashes: Vec<_> = hashes.iter().map(|h| BlockHash(*h)).collect();
                let hashes = &hashes;
                self.feed(Event::Candidates { session, operation, revision, start_tokens, hashes })
            }
            _ => Ok(()),
        }
    }

    /// The manager has read the end of a connection.
    pub(crate) fn connection_ended(&mut self, link: usize) -> Checked {
        self.end_session(link)
    }

    /// Closes a connection, and the session behind it if it still is the core's.
    fn end_session(&mut self, link: usize) -> Checked {
        self.close_by_manager(link);
        let session = self.links[link].session;
        match self.sessions.get_mut(&session).filter(|s| s.link == Some(link)) {
            Some(known) => {
                known.link = None;
                self.feed(Event::SessionClosed { session: SessionId(session) })
            }
            None => Ok(()),
        }
    }

    /// The pidfd of a process fired: its sessions are gone, in order.
    pub(crate) fn process_gone(&mut self, process: usize) -> Checked {
        self.processes[process].gone = true;
        let of_it = self.sessions.iter().filter(|(_, s)| s.process == process);
        let gone: Vec<(u64, Option<usize>)> = of_it.map(|(id, s)| (*id, s.link)).collect();
        for (session, link) in gone {
            if let Some(link) = link {
                self.close_by_manager(link);
            }
            self.sessions.remove(&session);
            let session = SessionId(session);
            self.feed(Event::SessionGone { session, evidence: Evidence::ProcessExit })?;
        }
        Ok(())
    }

    /// A segment is populated, or could not be had.
    pub(crate) fn grown(&mut self, segment: u32, works: bool) -> Checked {
        let segment = SegmentId(segment);
        if works {
            self.feed(Event::SegmentReady { segment })
        } else {
            self.feed(Event::SegmentFailed { segment })
        }
    }

    /// Gives the core an event and carries out what follows.
    pub(crate) fn feed(&mut self, event: Event<'_>) -> Checked {
        let effects = self.step(event)?;
        self.carry_out(effects)
    }

    /// What is due by time happens first, in a step of its own: the model then sees one cause at a time.
    fn step(&mut self, event: Event<'_>) -> Result<Vec<orbitkv_core::Effect>, Failure> {
        if self.core.next_deadline().is_some_and(|at| at.0 <= self.now_us) {
            let effects = self.checked_step(Event::Tick)?;
            self.carry_out(effects)?;
        }
        self.checked_step(event)
    }

    /// The core asked to be woken now.
    pub(crate) fn timer(&mut self) -> Checked {
        // An earlier wake-up has been asked for since, and has come.
        if self.timer_us.is_none_or(|at| at > self.now_us) {
            return Ok(());
        }
        self.timer_us = None;
        self.feed(Event::Tick)
    }
}
