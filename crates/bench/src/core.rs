//! The core alone, on one thread: no sockets, no clock.

use crate::mix::{MIX, Turn};
use crate::report::{Row, Target};
use crate::rounds::median_of_five;
use anyhow::{Context, Result, bail, ensure};
use orbitkv_core::{
    BlockHash, ClientId, Config, Core, Demand, Effect, Event, Grant, GroupId, GroupSpec, InstanceId, Micros,
    NamespaceDigest, OperationId, OperationOutcome, Revision, Role, SaveRequest, SegmentId, SessionId,
    SessionSpec, SlotRef,
};
use std::collections::VecDeque;
use std::time::Instant;

const SCHEDULER: SessionId = SessionId(1);
const WORKER: SessionId = SessionId(2);
const GROUP: GroupId = GroupId(0);
const PAGE_BYTES: u64 = 4096;
/// Payload and the header in front of it.
const SLOT_BYTES: u64 = 8192;

/// Pages of the index, and of one query of the mix.
const PAGES: usize = 100_000;
const QUERY_PAGES: usize = 16;
/// Slots beside those: what the mix saves stays a while and is evicted before any page that is queried.
const SPARE_SLOTS: usize = 4_096;
const MIX_EVENTS: usize = 400_000;
const LARGE_QUERY: usize = 1_024;
const LARGE_ROUNDS: usize = 200;
/// Coprime to the number of chains: neighbours in time are strangers in memory.
const STRIDE: usize = 2_477;

/// A core with one engine and a full index. The pages are one long chain, so every part of it can be
/// asked for.
struct World {
    core: Core,
    effects: Vec<Effect>,
    hashes: Vec<BlockHash>,
    now: Micros,
    operation: u64,
    saved: u64,
    turn: usize,
}

