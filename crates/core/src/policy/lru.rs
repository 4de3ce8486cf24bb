//! Least recently used leaf first.

use super::{Policy, Pool, Victim};
use crate::slab::PageId;
use std::collections::{BTreeMap, BTreeSet};

/// Leaves of each pool by last use. Only leaves are here, so a chain loses its tail before its head.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeafLru {
    pools: BTreeMap<Pool, BTreeSet<(u64, PageId)>>,
    len: usize,
}

impl Policy for LeafLru {
    fn add(&mut self, victim: Victim) {
        if self.pools.entry(victim.pool).or_default().insert((victim.last_use, victim.page)) {
            self.len += 1;
        }
    }

    fn remove(&mut self, victim: Victim) {
        let Some(leaves) = self.pools.get_mut(&victim.pool) else {
            return;
        };
        if leaves.remove(&(victim.last_use, victim.page)) {
            self.len -= 1;
        }
        if leaves.is_empty() {
            self.pools.remove(&victim.pool);
        }
    }

    fn victim(&self, pool: Pool) -> Option<Victim> {
        let (last_use, page) = *self.pools.get(&pool)?.first()?;
        Some(Victim { pool, page, last_use })
    }

    fn victim_elsewhere(&self, pool: Pool) -> Option<Victim> {
        self.pools.keys().filter(|p| **p != pool).filter_map(|p| self.victim(*p)).min_by_key(|v| v.last_use)
    }

    fn contains(&self, victim: Victim) -> bool {
        self.pools.get(&victim.pool).is_some_and(|l| l.contains(&(victim.last_use, victim.page)))
    }

    fn len(&self) -> usize {
        self.len
    }
}
