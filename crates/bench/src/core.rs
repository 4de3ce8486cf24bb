//! The core alone, on one thread: no sockets, no clock. What counts is the processor's time of this thread, so
//! that a busy host only shows by its caches.

use crate::memory::heap_bytes;
use crate::mix::MIX;
use crate::report::{Row, Target};
use crate::rounds::{Measured, median_of_five};
use anyhow::{Context, Result, bail, ensure};
use orbitkv_core::{
    BlockHash, ClientId, Config, Core, Demand, Effect, Event, Grant, GroupId, GroupSpec, InstanceId, Micros,
    NamespaceDigest, OperationId, OperationOutcome, Revision, Role, SaveRequest, SegmentId, SessionId,
    SessionSpec, SlotRef,
};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;

mod mixed;

use mixed::Mixed;

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
/// What a host with many engines has open, spread over as many schedulers.
const OPEN: usize = 1_024;
const SCHEDULERS: u64 = 16;
/// Heap that one open query may take, and its hashes beside that.
const OPERATION_BYTES: usize = 512 + QUERY_PAGES * size_of::<BlockHash>();
/// Coprime to the number of chains: neighbours in time are strangers in memory.
const STRIDE: usize = 2_477;

/// A demand that has not ended.
#[derive(Clone, Copy)]
struct Open {
    session: SessionId,
    operation: OperationId,
    revision: Revision,
}

/// A core with a full index, and engines that share it. The pages are one long chain, so every part of it
/// can be asked for.
struct World {
    core: Core,
    effects: Vec<Effect>,
    hashes: Vec<BlockHash>,
    now: Micros,
    schedulers: u64,
    operation: u64,
    /// The oldest first.
    open: VecDeque<Open>,
    saved: u64,
    turn: usize,
    /// What the next repetition of the mix asks for, one query after the other.
    asked: Vec<BlockHash>,
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

/// The two sessions of an engine.
fn scheduler(engine: u64) -> SessionId {
    SessionId(1 + 2 * engine)
}

fn worker(engine: u64) -> SessionId {
    SessionId(2 + 2 * engine)
}

impl World {
    fn new(schedulers: u64) -> Result<Self> {
        let slots = (PAGES + SPARE_SLOTS) as u64;
        let pool_bytes = slots * SLOT_BYTES;
        // The mix opens demands before it ends older ones.
        let operations = OPEN + MIX.len();
        let config = Config { segment_bytes: pool_bytes, operations, ..Config::for_pool(pool_bytes) };
        let mut world = Self {
            core: Core::new(config)?,
            effects: Vec::new(),
            hashes: (0..PAGES as u64).map(hash).collect(),
            now: Micros(0),
            schedulers,
            operation: 0,
            open: VecDeque::new(),
            saved: PAGES as u64,
            turn: 0,
            asked: Vec::new(),
        };
        (0..schedulers).try_for_each(|engine| world.attach(engine))?;
        world.step(Event::SegmentReady { segment: SegmentId(0) })?;
        for engine in 0..schedulers {
            world.step(Event::Attest { session: worker(engine), passed: true })?;
        }
        world.fill()?;
        Ok(world)
    }

    /// An engine of one rank.
    fn attach(&mut self, engine: u64) -> Result<()> {
        for (session, role) in
            [(scheduler(engine), Role::Scheduler), (worker(engine), Role::Worker { rank: 0 })]
        {
            let spec = SessionSpec {
                role,
                instance: InstanceId(7 + u128::from(engine)),
                world_size: 1,
                namespace: NamespaceDigest([9; 32]),
                groups: vec![GroupSpec::prefix(GROUP, PAGE_BYTES, 1, 16)],
                hash_tokens: 0,
            };
            let client = ClientId(u128::from(session.0));
            self.step(Event::SessionOpened { session, client, epoch: 1, spec: &spec })?;
        }
        Ok(())
    }

    /// Saves every page of the index.
    fn fill(&mut self) -> Result<()> {
        let hashes = std::mem::take(&mut self.hashes);
        for (at, chunk) in hashes.chunks(QUERY_PAGES).enumerate() {
            let parent = at.checked_sub(1).and_then(|_| hashes.get(at * QUERY_PAGES - 1)).copied();
            let first_depth = u32::try_from(at * QUERY_PAGES)?;
            let slots = self.reserve(&SaveRequest { group: GROUP, parent, first_depth, hashes: chunk })?;
            ensure!(slots.len() == chunk.len(), "the pool has room for {} of {PAGES} pages", self.saved);
            for (slot, hash) in slots.into_iter().zip(chunk) {
                self.step(Event::Commit { session: worker(0), slot, hash: *hash, crc: 1 })?;
            }
        }
        self.hashes = hashes;
        Ok(())
    }

    /// One event. Its effects are there until the next.
    fn step(&mut self, event: Event<'_>) -> Result<()> {
        step(&mut self.core, &mut self.now, &mut self.effects, event)
    }

