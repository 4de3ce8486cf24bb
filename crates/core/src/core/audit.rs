//! The core's own books, checked against each other. For tests: cost grows with everything there is.

use super::Core;
use super::timers::NEVER;
use crate::operation::Operation;
use crate::page::{Page, PageState};
use crate::policy::Policy;
use crate::slots::{Slot, SlotState};
use crate::{Phase, Ticket};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// A failed check, in words.
type Finding = Result<(), String>;

fn ensure(holds: bool, words: impl FnOnce() -> String) -> Finding {
    if holds { Ok(()) } else { Err(words()) }
}

impl Core {
    /// Compares ledger, slots, index, eviction order, leases, custody and timers with each other.
    ///
    /// # Errors
    /// The first contradiction, in words.
    pub fn audit(&self) -> Finding {
        self.audit_ledger()?;
        self.audit_memory()?;
        self.audit_pages()?;
        self.audit_custody()?;
        self.audit_scrub()?;
        self.audit_tier()?;
        self.audit_queue()
    }

    fn audit_ledger(&self) -> Finding {
        let charged: u64 = self.operations.iter().map(|(_, op)| op.bytes()).sum();
        let reserved = self.ledger.reserved_bytes();
        ensure(self.ledger.balanced(), || "ledger accounts do not add up".into())?;
        ensure(charged == reserved, || format!("operations own {charged} bytes, the ledger {reserved}"))?;
        ensure(reserved <= self.config.query_budget_bytes, || format!("{reserved} bytes are over budget"))?;
        for instance in self.operations.iter().map(|(_, op)| op.instance) {
            let own = self.ledger.instance_bytes(instance);
            let limit = self.config.query_instance_budget_bytes;
            ensure(own <= limit, || format!("{instance:?} owns {own} bytes, its budget is {limit}"))?;
        }
        Ok(())
    }

    fn audit_memory(&self) -> Finding {
        let bytes: u64 = self.slots.segments.values().map(|s| s.bytes).sum();
        ensure(bytes == self.slots.bytes, || "segment bytes do not add up".into())?;
        ensure(self.slots.tallied(), || "segments of the classes do not add up".into())?;
        ensure(bytes <= self.config.pool_bytes, || format!("{bytes} bytes of segments are over the pool"))?;
        let (mut used, mut filling) = (0, 0);
        for (at, slot) in self.slots.used() {
            let slot_bytes = self.slots.segments.get(&at.segment).map_or(0, |s| s.class.slot_bytes);
            used += slot_bytes;
            if matches!(slot.state, SlotState::Filling(_) | SlotState::Quarantined(_)) {
                filling += slot_bytes;
            }
            let page = slot.page.and_then(|id| self.index.pages.get(id));
            let linked = page.is_some_and(|p| p.parts().any(|part| part.slot == at));
            ensure(linked, || format!("{at:?} is in use and belongs to no page"))?;
        }
        ensure(used == self.slots.used_bytes, || "used bytes do not add up".into())?;
        ensure(filling == self.filling_bytes, || "filling bytes do not add up".into())
    }