/// As even as a real digest.
fn hash(number: u64) -> BlockHash {
    let mut bytes = [0; 32];
    let mut word = number.wrapping_add(1);
    for chunk in bytes.chunks_exact_mut(8) {
        word = (word ^ (word >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word ^= word >> 29;
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    BlockHash(bytes)
}

impl World {
    fn new() -> Result<Self> {
        let slots = (PAGES + SPARE_SLOTS) as u64;
        let pool_bytes = slots * SLOT_BYTES;
        let config = Config { segment_bytes: pool_bytes, ..Config::for_pool(pool_bytes) };
        let mut world = Self {
            core: Core::new(config)?,
            effects: Vec::new(),
            hashes: (0..PAGES as u64).map(hash).collect(),
            now: Micros(0),
            operation: 0,
            saved: PAGES as u64,
            turn: 0,
        };
        for (session, role) in [(SCHEDULER, Role::Scheduler), (WORKER, Role::Worker { rank: 0 })] {
            let spec = SessionSpec {
                role,
                instance: InstanceId(7),
                world_size: 1,
                namespace: NamespaceDigest([9; 32]),
                groups: vec![GroupSpec::prefix(GROUP, PAGE_BYTES, 1, 16)],
                hash_tokens: 0,
            };
            let client = ClientId(u128::from(session.0));
            world.step(Event::SessionOpened { session, client, epoch: 1, spec: &spec })?;
        }
        world.step(Event::SegmentReady { segment: SegmentId(0) })?;
        world.step(Event::Attest { session: WORKER, passed: true })?;
        let hashes = std::mem::take(&mut world.hashes);
        for (at, chunk) in hashes.chunks(QUERY_PAGES).enumerate() {
            let parent = at.checked_sub(1).and_then(|_| hashes.get(at * QUERY_PAGES - 1)).copied();
            let first_depth = u32::try_from(at * QUERY_PAGES)?;
            let slots = world.reserve(&SaveRequest { group: GROUP, parent, first_depth, hashes: chunk })?;
            ensure!(slots.len() == chunk.len(), "the pool has room for {} of {PAGES} pages", world.saved);
            for (slot, hash) in slots.into_iter().zip(chunk) {
                world.step(Event::Commit { session: WORKER, slot, hash: *hash, crc: 1 })?;
            }
        }
        world.hashes = hashes;
        Ok(world)
    }

    /// One event. Its effects are there until the next.
    fn step(&mut self, event: Event<'_>) -> Result<()> {
        step(&mut self.core, &mut self.now, &mut self.effects, event)
    }

    fn reserve(&mut self, request: &SaveRequest<'_>) -> Result<Vec<SlotRef>> {
        self.operation += 1;
        let (operation, revision) = (OperationId(self.operation), Revision(1));
        self.step(Event::Reserve { session: SCHEDULER, operation, revision, request: *request })?;
        let granted = self.effects.iter().find_map(|effect| match effect {
            Effect::Granted { grants, .. } => Some(grants),
            _ => None,
        });
        let slots = granted.into_iter().flatten().filter_map(|page| match &page.grant {
            Grant::Slots(parts) => parts.first().map(|part| part.slot),
            _ => None,
        });
        Ok(slots.collect())
    }

    /// A demand for `count` pages from `first` on, all of which must be there.
    fn query(&mut self, id: (OperationId, Revision), first: usize, count: usize) -> Result<()> {
        let hashes = self.hashes.get(first..first + count).context("pages outside the index")?;
        let demand = Demand::prefix(GROUP, hashes);
        let event = Event::Query { session: SCHEDULER, operation: id.0, revision: id.1, demand };
        step(&mut self.core, &mut self.now, &mut self.effects, event)?;
        match self.effects.last() {
            Some(Effect::Operation { outcome: OperationOutcome::Ready { pages, .. }, .. })
                if *pages as usize == count =>
            {
                Ok(())
            }
            other => bail!("{count} pages from {first} on are not all answered: {other:?}"),
        }
    }

    fn release(&mut self, (operation, revision): (OperationId, Revision)) -> Result<()> {
        self.step(Event::Release { session: SCHEDULER, operation, revision })
    }

    /// First page of the next query of the mix.
    fn next_chain(&mut self) -> usize {
        self.turn += 1;
        self.turn * STRIDE % (PAGES / QUERY_PAGES) * QUERY_PAGES
    }

    /// Runs the mix for `events` events; the hashes that were looked up.
    fn run_mix(&mut self, events: usize) -> Result<usize> {
        let mut live: VecDeque<(OperationId, Revision)> = VecDeque::new();
        let mut writing: Option<(SlotRef, BlockHash)> = None;
        let mut lookups = 0;
        for turn in MIX.iter().cycle().take(events) {
            match turn {
                Turn::Query => {
                    self.operation += 1;
                    let id = (OperationId(self.operation), Revision(1));
                    live.push_back(id);
                    let first = self.next_chain();
                    self.query(id, first, QUERY_PAGES)?;
                    lookups += QUERY_PAGES;
                }
                Turn::Revise => {
                    let latest = live.back_mut().context("a live demand to revise")?;
                    latest.1 = Revision(latest.1.0 + 1);
                    let id = *latest;
                    let first = self.next_chain();
                    self.query(id, first, QUERY_PAGES)?;
                    lookups += QUERY_PAGES;
                }
                Turn::Release => {
                    let id = live.pop_front().context("a live demand to release")?;
                    self.release(id)?;
                }
                Turn::Cancel => {
                    let (operation, revision) = live.pop_front().context("a live demand to cancel")?;
                    self.step(Event::Cancel { session: SCHEDULER, operation, revision })?;
                }
                Turn::Reserve => {
                    let hash = hash(self.saved);
                    self.saved += 1;
                    let hashes = [hash];
                    let request = SaveRequest { group: GROUP, parent: None, first_depth: 0, hashes: &hashes };
                    let slot = self.reserve(&request)?.first().copied().context("a slot to save into")?;
                    writing = Some((slot, hash));
                    lookups += 1;
                }
                Turn::Commit => {
                    let (slot, hash) = writing.take().context("a slot to commit")?;
                    self.step(Event::Commit { session: WORKER, slot, hash, crc: 1 })?;
                }
            }
        }
        Ok(lookups)
    }
}

/// Time moves a microsecond with each event. Nothing here breaks a rule, so a refusal ends the run.
fn step(core: &mut Core, now: &mut Micros, effects: &mut Vec<Effect>, event: Event<'_>) -> Result<()> {
    effects.clear();
    now.0 += 1;
    core.step(*now, event, effects);
    match effects.last() {
        Some(Effect::Refused { refusal, .. }) => bail!("the core refused an event: {refusal}"),
        _ => Ok(()),
    }
}

/// Events and lookups a second, and a large query.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let mut world = World::new()?;
    let mut lookups_per_event = 0.0;
    let events_per_us = median_of_five(|| {
        let start = Instant::now();
        let lookups = world.run_mix(MIX_EVENTS)?;
        let micros = start.elapsed().as_secs_f64() * 1e6;
        lookups_per_event = lookups as f64 / MIX_EVENTS as f64;
        Ok(MIX_EVENTS as f64 / micros)
    })?;
    let mut world = World::new()?;
    let large_us = median_of_five(|| {
        let mut micros = 0.0;
        for round in 0..LARGE_ROUNDS {
            world.operation += 1;
            let id = (OperationId(world.operation), Revision(1));
            let first = round * STRIDE % (PAGES - LARGE_QUERY);
            let start = Instant::now();
            world.query(id, first, LARGE_QUERY)?;
            micros += start.elapsed().as_secs_f64() * 1e6;
            world.release(id)?;
        }
        Ok(micros / LARGE_ROUNDS as f64)
    })?;
    let target = Target::AtLeast(1.0);
    let lookups = events_per_us * lookups_per_event;
    Ok(vec![
        Row { name: "core, fixed mix: events", ours: events_per_us, limit: 1.0, unit: "M/s", target },
        Row { name: "core, fixed mix: hash lookups", ours: lookups, limit: 10.0, unit: "M/s", target },
        Row {
            name: "core, 1,024 hashes against 100,000 pages",
            ours: large_us,
            // The promised 10 M lookups a second.
            limit: LARGE_QUERY as f64 / 10.0,
            unit: "µs",
            target: Target::AtMost(1.0),
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_finds_every_page_and_leaves_nothing_owned() {
        let mut world = World::new().unwrap();
        let lookups = world.run_mix(MIX.len() * 500).unwrap();
        assert_eq!(lookups, 500 * (24 * QUERY_PAGES + 3));
        assert_eq!(world.core.operations().count(), 0);
        assert_eq!(world.core.ledger().reserved_bytes(), 0);
        world.core.audit().unwrap();
    }
}
