//! What is in the slower tier, and what is on its way there or back.

use super::Model;
use crate::content::Key;
use crate::failure::{Checked, Checker, ensure, fail};
use orbitkv_core::{ExtentId, FoundShard, NamespaceDigest, PagePart, ShardId, SlotRef, StoredName};
use std::collections::{BTreeMap, BTreeSet};

/// A page that is being written: its shards by slot.
#[derive(Clone, Debug)]
struct Write {
    key: Key,
    shards: BTreeMap<SlotRef, (usize, u64)>,
    extents: Vec<Option<(ExtentId, u64)>>,
    pending: usize,
    forgotten: bool,
}

/// A page that is being read.
#[derive(Clone, Debug)]
struct Read {
    key: Key,
    parts: Vec<PagePart>,
    pending: Vec<SlotRef>,
    failed: bool,
    /// Nobody is to wait for it.
    overdue: bool,
    forgotten: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Tier {
    stored: BTreeMap<Key, Vec<(ExtentId, u64)>>,
    /// Pages of an earlier run of which shards may still be found.
    partial: BTreeMap<Key, BTreeMap<u16, (ExtentId, u64)>>,
    found_all: bool,
    /// What must not be found any more.
    forgotten: BTreeSet<Key>,
    forgotten_namespaces: BTreeSet<NamespaceDigest>,
    unreadable: bool,
    writes: Vec<Write>,
    reads: Vec<Read>,
}

impl Tier {
    /// Whether a page can be had by a read.
    pub(super) fn has(&self, key: &Key) -> bool {
        match self.reads.iter().find(|r| r.key == *key && !r.forgotten) {
            Some(read) => !read.overdue,
            None => !self.unreadable && self.stored.contains_key(key),
        }
    }

    /// Bytes of a page in memory are bad: what is being written of them must not be read.
    pub(super) fn spoil(&mut self, namespace: NamespaceDigest, slot: SlotRef) {
        let of = |w: &&mut Write| w.key.namespace == namespace && w.shards.contains_key(&slot);
        self.writes.iter_mut().filter(of).for_each(|w| w.forgotten = true);
    }

    /// As above, whoever found it.
    pub(super) fn spoil_any(&mut self, slot: SlotRef) {
        let of = |w: &&mut Write| w.shards.contains_key(&slot);
        self.writes.iter_mut().filter(of).for_each(|w| w.forgotten = true);
    }

    /// Whether a write reads that slot, or another shard of its page.
    pub(super) fn writes_from(&self, slot: SlotRef) -> bool {
        self.writes.iter().any(|w| w.shards.contains_key(&slot))
    }

    /// Nothing of that page may be found.
    pub(super) fn forget_page(&mut self, key: Key) {
        self.forgotten.insert(key);
        self.forget(|other| *other == key);
    }

    /// As above, of all pages of a namespace.
    pub(super) fn forget_namespace(&mut self, namespace: NamespaceDigest) {
        self.forgotten_namespaces.insert(namespace);
        self.forget(|key| key.namespace == namespace);
    }

    /// A shard of an earlier run is found.
    pub(super) fn found(&mut self, found: &FoundShard) {
        let StoredName { namespace, group, hash, shard } = found.shard.name;
        let key = Key { namespace, group, hash };
        let forgotten = self.forgotten.contains(&key) || self.forgotten_namespaces.contains(&namespace);
        if self.found_all || forgotten || self.stored.contains_key(&key) {
            return;
        }
        let parts = self.partial.entry(key).or_default();
        parts.entry(shard.0).or_insert((found.extent, found.shard.crc));
        if parts.len() == usize::from(found.shard.shards) {
            let parts = self.partial.remove(&key).unwrap_or_default();
            self.stored.insert(key, parts.into_values().collect());
        }
    }

    pub(super) fn found_all(&mut self) {
        self.found_all = true;
        self.partial.clear();
    }

    pub(super) fn moved(&mut self, from: ExtentId, to: ExtentId) {
        let stored = self.stored.values_mut().flatten();
        let partial = self.partial.values_mut().flat_map(BTreeMap::values_mut);
        let written = self.writes.iter_mut().flat_map(|write| &mut write.extents).flatten();
        stored.chain(partial).chain(written).filter(|(e, _)| *e == from).for_each(|(e, _)| *e = to);
    }

    pub(super) fn set_readable(&mut self, readable: bool) {
        self.unreadable = !readable;
    }

    pub(super) fn pages(&self) -> usize {
        self.stored.len()
    }

    pub(super) fn inflight(&self) -> (usize, usize) {
        (self.writes.len(), self.reads.len())
    }

    /// Nothing of these pages may come back.
    pub(super) fn forget(&mut self, which: impl Fn(&Key) -> bool) {
        self.stored.retain(|key, _| !which(key));
        self.partial.retain(|key, _| !which(key));
        self.writes.iter_mut().filter(|w| which(&w.key)).for_each(|w| w.forgotten = true);
        self.reads.iter_mut().filter(|r| which(&r.key)).for_each(|r| r.forgotten = true);
    }
}

impl Model {
    /// Extents of everything that is stored.
    pub(crate) fn stored_parts(&self) -> usize {
        let partial = self.tier.partial.values().map(BTreeMap::len).sum::<usize>();
        self.tier.stored.values().map(Vec::len).sum::<usize>() + partial
    }

