//! Pages: sealed, leased, condemned, gone.

use super::{Core, Outcome};
use crate::operation::Operation;
use crate::page::{Page, PageState, Usage};
use crate::policy::{Policy, Pool, Victim};
use crate::slab::PageId;
use crate::slots::SlotState;
use crate::{BlockHash, Effect, GroupId, Mark, PageKey, Plant, Refusal, SessionId, SlotRef};
use hashbrown::hash_map::Entry;

impl Core {
    /// The page as a candidate for eviction, if it is one.
    pub(super) fn candidate(&self, id: PageId) -> Option<Victim> {
        let page = self.index.pages.get(id)?;
        let usage = self.index.pages.usage(id)?;
        if page.state != PageState::Sealed || usage.leases > 0 || usage.children > 0 || page.writing {
            return None;
        }
        if self.is_scrubbed(id) {
            return None;
        }
        self.as_victim(id, page)
    }

    pub(super) fn as_victim(&self, id: PageId, page: &Page) -> Option<Victim> {
        let at = page.parts().next()?.slot;
        let slot_bytes = self.slots.segments.get(&at.segment)?.class.slot_bytes;
        let pool = Pool { namespace: page.key.namespace, slot_bytes };
        let last_use = self.index.pages.usage(id)?.last_use;
        Some(Victim { pool, page: id, last_use })
    }

    /// Whether an operation leases the page.
    pub(super) fn is_leased(&self, id: PageId) -> bool {
        self.index.pages.usage(id).is_some_and(|usage| usage.leases > 0)
    }

    /// Puts the page before or behind the policy's door, as its state says.
    pub(super) fn reconsider(&mut self, id: PageId) {
        if let Some(victim) = self.candidate(id) {
            self.policy.add(victim);
        }
    }

    pub(super) fn withdraw(&mut self, id: PageId) {
        if let Some(victim) = self.candidate(id) {
            self.policy.remove(victim);
        }
    }

    /// Marks the page as just used.
    pub(super) fn touch(&mut self, id: PageId) {
        self.withdraw(id);
        self.clock += 1;
        if let Some(usage) = self.index.pages.usage_mut(id) {
            usage.last_use = self.clock;
        }
        self.reconsider(id);
    }

    pub(super) fn take_lease(&mut self, id: PageId) {
        // Nearly all are in use or not the last of a chain: no candidates.
        if self.index.pages.usage(id).is_some_and(|usage| usage.leases == 0 && usage.children == 0) {
            self.withdraw(id);
        }
        self.clock += 1;
        if let Some(usage) = self.index.pages.usage_mut(id) {
            usage.last_use = self.clock;
            usage.leases += 1;
        }
    }

    pub(super) fn drop_lease(&mut self, id: PageId) {
        let Some(usage) = self.index.pages.usage_mut(id) else {
            return;
        };
        usage.leases -= 1;
        self.reconsider(id);
        self.free_condemned(id);
    }

    /// The leases of an operation. With many of them open, pages that one has long leased are in no cache of the
    /// processor, and each waits for memory: counted down side by side first, these waits overlap.
    pub(super) fn drop_leases(&mut self, ids: &[PageId]) {
        let mut settled = !self.planted(Plant::FreeScrubbed);
        for id in ids {
            if let Some(usage) = self.index.pages.usage_mut(*id) {
                usage.leases -= 1;
                // Of what is still leased, or visible and not the last of its chain, nothing comes free.
                settled &= usage.leases > 0 || usage.children > 0;
            }
        }
        if settled {
            return;
        }
        for id in ids.iter().rev() {
            self.reconsider(*id);
            self.free_condemned(*id);
        }
    }

    /// Makes a complete page visible, or frees it if somebody was faster.
    pub(super) fn seal(&mut self, id: PageId) {
        let Some(page) = self.index.pages.get(id) else {
            return;
        };
        let key = page.key;
        if self.index.sealed(&key).is_some() {
            self.mark(Mark::DuplicateCommit);
            self.counters.duplicate_pages += 1;
            return self.condemn(id);
        }
        self.mark(Mark::Sealed);
        self.counters.committed_pages += u64::from(key.group != GroupId::PROBE);
        self.remove_pending(id);
        self.publish(id);
    }

