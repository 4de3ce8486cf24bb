//! The slower tier: what is written to it, and what it holds.

use super::{Core, Outcome};
use crate::page::PageState;
use crate::slab::PageId;
use crate::stored::{StoredPage, StoredPart, StoredParts};
use crate::{
    Effect, Event, ExtentId, GroupId, Mark, PageKey, Plant, ShardId, SlotRef, StoredName, StoredShard, Ticket,
};

/// A page that is being written, shard by shard.
#[derive(Clone, Debug)]
pub(super) struct WriteBehind {
    pub(super) extents: Vec<Option<ExtentId>>,
    pending: usize,
}

impl Core {
    /// Has a page that was just sealed written behind, so that evicting it will cost nothing.
    pub(super) fn write_behind(&mut self, id: PageId, effects: &mut Vec<Effect>) {
        let Some(page) = self.index.pages.get(id) else {
            return;
        };
        let key = page.key;
        if !self.config.tier || key.group == GroupId::PROBE || self.stored.contains(&key) {
            return;
        }
        let Some(&namespace) = self.digests.get(&key.namespace) else {
            return;
        };
        if self.writes.len() >= self.config.tier_writes || !self.tier_writes {
            self.mark(Mark::WriteDropped);
            self.counters.dropped_writes += 1;
            return;
        }
        self.withdraw(id);
        let Some(page) = self.index.pages.get_mut(id) else {
            return;
        };
        page.writing = true;
        let shards = page.shards();
        for (shard, part) in (0..).map(ShardId).zip(page.parts()) {
            if let Some(slot) = self.slots.get_mut(part.slot) {
                slot.writing = true;
            }
            let shard = StoredShard {
                name: StoredName { namespace, group: key.group, hash: key.hash, shard },
                shards: u16::try_from(shards).unwrap_or(u16::MAX),
                parent: page.parent_hash,
                depth: page.depth,
                payload_bytes: page.payload_bytes,
                crc: part.crc,
            };
            effects.push(Effect::Write { slot: part.slot, shard });
        }
        self.writes.insert(id, WriteBehind { extents: vec![None; shards], pending: shards });
    }

    /// A demand has got these pages. Those that are not in the tier have shown that they are worth a write: it
    /// was not begun when they were sealed, or there were too many at once.
    pub(super) fn write_used(&mut self, ticket: Ticket, effects: &mut Vec<Effect>) {
        if !self.config.tier || !self.tier_writes {
            return;
        }
        let Some(op) = self.operations.get(&ticket) else {
            return;
        };
        let unwritten = |id: &PageId| {
            let page = self.index.pages.get(*id);
            page.is_some_and(|page| {
                page.state == PageState::Sealed && !page.writing && !self.stored.contains(&page.key)
            })
        };
        let used: Vec<PageId> = op.pages.iter().copied().filter(unwritten).collect();
        for id in used {
            if self.writes.len() >= self.config.tier_writes {
                break;
            }
            self.mark(Mark::WrittenOnUse);
            self.write_behind(id, effects);
        }
    }

    /// One shard is written, or is not going to be.
    pub(super) fn written(
        &mut self,
        at: SlotRef,
        extent: Option<ExtentId>,
        effects: &mut Vec<Effect>,
    ) -> Option<Outcome> {
        let slot = self.slots.get_mut(at).filter(|slot| slot.writing)?;
        slot.writing = false;
        let id = slot.page?;
        let shard = self.index.pages.get(id)?.each_shard().position(|p| p.is_some_and(|p| p.slot == at))?;
        let write = self.writes.get_mut(&id)?;
        write.extents[shard] = extent;
        write.pending -= 1;
        if write.pending == 0 {
            let write = self.writes.remove(&id)?;
            self.end_write(id, &write.extents, effects);
        }
        None
    }

    fn end_write(&mut self, id: PageId, extents: &[Option<ExtentId>], effects: &mut Vec<Effect>) {
        let Some(page) = self.index.pages.get_mut(id) else {
            return;
        };
        page.writing = false;
        let whole: Option<StoredParts> = extents
            .iter()
            .zip(page.each_shard())
            .map(|(extent, part)| Some(StoredPart { extent: (*extent)?, crc: part?.crc }))
            .collect();
        let (key, sealed) = (page.key, page.state == PageState::Sealed);
        let (parent_hash, depth, payload_bytes) = (page.parent_hash, page.depth, page.payload_bytes);
        match whole {
            Some(parts) if sealed && !self.stored.contains(&key) => {
                self.mark(Mark::Written);
                self.counters.written_pages += 1;
                self.stored.insert(key, StoredPage::new(parts, parent_hash, depth, payload_bytes));
            }
            whole => {
                self.mark(if whole.is_some() { Mark::ForgottenWhileWritten } else { Mark::WriteFailed });
                self.counters.dropped_writes += 1;
                effects.extend(extents.iter().flatten().map(|&extent| Effect::Erase { extent }));
            }
        }
        self.reconsider(id);
        self.free_condemned(id);
    }

    /// The page is not in the slower tier any more.
    pub(super) fn unstore(&mut self, key: &PageKey, effects: &mut Vec<Effect>) -> bool {
        if self.planted(Plant::KeepStored) {
            return false;
        }
        let page = self.stored.remove(key);
        let gone = page.is_some();
        self.erase(page, effects);
        self.retire_namespace(key.namespace);
        gone
    }

    pub(super) fn erase(&self, pages: impl IntoIterator<Item = StoredPage>, effects: &mut Vec<Effect>) {
        let parts = pages.into_iter().flat_map(|page| page.parts);
        effects.extend(parts.map(|part| Effect::Erase { extent: part.extent }));
    }

    /// What the tier says of itself and of what it holds.
    pub(super) fn tier_told(&mut self, event: Event<'_>, effects: &mut Vec<Effect>) -> Option<Outcome> {
        match event {
            Event::Found(found) => self.found(found, effects),
            Event::FoundAll => self.found_all(effects),
            Event::ExtentLost { name, extent } => {
                let key = self.key_of(&name)?;
                self.extent_lost(&key, extent, effects)
            }
            Event::ExtentMoved { name, from, to } => {
                match self.key_of(&name) {
                    Some(key) => self.extent_moved(&key, from, to, effects),
                    None => effects.push(Effect::Erase { extent: to }),
                }
                None
            }
            Event::TierState { reads, writes } => {
                if !(reads && writes) {
                    self.mark(Mark::TierImpaired);
                }
                (self.tier_reads, self.tier_writes) = (reads, writes);
                None
            }
            _ => None,
        }
    }

    /// The tier dropped a shard by itself: what is left of the page is of no use.
    fn extent_lost(&mut self, key: &PageKey, extent: ExtentId, effects: &mut Vec<Effect>) -> Option<Outcome> {
        let written = self.index.sealed(key).and_then(|id| self.writes.get_mut(&id));
        for lost in written.into_iter().flat_map(|write| &mut write.extents).filter(|e| **e == Some(extent)) {
            *lost = None;
        }
        if let Some(finding) = self.finding.as_mut() {
            finding.lost(key, extent);
        }
        let page = self.stored.get(key)?;
        if page.parts.iter().any(|part| part.extent == extent) {
            self.mark(Mark::ExtentLost);
            let page = self.stored.remove(key)?;
            let others = page.parts.iter().filter(|part| part.extent != extent);
            effects.extend(others.map(|part| Effect::Erase { extent: part.extent }));
            self.retire_namespace(key.namespace);
        }
        None
    }
}
