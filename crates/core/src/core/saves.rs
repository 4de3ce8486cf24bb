//! Saves: reserve, commit, abort.

use super::Core;
use super::eviction::Room;
use crate::instance::Shape;
use crate::operation::digest;
use crate::page::{Origin, Page, PageState, Saver};
use crate::save::Save;
use crate::slab::PageId;
use crate::slots::{Class, SlotState};
use crate::{
    BlockHash, Effect, Grant, GroupId, InstanceId, Mark, NamespaceId, PageGrant, PageKey, PagePart, Plant,
    Refusal, SaveRequest, SessionId, ShardId, SlotRef, Ticket, WritePolicy,
};

/// Where the pages of one reservation go.
#[derive(Clone, Copy)]
struct Target {
    namespace: NamespaceId,
    instance: InstanceId,
    shape: Shape,
    first_shard: u16,
    /// The worker that writes every shard, whatever its rank: its own probe page is its own to write.
    writer: Option<SessionId>,
}

impl Target {
    /// A page needs one slot, and is no probe's. Slots of several shards must grow evenly: what one of them has more
    /// than the others is of no use to anybody.
    fn is_alone(self) -> bool {
        self.shape.shards == 1 && self.writer.is_none()
    }
}

impl Core {
    pub(super) fn reserve(
        &mut self,
        ticket: Ticket,
        request: &SaveRequest<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let session = self.session(ticket.session)?;
        self.check_owner(session, request.group, "reserve")?;
        let shape = self.shape_of(session, request.group)?;
        self.check_count(request.hashes.len())?;
        let (used, instance) = (session.saves, session.instance);
        let probe = request.group == GroupId::PROBE;
        let first_shard = if probe { self.probe_shard(session.role.rank(), instance) } else { 0 };
        let Some(known) = self.instances.get(&instance) else {
            return Err(Refusal::UnknownSession);
        };
        let (namespace, open) = (known.namespace, known.active || probe);
        if self.replay_reserve(ticket, request, effects)? {
            return Ok(());
        }
        // Before the limit: a repetition of a refused request must be refused too, or its owner would
        // be granted slots that it does not know of.
        self.claim_id(ticket)?;
        let max = self.config.saves_per_session;
        if used >= max || self.saves.len() >= self.config.saves {
            return Err(Refusal::Limit { what: "open reservations", max });
        }
        let writer = probe.then_some(ticket.session);
        let target = Target { namespace, instance, shape, first_shard, writer };
        let grants = self.grant_all(ticket, request, target, open, effects);
        self.keep_save(ticket, request, &grants);
        let Ticket { session, operation, revision } = ticket;
        effects.push(Effect::Granted { session, operation, revision, grants });
        Ok(())
    }

    fn probe_shard(&self, rank: Option<u16>, instance: InstanceId) -> u16 {
        let shards = self.instances.get(&instance).and_then(|i| i.groups.first()).map(|g| g.shard_count);
        rank.unwrap_or(0) % shards.unwrap_or(1)
    }