    /// A page that was read when somebody had just saved it: leased by whoever waited, seen by nobody else.
    pub(super) fn spare(&mut self, id: PageId) {
        let Some(page) = self.index.pages.get_mut(id) else {
            return;
        };
        page.state = PageState::Spare;
        if let Some(parent) = page.parent() {
            self.unlink(parent);
        }
    }

    /// Puts a whole page into the index, in which its key is not.
    pub(super) fn publish(&mut self, id: PageId) {
        let Some(page) = self.index.pages.get(id) else {
            return;
        };
        let (key, depth) = (page.key, page.depth);
        self.clock += 1;
        self.index.publish(id);
        let children = self.index.orphans.remove(&(key, depth)).unwrap_or(0);
        if children > 0 {
            self.mark(Mark::SealedAfterChild);
        }
        if let Some(page) = self.index.pages.get_mut(id) {
            page.state = PageState::Sealed;
            if page.saver().is_some() {
                page.origin = None;
            }
        }
        if let Some(usage) = self.index.pages.usage_mut(id) {
            usage.children = children;
            usage.last_use = self.clock;
        }
        self.reconsider(id);
    }

    /// Counts a page behind its parent, which is no leaf from now on.
    pub(super) fn link(&mut self, parent: (PageKey, u32)) {
        let Some(above) = self.index.sealed_at(&parent) else {
            *self.index.orphans.entry(parent).or_default() += 1;
            return;
        };
        self.withdraw(above);
        if let Some(usage) = self.index.pages.usage_mut(above) {
            usage.children += 1;
        }
    }

    fn unlink(&mut self, parent: (PageKey, u32)) {
        let Some(above) = self.index.sealed_at(&parent) else {
            if let Entry::Occupied(mut orphans) = self.index.orphans.entry(parent) {
                *orphans.get_mut() -= 1;
                if *orphans.get() == 0 {
                    orphans.remove();
                }
            }
            return;
        };
        if let Some(usage) = self.index.pages.usage_mut(above) {
            usage.children -= 1;
        }
        if self.candidate(above).is_some() {
            self.mark(Mark::ParentBecameLeaf);
        }
        self.reconsider(above);
    }

    fn remove_pending(&mut self, id: PageId) {
        let Some(page) = self.index.pages.get(id) else {
            return;
        };
        let Some(saver) = page.saver() else {
            return;
        };
        let place = (saver.instance, page.key);
        if self.index.pending.get(&place) == Some(&id) {
            self.index.pending.remove(&place);
        }
    }

    /// Takes the page out of sight for good. Memory goes as soon as leases and custody allow.
    pub(super) fn condemn(&mut self, id: PageId) {
        self.withdraw(id);
        self.remove_pending(id);
        let Some(page) = self.index.pages.get_mut(id) else {
            return;
        };
        let was = std::mem::replace(&mut page.state, PageState::Condemned);
        let (key, depth, parent) = (page.key, page.depth, page.parent());
        let complete = usize::from(page.committed) == page.shards();
        let leased = self.is_leased(id);
        let children = self.index.pages.usage_mut(id).map_or(0, |usage| std::mem::take(&mut usage.children));
        match was {
            PageState::Condemned => return,
            // It has left the chain already.
            PageState::Spare => return self.free_condemned(id),
            // Complete, but somebody was faster: a duplicate, counted as such.
            PageState::Filling if complete => {}
            PageState::Filling => self.counters.aborted_pages += u64::from(key.group != GroupId::PROBE),
            PageState::Reading => {
                self.index.reading.remove(&key);
            }
            PageState::Sealed => {
                self.index.hide(id);
                if children > 0 {
                    self.index.orphans.insert((key, depth), children);
                }
            }
        }
        if leased {
            self.mark(Mark::CondemnedWhileLeased);
        }
        if let Some(parent) = parent {
            self.unlink(parent);
        }
        self.free_condemned(id);
    }

    /// Frees the slots of a condemned page that nobody leases or touches; the page goes with the last.
    pub(super) fn free_condemned(&mut self, id: PageId) {
        if self.planted(Plant::FreeScrubbed) {
            self.abandon_scrub(id);
        }
        let leased = self.is_leased(id);
        let Some(page) = self.index.pages.get_mut(id) else {
            return;
        };
        if !matches!(page.state, PageState::Condemned | PageState::Spare) || leased {
            return;
        }
        for shard in 0..page.shards() {
            let Some(at) = page.part(shard).map(|part| part.slot) else {
                continue;
            };
            let untouched = self.slots.get(at).is_some_and(|slot| {
                let touched = slot.readers > 0 || slot.writing || slot.scrubbing;
                slot.state == SlotState::Resident && !touched
            });
            if untouched {
                self.slots.free(at);
                page.set_part(at, None);
            }
        }
        if page.parts().next().is_none() {
            let ahead = page.take_ahead_bytes();
            self.index.pages.remove(id);
            if ahead > 0 {
                self.mark(Mark::AheadUnused);
                self.counters.ahead_unused_bytes += ahead;
            }
        }
    }

