//! What an earlier run left in the slower tier: found shard by shard while this one serves already.
//!
//! A page can be had once all its shards are found. What is forgotten meanwhile must not come back with a shard
//! that is found later, so names are kept until the last one is.

use super::{Core, Outcome};
use crate::stored::{StoredPage, StoredPart, StoredParts};
use crate::{BlockHash, Effect, ExtentId, FoundShard, GroupId, Mark, NamespaceDigest, PageKey, StoredShard};
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

/// Names that are kept at most; with more of them whole namespaces are.
const MAX_FORGOTTEN: usize = 65_536;

/// A page of which some shards are missing.
#[derive(Clone, Debug)]
struct Partial {
    parent_hash: Option<BlockHash>,
    depth: u32,
    payload_bytes: u32,
    parts: SmallVec<[Option<StoredPart>; 2]>,
}

/// What is known while there is more to be found.
#[derive(Clone, Debug, Default)]
pub(super) struct Finding {
    partial: HashMap<PageKey, Partial>,
    forgotten: HashSet<(NamespaceDigest, GroupId, BlockHash)>,
    forgotten_namespaces: HashSet<NamespaceDigest>,
}

impl Finding {
    pub(super) fn has(&self, namespace: crate::NamespaceId) -> bool {
        self.partial.keys().any(|key| key.namespace == namespace)
    }

    /// A shard that was found is gone.
    pub(super) fn lost(&mut self, key: &PageKey, extent: ExtentId) {
        let parts = self.partial.get_mut(key).into_iter().flat_map(|page| &mut page.parts);
        parts.filter(|part| part.is_some_and(|part| part.extent == extent)).for_each(|part| *part = None);
    }

    fn is_forgotten(&self, shard: &StoredShard) -> bool {
        let name = shard.name;
        self.forgotten_namespaces.contains(&name.namespace)
            || self.forgotten.contains(&(name.namespace, name.group, name.hash))
    }
}

impl Core {
    /// A shard is there. The newest of a name comes first; others of that name are erased.
    pub(super) fn found(&mut self, found: &FoundShard, effects: &mut Vec<Effect>) -> Option<Outcome> {
        let FoundShard { shard, extent } = *found;
        let unwanted = self.finding.as_ref().is_none_or(|finding| finding.is_forgotten(&shard));
        if unwanted || shard.shards == 0 || shard.name.shard.0 >= shard.shards {
            self.mark(Mark::FoundForgotten);
            effects.push(Effect::Erase { extent });
            return None;
        }
        let namespace = self.intern(shard.name.namespace);
        let key = PageKey { namespace, group: shard.name.group, hash: shard.name.hash };
        if self.stored.contains(&key) {
            self.mark(Mark::FoundAgain);
            effects.push(Effect::Erase { extent });
            return None;
        }
        let part = StoredPart { extent, crc: shard.crc };
        if let Some(parts) = self.complete_found(key, &shard, part, effects) {
            self.mark(Mark::Found);
            self.counters.found_pages += 1;
            let (parent_hash, depth, payload_bytes) = (shard.parent, shard.depth, shard.payload_bytes);
            self.stored.insert(key, StoredPage::new(parts, parent_hash, depth, payload_bytes));
        }
        None
    }

    /// All parts of the page, if that was the last one.
    fn complete_found(
        &mut self,
        key: PageKey,
        shard: &StoredShard,
        part: StoredPart,
        effects: &mut Vec<Effect>,
    ) -> Option<StoredParts> {
        if shard.shards == 1 {
            return Some(StoredParts::from_iter([part]));
        }
        let finding = self.finding.as_mut()?;
        let fresh = || Partial {
            parent_hash: shard.parent,
            depth: shard.depth,
            payload_bytes: shard.payload_bytes,
            parts: SmallVec::from_elem(None, usize::from(shard.shards)),
        };
        let page = finding.partial.entry(key).or_insert_with(fresh);
        let same = (page.parent_hash, page.depth, page.payload_bytes, page.parts.len())
            == (shard.parent, shard.depth, shard.payload_bytes, usize::from(shard.shards));
        let place =
            page.parts.get_mut(usize::from(shard.name.shard.0)).filter(|place| same && place.is_none());
        let Some(place) = place else {
            effects.push(Effect::Erase { extent: part.extent });
            return None;
        };
        *place = Some(part);
        let whole: Option<StoredParts> = page.parts.iter().copied().collect();
        if whole.is_some() {
            finding.partial.remove(&key);
        }
        whole
    }