    /// The same request again: the same answer, for what is still to be written.
    fn replay_reserve(
        &mut self,
        ticket: Ticket,
        request: &SaveRequest<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<bool, Refusal> {
        let Some(save) = self.saves.get(&(ticket.session, ticket.operation)) else {
            return Ok(false);
        };
        if save.revision != ticket.revision {
            let (got, current) = (ticket.revision.0, save.revision.0);
            self.mark(Mark::RevisionStale);
            return Err(Refusal::StaleRevision { got, current });
        }
        if save.digest != request_digest(request) {
            self.mark(Mark::ParametersChanged);
            return Err(Refusal::ParametersChanged);
        }
        let grants = save.grants.iter().map(|page| self.still_granted(page)).collect();
        self.mark(Mark::ReserveReplayed);
        let Ticket { session, operation, revision } = ticket;
        effects.push(Effect::Granted { session, operation, revision, grants });
        Ok(true)
    }

    /// The grant of a page as it is now: one that is written in full may be visible, and must not be
    /// written again.
    fn still_granted(&self, page: &PageGrant) -> PageGrant {
        let open = |part: &PagePart| {
            self.slots.get(part.slot).is_some_and(|slot| matches!(slot.state, SlotState::Filling(_)))
        };
        match &page.grant {
            Grant::Slots(parts) if !parts.iter().any(open) => {
                PageGrant { hash: page.hash, grant: Grant::Exists }
            }
            _ => page.clone(),
        }
    }

    /// Grants page by page. After the first page that gets no slot the rest gets none either: a chain
    /// with a hole serves nothing behind it, and looking for room again would only evict more.
    fn grant_all(
        &mut self,
        ticket: Ticket,
        request: &SaveRequest<'_>,
        target: Target,
        open: bool,
        effects: &mut Vec<Effect>,
    ) -> Vec<PageGrant> {
        let counted = u64::from(request.group != GroupId::PROBE);
        let chained = self.instances.get(&target.instance).is_some_and(|i| i.chained(request.group));
        let mut parent = request.parent;
        // Room is never made of the chain's own head. Its deepest page is enough: others have a child.
        let key = |hash| PageKey { namespace: target.namespace, group: request.group, hash };
        let mut kept: Vec<PageId> = parent.and_then(|hash| self.keep(key(hash))).into_iter().collect();
        let mut stopped = (!open).then_some(Grant::Refused);
        let mut grants = Vec::with_capacity(request.hashes.len());
        for (i, &hash) in request.hashes.iter().enumerate() {
            let depth = request.first_depth.saturating_add(u32::try_from(i).unwrap_or(u32::MAX));
            let key = key(hash);
            let grant = match &stopped {
                Some(grant) => grant.clone(),
                None => {
                    // A window or a checkpoint is of use without what is before it, and is kept by use alone.
                    let link = parent.filter(|_| chained);
                    if link != parent {
                        self.mark(Mark::SavedUnchained);
                    }
                    self.grant(ticket, key, (link, depth), target, effects)
                }
            };
            match &grant {
                Grant::Busy | Grant::Refused => {
                    self.counters.refused_pages += counted;
                    stopped = Some(grant.clone());
                }
                Grant::Slots(_) => self.counters.granted_pages += counted,
                Grant::Exists => kept.extend(self.keep(key)),
            }
            grants.push(PageGrant { hash, grant });
            parent = Some(hash);
        }
        kept.into_iter().for_each(|id| self.drop_lease(id));
        if grants.iter().any(|g| matches!(g.grant, Grant::Slots(_))) {
            for (class, _) in self.writers(target).into_iter().flatten() {
                self.grow_ahead(class, target.is_alone(), effects);
            }
        }
        grants
    }

    /// Leases a page of the chain that is being saved until all of the chain has its answer.
    fn keep(&mut self, key: PageKey) -> Option<PageId> {
        let id = self.index.sealed(&key)?;
        self.take_lease(id);
        Some(id)
    }

    fn grant(
        &mut self,
        ticket: Ticket,
        key: PageKey,
        place: (Option<BlockHash>, u32),
        target: Target,
        effects: &mut Vec<Effect>,
    ) -> Grant {
        if let Some(page) = self.index.sealed(&key) {
            self.mark(Mark::ReserveExists);
            self.touch(page);
            return Grant::Exists;
        }
        let read = self.index.reading.get(&key).is_some_and(|page| self.is_awaited(*page));
        if read || self.index.pending.contains_key(&(target.instance, key)) {
            self.mark(Mark::ReservePending);
            return Grant::Exists;
        }
        // At least one page may always be in flight, however small the pool.
        let cap = self.config.filling_bytes().max(target.shape.page_bytes());
        if self.filling_bytes + target.shape.page_bytes() > cap {
            self.mark(Mark::FillingCapped);
            return Grant::Busy;
        }
        let Some(writers) = self.writers(target) else {
            return Grant::Refused;
        };
        for (class, _) in &writers {
            match self.make_room(*class, effects) {
                Room::Now => {}
                Room::Soon => {
                    self.mark(Mark::ReserveBusy);
                    if target.is_alone() {
                        self.grow_more(*class, effects);
                    }
                    return Grant::Busy;
                }
                Room::No => {
                    self.mark(Mark::ReserveRefused);
                    return Grant::Refused;
                }
            }
        }
        self.fill(ticket, key, place, target, &writers)
    }

    /// Class and writing worker of each shard; `None` if a rank is not connected.
    fn writers(&self, target: Target) -> Option<Vec<(Class, SessionId)>> {
        let instance = self.instances.get(&target.instance)?;
        let shards = target.first_shard..target.first_shard + target.shape.shards;
        let (namespace, slot_bytes) = (target.namespace, target.shape.slot_bytes);
        shards
            .map(|rank| {
                let worker = target.writer.or_else(|| instance.workers.get(&rank).copied())?;
                Some((Class { namespace, shard: ShardId(rank), slot_bytes }, worker))
            })
            .collect()
    }

    /// Takes the slots. Evicting for one shard may have used the room of another, so all are checked.
    fn fill(
        &mut self,
        ticket: Ticket,
        key: PageKey,
        (parent_hash, depth): (Option<BlockHash>, u32),
        target: Target,
        writers: &[(Class, SessionId)],
    ) -> Grant {
        let Ticket { session, operation, .. } = ticket;
        let saver = Saver { instance: target.instance, session, operation };
        let mut page = Page::new(key, PageState::Filling, (parent_hash, depth), target.shape.payload_bytes);
        page.origin = Some(Box::new(Origin::Saved(saver)));
        let id = self.index.pages.insert(page);
        let mut parts = Vec::with_capacity(writers.len());
        for &(class, writer) in writers {
            let Some(slot) = self.slots.take(class, id, SlotState::Filling(writer)) else {
                break;
            };
            self.filling_bytes += class.slot_bytes;
            if let Some(worker) = self.sessions.get_mut(&writer) {
                worker.writing += 1;
            }
            parts.push(PagePart { slot, crc: 0 });
        }
        assert_eq!(parts.len(), writers.len(), "room was made for every shard");
        let page = self.index.pages.get_mut(id);
        let parent = page.and_then(|page| {
            page.set_parts(&parts);
            page.parent()
        });
        if let Some(parent) = parent {
            self.link(parent);
        }
        self.index.pending.insert((target.instance, key), id);
        if self.planted(Plant::PublishBeforeCommit) {
            self.seal(id);
        }
        Grant::Slots(parts)
    }

    fn keep_save(&mut self, ticket: Ticket, request: &SaveRequest<'_>, grants: &[PageGrant]) {
        let slots = |g: &PageGrant| match &g.grant {
            Grant::Slots(parts) => parts.len(),
            _ => 0,
        };
        let open_slots: usize = grants.iter().map(slots).sum();
        if open_slots == 0 {
            return;
        }
        let save = Save {
            revision: ticket.revision,
            digest: request_digest(request),
            grants: grants.to_vec(),
            open_slots,
        };
        self.saves.insert((ticket.session, ticket.operation), save);
        if let Some(session) = self.sessions.get_mut(&ticket.session) {
            session.saves += 1;
        }
    }

    pub(super) fn commit(
        &mut self,
        session: SessionId,
        at: SlotRef,
        hash: BlockHash,
        crc: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        self.session(session)?;
        let held = self.slots.get(at).filter(|s| s.state == SlotState::Filling(session));
        let Some(id) = held.and_then(|s| s.page) else {
            self.mark(Mark::CommitOutOfCustody);
            return Err(Refusal::NotInCustody);
        };
        let Some(page) = self.index.pages.get_mut(id) else {
            return Err(Refusal::NotInCustody);
        };
        if page.key.hash != hash {
            return Err(Refusal::WrongPage);
        }
        page.committed += 1;
        page.set_part(at, Some(PagePart { slot: at, crc }));
        let (state, complete) = (page.state, usize::from(page.committed) == page.shards());
        self.end_fill(id, at, SlotState::Resident);
        match (state, complete) {
            (PageState::Condemned, _) => {
                self.mark(Mark::CommitCondemned);
                self.free_condemned(id);
            }
            (PageState::Filling, true) => {
                self.seal(id);
                if self.config.tier_policy == WritePolicy::All {
                    self.write_behind(id, effects);
                }
            }
            (PageState::Filling, false) => self.mark(Mark::PartlySealed),
            // Sealed before its commit: a planted defect.
            (PageState::Sealed | PageState::Reading | PageState::Spare, _) => {}
        }
        Ok(())
    }

    /// A slot comes back unwritten: from its worker, or from the owner who never handed it out.
    pub(super) fn abort(&mut self, session: SessionId, at: SlotRef) -> Result<(), Refusal> {
        self.session(session)?;
        let Some(slot) = self.slots.get(at) else {
            return Err(Refusal::NotInCustody);
        };
        let (SlotState::Filling(writer), Some(id)) = (slot.state, slot.page) else {
            return Err(Refusal::NotInCustody);
        };
        let owner = self.index.pages.get(id).and_then(Page::saver).map(|saver| saver.session);
        if session != writer && Some(session) != owner {
            return Err(Refusal::NotInCustody);
        }
        self.mark(Mark::SaveAborted);
        self.condemn(id);
        self.end_fill(id, at, SlotState::Resident);
        self.free_condemned(id);
        Ok(())
    }
}

fn request_digest(request: &SaveRequest<'_>) -> u64 {
    let parent = request.parent.map_or(0, |p| digest(request.group, 1, &[p]));
    digest(request.group, parent ^ u64::from(request.first_depth), request.hashes)
}