    /// The core has a slot written: it must hold a shard of a page that is committed in full.
    pub(super) fn write_begins(&mut self, slot: SlotRef, shard: ShardId, crc: u64) -> Checked {
        let shard = usize::from(shard.0);
        let of = |parts: &&Vec<PagePart>| parts.get(shard).is_some_and(|p| p.slot == slot && p.crc == crc);
        let mut all = self.complete.iter().flat_map(|(key, all)| all.iter().map(move |parts| (key, parts)));
        let Some((key, parts)) = all.find(|(_, parts)| of(parts)) else {
            return fail(Checker::Bytes, format!("{slot:?} is written and holds no committed page"));
        };
        if !self.tier.writes.iter().any(|w| w.shards.contains_key(&slot)) {
            let stored = self.tier.stored.contains_key(key);
            ensure(!stored, Checker::Model, || format!("{key:?} is written again"))?;
            let shards = parts.iter().enumerate().map(|(i, part)| (part.slot, (i, part.crc))).collect();
            let (extents, pending) = (vec![None; parts.len()], parts.len());
            self.tier.writes.push(Write { key: *key, shards, extents, pending, forgotten: false });
        }
        Ok(())
    }

    /// A write has ended.
    pub(super) fn written(&mut self, slot: SlotRef, extent: Option<ExtentId>) {
        let Some(at) = self.tier.writes.iter().position(|w| w.shards.contains_key(&slot)) else {
            return;
        };
        let write = &mut self.tier.writes[at];
        let (shard, crc) = write.shards[&slot];
        write.extents[shard] = extent.map(|extent| (extent, crc));
        write.pending -= 1;
        if write.pending == 0 {
            let write = self.tier.writes.swap_remove(at);
            let whole: Option<Vec<_>> = write.extents.into_iter().collect();
            if let Some(whole) = whole.filter(|_| !write.forgotten) {
                self.tier.stored.entry(write.key).or_insert(whole);
            }
        }
    }

    /// The core has a slot filled: from where the page of that slot is stored.
    pub(super) fn read_begins(&mut self, slot: SlotRef, extent: ExtentId, crc: u64) -> Checked {
        let of = |(_, parts): &(&Key, &Vec<(ExtentId, u64)>)| parts.contains(&(extent, crc));
        let Some((&key, parts)) = self.tier.stored.iter().find(of) else {
            return fail(Checker::Bytes, format!("{extent:?} is read and is not stored"));
        };
        let shards = parts.len();
        let part = PagePart { slot, crc };
        match self.tier.reads.iter_mut().find(|r| r.key == key && r.parts.len() < shards) {
            Some(read) => {
                ensure(parts[read.parts.len()].0 == extent, Checker::Bytes, || {
                    format!("{extent:?} is read as another shard")
                })?;
                read.parts.push(part);
                read.pending.push(slot);
            }
            None => {
                let twice = self.tier.reads.iter().any(|r| r.key == key && !r.forgotten);
                ensure(!twice && parts[0].0 == extent, Checker::Model, || format!("{key:?} is read twice"))?;
                let (parts, pending) = (vec![part], vec![slot]);
                let (failed, overdue, forgotten) = (false, false, false);
                self.tier.reads.push(Read { key, parts, pending, failed, overdue, forgotten });
            }
        }
        Ok(())
    }

    /// A read has ended. The page is there if every shard is good and it was not forgotten.
    pub(super) fn read_ended(&mut self, slot: SlotRef, good: bool) {
        let Some(at) = self.tier.reads.iter().position(|r| r.pending.contains(&slot)) else {
            return;
        };
        let read = &mut self.tier.reads[at];
        read.pending.retain(|s| *s != slot);
        read.failed |= !good;
        if read.pending.is_empty() {
            let read = self.tier.reads.swap_remove(at);
            match (read.forgotten, read.failed) {
                (true, _) => {}
                (false, true) => {
                    self.tier.stored.remove(&read.key);
                }
                (false, false) => self.complete.entry(read.key).or_default().push(read.parts),
            }
        }
    }

    /// The tier says that it takes too long.
    pub(super) fn read_overdue(&mut self, slot: SlotRef) {
        let late = self.tier.reads.iter_mut().filter(|read| read.pending.contains(&slot));
        late.for_each(|read| read.overdue = true);
    }

    /// The tier dropped an extent: the page is not stored any more.
    pub(super) fn extent_lost(&mut self, extent: ExtentId) {
        self.tier.stored.retain(|_, parts| parts.iter().all(|(e, _)| *e != extent));
        self.tier.partial.values_mut().for_each(|parts| parts.retain(|_, (e, _)| *e != extent));
        let written = self.tier.writes.iter_mut().flat_map(|write| &mut write.extents);
        for lost in written.filter(|e| e.is_some_and(|(e, _)| e == extent)) {
            *lost = None;
        }
    }
}