    fn audit_pages(&self) -> Finding {
        let mut leases: BTreeMap<_, u32> = BTreeMap::new();
        let planned = |op: &'_ Operation| {
            op.loading.iter().flat_map(|l| &l.plan).filter_map(|p| p.page()).collect::<Vec<_>>()
        };
        for page in self.operations.iter().flat_map(|(_, op)| op.pages.iter().copied().chain(planned(op))) {
            *leases.entry(page).or_default() += 1;
        }
        let mut children: HashMap<_, u32> = HashMap::new();
        let linked = self
            .index
            .pages
            .iter()
            .map(|(_, page)| page)
            .filter(|page| !matches!(page.state, PageState::Condemned | PageState::Spare));
        for parent in linked.filter_map(Page::parent) {
            *children.entry(parent).or_default() += 1;
        }
        let mut candidates = 0;
        for (id, page) in self.index.pages.iter() {
            let seen = self.index.sealed(&page.key) == Some(id);
            let sealed = page.state == PageState::Sealed;
            ensure(seen == sealed, || format!("{:?} is {:?}, in the index: {seen}", page.key, page.state))?;
            let held = leases.remove(&id).unwrap_or(0);
            let usage = self.index.pages.usage(id).copied().unwrap_or_default();
            ensure(held == usage.leases, || {
                format!("{:?} counts {} leases, has {held}", page.key, usage.leases)
            })?;
            let behind = if sealed { children.remove(&(page.key, page.depth)).unwrap_or(0) } else { 0 };
            ensure(behind == usage.children, || {
                format!("{:?} counts {} children, has {behind}", page.key, usage.children)
            })?;
            for part in page.parts() {
                let slot = self.slots.get(part.slot);
                ensure(slot.is_some_and(|s| s.page == Some(id)), || format!("{:?} lost {part:?}", page.key))?;
                let resident = slot.is_some_and(|s| s.state == SlotState::Resident);
                ensure(resident || !sealed, || format!("{:?} is visible and not resident", page.key))?;
            }
            if let Some(victim) = self.candidate(id) {
                candidates += 1;
                ensure(self.policy.contains(victim), || format!("{:?} cannot be evicted", page.key))?;
            }
        }
        ensure(children == self.index.orphans, || "orphans do not add up".into())?;
        ensure(leases.is_empty(), || "a leased page does not exist".into())?;
        ensure(candidates == self.policy.len(), || "the policy holds pages that must stay".into())?;
        ensure(self.index.sealed_ids().all(|id| self.index.pages.contains(id)), || {
            "the index names a page that does not exist".into()
        })
    }

    fn audit_custody(&self) -> Finding {
        let mut readers: BTreeMap<_, u32> = BTreeMap::new();
        let mut owing: BTreeMap<_, usize> = BTreeMap::new();
        for (_, op) in self.operations.iter() {
            for owed in &op.owing {
                *owing.entry(owed.session).or_default() += 1;
                for page in op.pages.iter().filter_map(|id| self.index.pages.get(*id)) {
                    let shard = usize::from(owed.rank) % page.shards();
                    if let Some(part) = page.part(shard) {
                        *readers.entry(part.slot).or_default() += 1;
                    }
                }
            }
        }
        let mut writing: BTreeMap<_, usize> = BTreeMap::new();
        for (at, slot) in self.slots.used() {
            let want = readers.remove(&at).unwrap_or(0);
            ensure(slot.readers == want, || format!("{at:?} counts {} readers, has {want}", slot.readers))?;
            if let SlotState::Filling(by) | SlotState::Quarantined(by) = slot.state {
                *writing.entry(by).or_default() += 1;
            }
        }
        ensure(readers.is_empty(), || "somebody reads a slot that is not in use".into())?;
        for (id, session) in &self.sessions {
            let w = writing.remove(id).unwrap_or(0);
            let o = owing.remove(id).unwrap_or(0);
            ensure(session.writing == w && session.owing == o, || format!("{id:?} miscounts its custody"))?;
        }
        ensure(writing.is_empty() && owing.is_empty(), || "custody of a forgotten session".into())
    }

    /// What the check of memory reads.
    fn audit_scrub(&self) -> Finding {
        let mut counts = self.scrub.pages.clone();
        for (at, slot) in self.slots.used().filter(|(_, slot)| slot.scrubbing) {
            let count = slot.page.and_then(|id| counts.get_mut(&id)).filter(|count| **count > 0);
            let resident = slot.state == SlotState::Resident;
            ensure(count.is_some() && resident, || format!("{at:?} is read by a check that nobody began"))?;
            count.into_iter().for_each(|count| *count -= 1);
        }
        let unread = counts.iter().find(|(_, count)| **count > 0);
        ensure(unread.is_none(), || format!("{unread:?} is to be checked, and no slot of it is read"))
    }

    /// Reads and writes of the slower tier, and who waits or pays for them.
    fn audit_tier(&self) -> Finding {
        let in_state = |id, of: &dyn Fn(&Slot) -> bool| {
            let parts = self.index.pages.get(id).into_iter().flat_map(Page::parts);
            parts.filter_map(|p| self.slots.get(p.slot)).filter(|s| of(s)).count()
        };
        let mut waiting: BTreeMap<Ticket, usize> = BTreeMap::new();
        let mut lingering: BTreeMap<Ticket, (u32, u64)> = BTreeMap::new();
        for (&id, reading) in &self.reads {
            let slots = in_state(id, &|slot| slot.state == SlotState::Reading);
            ensure(slots == reading.pending, || {
                format!("{id:?} waits for {} reads, has {slots}", reading.pending)
            })?;
            reading.waiters.iter().for_each(|ticket| *waiting.entry(*ticket).or_default() += 1);
            for (ticket, bytes) in &reading.lingerers {
                let (reads, owed) = lingering.entry(*ticket).or_default();
                (*reads, *owed) = (*reads + 1, *owed + bytes);
            }
        }
        for (ticket, op) in self.operations.iter() {
            let (waits, lingers) =
                (waiting.remove(&ticket).unwrap_or(0), lingering.remove(&ticket).unwrap_or_default());
            let pending = op.loading.as_ref().map_or(0, |loading| loading.pending);
            ensure(pending == waits, || format!("{ticket:?} counts {pending} reads, waits for {waits}"))?;
            ensure((op.lingering, op.lingering_bytes) == lingers, || {
                format!("{ticket:?} does not pay for {lingers:?} reads and bytes")
            })?;
        }
        ensure(waiting.is_empty() && lingering.is_empty(), || "a read for an operation that is over".into())?;
        let reading = self.index.pages.iter().filter(|(_, page)| page.state == PageState::Reading);
        for (id, page) in reading {
            let known = self.index.reading.get(&page.key) == Some(&id) && self.reads.contains_key(&id);
            ensure(known, || format!("nobody reads {:?}", page.key))?;
        }
        for (id, page) in self.index.pages.iter() {
            let slots = in_state(id, &|slot| slot.writing);
            let writes = self.writes.contains_key(&id);
            ensure((slots > 0, page.writing) == (writes, writes), || {
                format!("{:?} is written: {writes}, {slots} slots say so", page.key)
            })?;
        }
        Ok(())
    }

    fn audit_queue(&self) -> Finding {
        for (ticket, op) in self.operations.iter() {
            let waiting = op.phase == Phase::Waiting;
            let queued = op
                .queued
                .is_some_and(|at| self.queue.contains(&(self.place_in_queue(at, op.arrival), ticket)));
            ensure(waiting == queued, || format!("{ticket:?} is {:?}, queued: {queued}", op.phase))?;
            let timed = self.timers.contains(&(op.expires_at, ticket));
            ensure(timed == (op.expires_at != NEVER), || format!("{ticket:?} lost its timer"))?;
        }
        let stale = self
            .waiting_since
            .keys()
            .find(|ticket| self.operations.get(ticket).is_none_or(|op| op.phase != Phase::Waiting));
        ensure(stale.is_none(), || format!("{stale:?} waits no more, and its wait goes on"))?;
        let waiting = self.operations_in(Phase::Waiting);
        ensure(self.queue.len() == waiting, || "the queue holds an operation that does not wait".into())
    }
}