    fn reserve(&mut self, request: &SaveRequest<'_>) -> Result<Vec<SlotRef>> {
        self.operation += 1;
        let (operation, revision) = (OperationId(self.operation), Revision(1));
        self.step(Event::Reserve { session: scheduler(0), operation, revision, request: *request })?;
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
    fn query(&mut self, open: Open, first: usize, count: usize) -> Result<()> {
        let hashes = self.hashes.get(first..first + count).context("pages outside the index")?;
        query(&mut self.core, &mut self.now, &mut self.effects, open, hashes)
    }

    /// A name for a demand of the next scheduler.
    fn next_open(&mut self) -> Open {
        self.operation += 1;
        let session = scheduler(self.operation % self.schedulers);
        Open { session, operation: OperationId(self.operation), revision: Revision(1) }
    }

    /// One more demand like those of the mix; it stays open.
    fn open(&mut self) -> Result<()> {
        let open = self.next_open();
        self.open.push_back(open);
        let first = self.next_chain();
        self.query(open, first, QUERY_PAGES)
    }

    fn release(&mut self, Open { session, operation, revision }: Open) -> Result<()> {
        self.step(Event::Release { session, operation, revision })
    }

    fn oldest(&mut self) -> Result<Open> {
        self.open.pop_front().context("an open demand to end")
    }

    /// First page of the next query of the mix.
    fn next_chain(&mut self) -> usize {
        self.turn += 1;
        self.turn * STRIDE % (PAGES / QUERY_PAGES) * QUERY_PAGES
    }
}

/// A demand for these pages, all of which must be there.
fn query(
    core: &mut Core,
    now: &mut Micros,
    effects: &mut Vec<Effect>,
    Open { session, operation, revision }: Open,
    hashes: &[BlockHash],
) -> Result<()> {
    let demand = Demand::prefix(GROUP, hashes);
    step(core, now, effects, Event::Query { session, operation, revision, demand })?;
    match effects.last() {
        Some(Effect::Operation { outcome: OperationOutcome::Ready { pages, .. }, .. })
            if *pages as usize == hashes.len() =>
        {
            Ok(())
        }
        other => bail!("{} pages are not all answered: {other:?}", hashes.len()),
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

/// Microseconds that this thread has run.
fn busy_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Events a microsecond with `open` demands open throughout, and hash lookups an event.
fn speed(schedulers: u64, open: usize) -> Result<(Measured, f64)> {
    let mut world = World::new(schedulers)?;
    for _ in 0..open {
        world.open()?;
    }
    let mut lookups_per_event = 0.0;
    let events_per_us = median_of_five(|| {
        let Mixed { events, lookups, micros } = world.run_mix(MIX_EVENTS)?;
        lookups_per_event = lookups as f64 / events as f64;
        Ok(events as f64 / micros)
    })?;
    ensure!(world.core.operations().count() == open, "the mix ends as many demands as it begins");
    Ok((events_per_us, lookups_per_event))
}

/// Microseconds of a large query.
fn large_query() -> Result<Measured> {
    let mut world = World::new(1)?;
    median_of_five(|| {
        let mut micros = 0.0;
        for round in 0..LARGE_ROUNDS {
            let open = world.next_open();
            let first = round * STRIDE % (PAGES - LARGE_QUERY);
            let start = busy_us();
            world.query(open, first, LARGE_QUERY)?;
            micros += busy_us() - start;
            world.release(open)?;
        }
        Ok(micros / LARGE_ROUNDS as f64)
    })
}

/// Heap bytes of an open demand, growth of the core's tables and the allocator's own bytes included.
fn bytes_per_operation() -> Result<f64> {
    let mut world = World::new(SCHEDULERS)?;
    // The first one also sizes what is kept from event to event.
    world.open()?;
    let open = world.oldest()?;
    world.release(open)?;
    world.open.reserve(OPEN);
    let before = heap_bytes();
    for _ in 0..OPEN {
        world.open()?;
    }
    Ok((heap_bytes() as f64 - before as f64) / OPEN as f64)
}

/// Events and lookups a second, a large query, and the memory of operations.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let operation_bytes = bytes_per_operation()?;
    let (events, lookups_per_event) = speed(1, 0)?;
    let lookups = events.times(lookups_per_event);
    let (with_open, _) = speed(SCHEDULERS, OPEN)?;
    let (least, most) = (Target::AtLeast(1.0), Target::AtMost(1.0));
    Ok(vec![
        Row { name: "core, fixed mix: events", ours: events, limit: 1.0, unit: "M/s", target: least },
        Row { name: "core, fixed mix: hash lookups", ours: lookups, limit: 10.0, unit: "M/s", target: least },
        Row {
            name: "core, fixed mix with 1,024 open: events",
            ours: with_open,
            limit: 1.0,
            unit: "M/s",
            target: least,
        },
        Row {
            name: "core, 1,024 hashes against 100,000 pages",
            ours: large_query()?,
            // The promised 10 M lookups a second.
            limit: LARGE_QUERY as f64 / 10.0,
            unit: "µs",
            target: most,
        },
        Row {
            name: "core, memory of an open query of 16 pages",
            ours: operation_bytes.into(),
            limit: OPERATION_BYTES as f64,
            unit: "B",
            target: most,
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_finds_every_page_and_leaves_nothing_owned() {
        let mut world = World::new(1).unwrap();
        let lookups = world.run_mix(MIX.len() * 500).unwrap().lookups;
        assert_eq!(lookups, 500 * (24 * QUERY_PAGES + 3));
        assert_eq!(world.core.operations().count(), 0);
        assert_eq!(world.core.ledger().reserved_bytes(), 0);
        world.core.audit().unwrap();
    }

    #[test]
    fn demands_that_were_open_before_the_mix_stay_as_many() {
        let mut world = World::new(SCHEDULERS).unwrap();
        for _ in 0..OPEN {
            world.open().unwrap();
        }
        world.run_mix(MIX.len() * 100).unwrap();
        assert_eq!(world.core.operations().count(), OPEN);
        let bytes = OPEN as u64 * QUERY_PAGES as u64 * SLOT_BYTES;
        assert_eq!(world.core.ledger().reserved_bytes(), bytes);
        world.core.audit().unwrap();
    }
}
