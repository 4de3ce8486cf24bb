//! What an earlier run of the manager left in the slower tier. It is found bit by bit, while this run serves.

use crate::content::{Key, checksum};
use crate::failure::Checked;
use crate::heap::Happening;
use crate::plan::EnginePlan;
use crate::rng::Rng;
use crate::world::World;
use orbitkv_core::{BlockHash, Event, FoundShard, GroupSpec, Rule, ShardId, StoredName, StoredShard};

/// Longest pause between two findings.
const PAUSE_US: u64 = 8_000;

impl World {
    /// Lets some of the engines have been here before.
    pub(crate) fn lay_out_the_past(&mut self) {
        if !self.plan.config.tier {
            return;
        }
        let engines = self.plan.engines.clone();
        let mut seen = Vec::new();
        for engine in &engines {
            // Engines of one namespace have the same pages.
            if self.rng.chance(60) && !seen.contains(&engine.namespace) {
                seen.push(engine.namespace);
                self.leave_pages_of(engine);
            }
        }
        let at = self.now_us + self.rng.below(20_000);
        self.heap.push(at, Happening::Finding);
    }

    fn leave_pages_of(&mut self, engine: &EnginePlan) {
        let chain: Vec<BlockHash> = self.universe.chain(&mut self.rng).to_vec();
        for group in &engine.groups {
            let count = self.rng.index(chain.len() + 1);
            for depth in 0..count {
                let parent = depth.checked_sub(1).map(|before| chain[before]);
                self.leave_page(engine, group, (chain[depth], parent, depth));
            }
        }
    }

    fn leave_page(
        &mut self,
        engine: &EnginePlan,
        group: &GroupSpec,
        (hash, parent, depth): (BlockHash, Option<BlockHash>, usize),
    ) {
        let key = Key { namespace: engine.namespace, group: group.group, hash };
        for shard in 0..group.shard_count {
            // A shard may have been lost, or be there in an older copy too.
            let copies = [1, 1, 1, 1, 1, 1, 2, 0][self.rng.index(8)];
            let words = key.words(shard);
            let name = StoredName { namespace: key.namespace, group: key.group, hash, shard: ShardId(shard) };
            let shard = StoredShard {
                name,
                shards: group.shard_count,
                parent: parent.filter(|_| group.rule == Rule::Prefix),
                depth: u32::try_from(depth).unwrap_or(0),
                payload_bytes: u32::try_from(group.page_bytes).unwrap_or(0),
                crc: checksum(&words),
            };
            for _ in 0..copies {
                let extent = self.disk.leave(name, words);
                let place = self.rng.index(self.findings.len() + 1);
                self.findings.insert(place, FoundShard { shard, extent });
            }
        }
    }

    /// One more shard is found, or all of them have been.
    pub(crate) fn find_one(&mut self) -> Checked {
        let Some(found) = self.findings.pop() else {
            return self.feed(Event::FoundAll);
        };
        let at = self.now_us + Rng::range(&mut self.rng, 1, PAUSE_US);
        self.heap.push(at, Happening::Finding);
        // One that rotted away, or was moved, since is not reported.
        if !self.disk.has(found.extent) {
            return Ok(());
        }
        self.feed(Event::Found(&found))
    }
}