    /// A worker read bytes that do not match their checksum.
    pub(super) fn bad_page(&mut self, session: SessionId, at: SlotRef) -> Result<(), Refusal> {
        let namespace = self.namespace_of(session)?;
        let Some(id) = self.slots.get(at).and_then(|s| s.page) else {
            return Ok(());
        };
        let sealed = self.index.pages.get(id).is_some_and(|p| {
            p.key.namespace == namespace && matches!(p.state, PageState::Sealed | PageState::Spare)
        });
        if sealed {
            self.mark(Mark::BadPage);
            self.counters.bad_pages += 1;
            self.condemn(id);
        }
        Ok(())
    }

    pub(super) fn forget(
        &mut self,
        session: SessionId,
        group: GroupId,
        hashes: &[BlockHash],
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let namespace = self.namespace_of(session)?;
        self.check_count(hashes.len())?;
        let spares = self.spares();
        for &hash in hashes {
            let key = PageKey { namespace, group, hash };
            let resident = [self.index.sealed(&key), self.index.reading.get(&key).copied()];
            let mut known = self.unstore(&key, effects);
            self.forget_unfound(&key, effects);
            let second = spares.iter().filter(|(of, _)| *of == key).map(|(_, id)| *id);
            for id in resident.into_iter().flatten().chain(second) {
                known = true;
                self.condemn(id);
            }
            self.counters.dropped_pages += u64::from(known && group != GroupId::PROBE);
        }
        Ok(())
    }

    /// Second copies of pages, which only those see that lease them: a preparation may, and claim it later.
    fn spares(&self) -> Vec<(PageKey, PageId)> {
        let planned = |op: &Operation| {
            let plan = op.loading.as_ref().map_or(&[][..], |loading| &loading.plan);
            plan.iter().filter_map(|planned| planned.page()).collect::<Vec<_>>()
        };
        let leased = self.operations.iter().flat_map(|(_, op)| op.pages.iter().copied().chain(planned(op)));
        let spare = |id: PageId| {
            let page = self.index.pages.get(id)?;
            (page.state == PageState::Spare).then_some((page.key, id))
        };
        let mut spares: Vec<_> = leased.filter_map(spare).collect();
        spares.sort_unstable();
        spares
    }

    /// Pages being saved count too: their bytes were computed before the reset.
    pub(super) fn reset(&mut self, session: SessionId, effects: &mut Vec<Effect>) -> Result<(), Refusal> {
        let namespace = self.namespace_of(session)?;
        self.mark(Mark::Reset);
        self.condemn_all(|page, _| page.key.namespace == namespace);
        if !self.planted(Plant::KeepStored) {
            let stored = self.stored.remove_namespace(namespace);
            self.erase(stored, effects);
            self.forget_namespace(namespace, effects);
        }
        Ok(())
    }

    pub(super) fn drop_unleased(&mut self) -> Option<Outcome> {
        self.condemn_all(|page, usage| page.state == PageState::Sealed && usage.leases == 0 && !page.writing);
        None
    }

    fn condemn_all(&mut self, which: impl Fn(&Page, &Usage) -> bool) {
        let all = self.index.pages.iter();
        let which = |id, page| self.index.pages.usage(id).is_some_and(|usage| which(page, usage));
        let ids: Vec<_> = all.filter(|(id, page)| which(*id, page)).map(|(id, p)| (id, p.state)).collect();
        for (id, state) in ids {
            self.counters.dropped_pages += u64::from(state == PageState::Sealed);
            self.condemn(id);
        }
    }

    fn namespace_of(&self, session: SessionId) -> Result<crate::NamespaceId, Refusal> {
        let instance = self.session(session)?.instance;
        self.instances.get(&instance).map(|i| i.namespace).ok_or(Refusal::UnknownSession)
    }
}
