//! Pages from grant to commit, and who may write them.

use super::{Fill, Model, Page, Save};
use crate::failure::{Checked, Checker, ensure};
use orbitkv_core::{
    Core, Grant, GroupId, PageGrant, PagePart, SaveRequest, SessionId, SlotRef, SlotState, Ticket,
};
use std::collections::BTreeSet;

impl Model {
    /// A reservation was answered.
    pub(super) fn granted(
        &mut self,
        ticket: Ticket,
        request: &SaveRequest<'_>,
        grants: &[PageGrant],
    ) -> Checked {
        let place = (ticket.session, ticket.operation);
        ensure(grants.len() == request.hashes.len(), Checker::Model, || {
            "an answer of another length".into()
        })?;
        if self.saves.contains_key(&place) {
            // A repetition: nothing may be granted that was not granted the first time.
            let new = grants.iter().filter_map(|g| match &g.grant {
                Grant::Slots(parts) => parts.iter().map(|p| p.slot).find(|s| self.never_granted(ticket, *s)),
                _ => None,
            });
            let new: Vec<_> = new.collect();
            return ensure(new.is_empty(), Checker::Model, || format!("a repetition was granted {new:?}"));
        }
        let instance = self.sessions.get(&ticket.session).map(|s| s.spec.instance);
        let Some(workers) = instance.map(|i| self.workers(i)) else {
            return Ok(());
        };
        let (shards, bytes) = self.shape(ticket.session, request.group);
        let mut open_slots = 0;
        for (hash, grant) in request.hashes.iter().zip(grants) {
            let Grant::Slots(parts) = &grant.grant else {
                continue;
            };
            ensure(grant.hash == *hash && parts.len() == usize::from(shards), Checker::Model, || {
                format!("{:?} was granted {} slots", grant.hash, parts.len())
            })?;
            let Some(key) = self.key(ticket.session, request.group, *hash) else {
                continue;
            };
            self.next_page += 1;
            let (parts, saver) = (parts.clone(), place);
            for (shard, part) in (0..).zip(&parts) {
                let probe = request.group == GroupId::PROBE;
                let writer = if probe { Some(&ticket.session) } else { workers.get(&shard) };
                let Some(&writer) = writer else {
                    return ensure(false, Checker::Custody, || format!("{:?} has no writer", part.slot));
                };
                let fill = Fill { writer, page: self.next_page, bytes, quarantined: false };
                let before = self.fills.insert(part.slot, fill);
                ensure(before.is_none(), Checker::Custody, || format!("{:?} was granted twice", part.slot))?;
                open_slots += 1;
            }
            let page = Page { key, parts, committed: 0, condemned: false, saver };
            self.pages.insert(self.next_page, page);
        }
        if open_slots > 0 {
            let request = (request.group, request.parent, request.first_depth, request.hashes.to_vec());
            self.saves.insert(place, Save { revision: ticket.revision, request, open_slots });
        }
        Ok(())
    }

    /// Whether this slot was never granted to that reservation, as far as open slots show.
    fn never_granted(&self, ticket: Ticket, slot: SlotRef) -> bool {
        let page = self.fills.get(&slot).and_then(|f| self.pages.get(&f.page));
        page.is_some_and(|p| p.saver != (ticket.session, ticket.operation))
    }

    /// Write custody of a slot ends.
    fn end_fill(&mut self, slot: SlotRef) -> Option<u64> {
        let fill = self.fills.remove(&slot)?;
        let saver = self.pages.get(&fill.page)?.saver;
        if let Some(save) = self.saves.get_mut(&saver) {
            save.open_slots -= 1;
            if save.open_slots == 0 {
                self.saves.remove(&saver);
            }
        }
        Some(fill.page)
    }

    pub(super) fn committed(&mut self, slot: SlotRef, crc: u64) {
        let Some(page) = self.end_fill(slot).and_then(|id| self.pages.get_mut(&id)) else {
            return;
        };
        page.committed += 1;
        for part in page.parts.iter_mut().filter(|p| p.slot == slot) {
            part.crc = crc;
        }
        if page.committed == page.parts.len() && !page.condemned {
            let (key, parts) = (page.key, page.parts.clone());
            self.complete.entry(key).or_default().push(parts);
        }
    }

    pub(super) fn aborted(&mut self, slot: SlotRef) {
        if let Some(page) = self.end_fill(slot).and_then(|id| self.pages.get_mut(&id)) {
            page.condemned = true;
        }
    }

    /// What a closed session was writing can never become visible.
    pub(super) fn quarantine(&mut self, writer: SessionId) {
        let mut pages = BTreeSet::new();
        for fill in self.fills.values_mut().filter(|f| f.writer == writer) {
            fill.quarantined = true;
            pages.insert(fill.page);
        }
        self.condemn(&pages);
    }

    /// The worker writes nothing any more, at all or for the saves of one owner.
    pub(super) fn end_fills(&mut self, writer: SessionId, owner: Option<SessionId>) {
        let of_owner = |page: u64| {
            let saver = self.pages.get(&page).map(|p| p.saver.0);
            owner.is_none_or(|o| saver == Some(o))
        };
        let ended: Vec<SlotRef> = self
            .fills
            .iter()
            .filter(|(_, f)| f.writer == writer && of_owner(f.page))
            .map(|(slot, _)| *slot)
            .collect();
        for slot in ended {
            self.aborted(slot);
        }
    }

    fn condemn(&mut self, pages: &BTreeSet<u64>) {
        for id in pages {
            if let Some(page) = self.pages.get_mut(id) {
                page.condemned = true;
            }
        }
    }

    /// Nothing of the namespace that was computed before may be seen afterwards.
    pub(super) fn reset(&mut self, session: SessionId) {
        let Some(namespace) = self.sessions.get(&session).map(|s| s.spec.namespace) else {
            return;
        };
        self.complete.retain(|key, _| key.namespace != namespace);
        self.tier.forget_namespace(namespace);
        for page in self.pages.values_mut().filter(|p| p.key.namespace == namespace) {
            page.condemned = true;
        }
    }

    /// What stays is leased, or being written. Which pages operations lease the core's own audit compares, also for
    /// operations whose session is gone and that still read.
    pub(super) fn drop_unleased(&mut self, core: &Core) -> Checked {
        let visible =
            |part: &PagePart| core.slot(part.slot).filter(|s| s.state == SlotState::Resident && !s.condemned);
        for commits in self.complete.values_mut() {
            commits.retain(|parts| parts.iter().any(|part| visible(part).is_some()));
            for seen in commits.iter().flatten().filter_map(visible) {
                let stays = seen.leased || self.tier.writes_from(seen.slot);
                ensure(stays, Checker::Model, || format!("{:?} stays, and nobody leases it", seen.slot))?;
            }
        }
        Ok(())
    }

    /// Drops pages that nobody can commit any more.
    pub(super) fn tidy(&mut self) {
        let open: BTreeSet<u64> = self.fills.values().map(|f| f.page).collect();
        self.pages.retain(|id, _| open.contains(id));
    }
}