    /// There is no more to be found: pages that lack a shard are of no use.
    pub(super) fn found_all(&mut self, effects: &mut Vec<Effect>) -> Option<Outcome> {
        let finding = self.finding.take()?;
        let mut namespaces = HashSet::new();
        for (key, page) in finding.partial {
            self.mark(Mark::FoundPartly);
            namespaces.insert(key.namespace);
            effects.extend(page.parts.iter().flatten().map(|part| Effect::Erase { extent: part.extent }));
        }
        namespaces.into_iter().for_each(|namespace| self.retire_namespace(namespace));
        None
    }

    /// A page is forgotten: none of its shards may be found later.
    pub(super) fn forget_unfound(&mut self, key: &PageKey, effects: &mut Vec<Effect>) {
        let Some(&namespace) = self.digests.get(&key.namespace) else {
            return;
        };
        let Some(finding) = self.finding.as_mut() else {
            return;
        };
        if finding.forgotten.len() < MAX_FORGOTTEN {
            finding.forgotten.insert((namespace, key.group, key.hash));
        } else {
            finding.forgotten_namespaces.insert(namespace);
        }
        let page = finding.partial.remove(key);
        let parts = page.into_iter().flat_map(|page| page.parts).flatten();
        effects.extend(parts.map(|part| Effect::Erase { extent: part.extent }));
    }

    /// As [`Self::forget_unfound`], for a whole namespace. The tier must forget it for good: it may hold pages
    /// that no run of this process has found yet.
    pub(super) fn forget_namespace(&mut self, namespace: crate::NamespaceId, effects: &mut Vec<Effect>) {
        let Some(&digest) = self.digests.get(&namespace).filter(|_| self.config.tier) else {
            return;
        };
        if let Some(finding) = self.finding.as_mut() {
            finding.forgotten_namespaces.insert(digest);
            let gone = finding.partial.extract_if(|key, _| key.namespace == namespace);
            let parts = gone.flat_map(|(_, page)| page.parts).flatten();
            effects.extend(parts.map(|part| Effect::Erase { extent: part.extent }));
        }
        effects.push(Effect::ForgetNamespace { namespace: digest });
    }

    /// The tier has moved a shard. If nobody knows it any more the copy goes too.
    pub(super) fn extent_moved(
        &mut self,
        key: &PageKey,
        from: ExtentId,
        to: ExtentId,
        effects: &mut Vec<Effect>,
    ) {
        let written = self.index.sealed(key).and_then(|id| self.writes.get_mut(&id));
        let mut written = written.into_iter().flat_map(|write| write.extents.iter_mut().flatten());
        if let Some(extent) = written.find(|extent| **extent == from) {
            *extent = to;
            return;
        }
        let finding = self.finding.as_mut().and_then(|finding| finding.partial.get_mut(key));
        let partial = finding.into_iter().flat_map(|page| page.parts.iter_mut().flatten());
        let stored = self.stored.get_mut(key).into_iter().flat_map(|page| page.parts.iter_mut());
        match partial.chain(stored).find(|part| part.extent == from) {
            Some(part) => {
                part.extent = to;
                self.mark(Mark::ExtentMoved);
            }
            None => effects.push(Effect::Erase { extent: to }),
        }
    }

    /// The page of that name, if its namespace is known.
    pub(super) fn key_of(&self, name: &crate::StoredName) -> Option<PageKey> {
        let namespace = *self.namespaces.get(&name.namespace)?;
        Some(PageKey { namespace, group: name.group, hash: name.hash })
    }
}
