//! From a message to an event of the core.

use super::Server;
use crate::convert::{self, slot_ref};
use crate::outbox::Ids;
use crate::registration::max_hashes;
use orbitkv_core::{
    BlockHash, Demand, Event, GroupId, OperationId, Recovery, Revision, SaveRequest, SessionId, Ticket,
};
use orbitkv_wire::{Hash, Header, ToClient, ToManager};

impl Server {
    pub(super) fn request(&mut self, id: u64, sender: u64, header: &Header, message: ToManager<'_>) {
        let session = SessionId(sender);
        let (operation, revision) = (OperationId(header.operation.get()), Revision(header.revision.get()));
        match message {
            // The caller refuses a second one.
            ToManager::Hello(_) => {}
            ToManager::Attest { passed } => {
                let taken = self.feed(Event::Attest { session, passed });
                if let Some(known) = self.sessions.get_mut(sender) {
                    known.attested = taken && passed;
                }
            }
            ToManager::Query { .. }
            | ToManager::Recover(_)
            | ToManager::Candidates { .. }
            | ToManager::Reserve { .. }
            | ToManager::Forget { .. } => {
                self.request_with_hashes(id, sender, header, message);
            }
            ToManager::Restore { first, pages } => {
                self.feed(Event::Restore { session, operation, revision, first, pages });
            }
            ToManager::Keep(items) => {
                for item in items {
                    let operation = OperationId(item.operation.get());
                    let revision = Revision(item.revision.get());
                    self.feed(Event::Keep { session, operation, revision });
                }
            }
            ToManager::Release => {
                self.feed(Event::Release { session, operation, revision });
            }
            ToManager::Cancel => {
                self.feed(Event::Cancel { session, operation, revision });
            }
            ToManager::CopyDone { session: owner, operation, revision } => {
                let ticket = Ticket {
                    session: SessionId(owner),
                    operation: OperationId(operation),
                    revision: Revision(revision),
                };
                self.feed(Event::CopyDone { session, ticket });
            }
            ToManager::BadPage { slot } => {
                self.feed(Event::BadPage { session, slot: slot_ref(&slot) });
            }
            ToManager::Commit(items) => {
                for item in items {
                    let (hash, crc) = (BlockHash(item.hash), item.crc.get());
                    self.feed(Event::Commit { session, slot: slot_ref(&item.slot), hash, crc });
                }
            }
            ToManager::Abort(slots) => {
                for slot in slots {
                    self.feed(Event::Abort { session, slot: slot_ref(slot) });
                }
            }
            ToManager::Fenced { scheduler } => {
                self.feed(Event::Fenced { session, scheduler: SessionId(scheduler) });
            }
            ToManager::Reset => self.reset(session, id, ids(header)),
            ToManager::CopiesEnded { session: old } => self.copies_ended_of(id, sender, header, old),
        }
    }

    fn request_with_hashes(&mut self, id: u64, sender: u64, header: &Header, message: ToManager<'_>) {
        let session = SessionId(sender);
        let (operation, revision) = (OperationId(header.operation.get()), Revision(header.revision.get()));
        let mut copied = std::mem::take(&mut self.scratch.hashes);
        match message {
            ToManager::Query { group, deadline_ms, rule, hashes }
                if self.answer_fits(id, sender, header, group, hashes) =>
            {
                let deadline_ms = (deadline_ms > 0).then_some(deadline_ms);
                let demand = Demand {
                    deadline_ms,
                    mode: convert::mode(rule.mode),
                    strict: rule.strict,
                    wait_full_prefix: rule.wait_full_prefix,
                    memory_only: rule.memory_only,
                    ..Demand::prefix(GroupId(group), copy(hashes, &mut copied))
                };
                self.feed(Event::Query { session, operation, revision, demand });
            }
            ToManager::Recover(body) => {
                let ranges = convert::group_ranges(body.ranges);
                let recovery = Recovery {
                    start_tokens: body.start_tokens,
                    end_tokens: body.end_tokens,
                    hashes: copy(body.hashes, &mut copied),
                    ranges: &ranges,
                    deadline_ms: (body.deadline_ms > 0).then_some(body.deadline_ms),
                    mode: convert::mode(body.mode),
                };
                self.feed(Event::Recover { session, operation, revision, recovery });
            }
            ToManager::Candidates { start_tokens, hashes } => {
                let hashes = copy(hashes, &mut copied);
                self.feed(Event::Candidates { session, operation, revision, start_tokens, hashes });
            }
            ToManager::Reserve { group, parent, first_depth, hashes }
                if self.answer_fits(id, sender, header, group, hashes) =>
            {
                let request = SaveRequest {
                    group: GroupId(group),
                    parent: parent.map(BlockHash),
                    first_depth,
                    hashes: copy(hashes, &mut copied),
                };
                self.feed(Event::Reserve { session, operation, revision, request });
            }
            ToManager::Forget { group, hashes } => {
                let hashes = copy(hashes, &mut copied);
                self.feed(Event::Forget { session, group: GroupId(group), hashes });
            }
            _ => {}
        }
        self.scratch.hashes = copied;
    }

    /// Refuses a request whose answer could be longer than a frame.
    fn answer_fits(&mut self, id: u64, sender: u64, header: &Header, group: u16, hashes: &[Hash]) -> bool {
        let groups = self.sessions.get(sender).map(|s| s.registration.spec.groups.as_slice());
        let spec = groups.unwrap_or_default().iter().find(|g| g.group.0 == group);
        // A group that is not registered is for the core to refuse.
        let most = max_hashes(spec.map_or(1, |g| g.shard_count));
        if hashes.len() <= most {
            return true;
        }
        let text =
            format!("{} hashes in one request; the answer for more than {most} does not fit", hashes.len());
        self.send(id, ids(header), &ToClient::Refused { text: &text }, None);
        false
    }

    fn copies_ended_of(&mut self, id: u64, sender: u64, header: &Header, old: u64) {
        let Some(speaker) = self.sessions.get(sender) else { return };
        let (process, registration) = (speaker.process, speaker.registration.clone());
        if let Err(text) = self.copies_ended(old, process, &registration) {
            self.send(id, ids(header), &ToClient::Refused { text: &text }, None);
        }
    }
}

fn ids(header: &Header) -> Ids {
    Ids { operation: header.operation.get(), revision: header.revision.get() }
}

fn copy<'a>(hashes: &[Hash], into: &'a mut Vec<BlockHash>) -> &'a [BlockHash] {
    into.clear();
    into.extend(hashes.iter().map(|hash| BlockHash(*hash)));
    into
}
