//! What a seed decides before anything happens: sizes, limits, speeds, and which faults exist at all.

use crate::rng::Rng;
use orbitkv_core::{Config, GroupId, GroupSpec, NamespaceDigest, Plant, Rule, WritePolicy};

/// Bytes the core adds in front of a payload, and the unit it rounds slots to.
const SLOT_UNIT_BYTES: u64 = 4096;

/// Bytes from slot to slot for that payload.
pub(crate) fn slot_bytes(page_bytes: u64) -> u64 {
    (page_bytes + SLOT_UNIT_BYTES).next_multiple_of(SLOT_UNIT_BYTES)
}

/// Which processes an engine consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One process, one session for everything.
    Solo,
    /// One process with a scheduler session and a worker session.
    Joint,
    /// A scheduler process and a process for each rank.
    Split,
}

/// One engine.
#[derive(Clone, Debug)]
pub(crate) struct EnginePlan {
    pub(crate) namespace: NamespaceDigest,
    pub(crate) world_size: u16,
    pub(crate) topology: Topology,
    pub(crate) groups: Vec<GroupSpec>,
    /// Workers save and restore a page of their own before they attest.
    pub(crate) probes: bool,
}

/// How often faults happen. Zero: never in this world.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Percent of scheduler turns in which an engine is killed.
    pub(crate) kill: u64,
    /// Percent of turns in which a socket is lost.
    pub(crate) socket: u64,
    /// Percent of turns in which a process is stopped for a while.
    pub(crate) stop: u64,
    /// Percent of replies that a client ignores.
    pub(crate) lost_reply: u64,
    /// Percent of segments that cannot be had.
    pub(crate) growth: u64,
    /// Percent of writes and reads of the slower tier that fail.
    pub(crate) disk: u64,
    /// Percent of turns in which something happens to what is stored there.
    pub(crate) disk_rot: u64,
    /// Percent of turns in which a bit rots.
    pub(crate) rot: u64,
    /// Percent of turns in which a stranger or an older epoch says hello.
    pub(crate) hello: u64,
    /// Percent of turns in which an administrator drops what is not leased.
    pub(crate) admin: u64,
    /// Percent of turns after which the clock jumps.
    pub(crate) jump: u64,
    /// Percent of turns with a forget or a reset.
    pub(crate) forget: u64,
    /// Percent of save tickets that a worker gives back.
    pub(crate) abort: u64,
    /// Percent of turns that break a rule on purpose: stale revisions, changed parameters, old ids.
    pub(crate) abuse: u64,
    /// Workers may get a ticket before the manager has read the scheduler's `Restore`.
    pub(crate) early_tickets: bool,
}

/// Everything a seed decides in advance.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) config: Config,
    pub(crate) engines: Vec<EnginePlan>,
    pub(crate) faults: Faults,
    pub(crate) chains: usize,
    pub(crate) chain_pages: usize,
    /// Pages of one request, at most.
    pub(crate) request_pages: u64,
    /// Mean pause between turns of a scheduler.
    pub(crate) turn_us: u64,
    /// Longest way of a frame.
    pub(crate) delay_us: u64,
    /// Longest way of a ticket through the engine.
    pub(crate) engine_us: u64,
    /// Longest beat of an ordinary copy, and of a slow one.
    pub(crate) beat_us: u64,
    pub(crate) slow_beat_us: u64,
    /// Percent of copies that are slow.
    pub(crate) slow_copies: u64,
    /// Longest growth of a segment.
    pub(crate) grow_us: u64,
    /// Longest read or write of the slower tier.
    pub(crate) disk_us: u64,
    /// Mean pause between two checks of memory; zero: never. And the longest check of a slot.
    pub(crate) scrub_us: u64,
    pub(crate) scrub_slot_us: u64,
    /// Percent of queries with a deadline of their own.
    pub(crate) deadlines: u64,
    /// Frames are cut into pieces of random size.
    pub(crate) chunked: bool,
    /// Percent of queries that are preparations or warm-ups.
    pub(crate) ahead: u64,
    /// Percent of queries that are recoveries.
    pub(crate) recoveries: u64,
    /// Percent of queries that want all or nothing.
    pub(crate) strict: u64,
    /// Percent of restores that hand out a part of their prefix.
    pub(crate) parts: u64,
    /// Weights of the scheduler's ordinary turns: query, save, restore, release, cancel.
    pub(crate) weights: [u64; 5],
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng, plant: Option<Plant>) -> Self {
        let engines = engines(rng);
        let slot_max = engines.iter().flat_map(|e| &e.groups).map(|g| slot_bytes(g.page_bytes)).max();
        let classes = engines.iter().map(classes).max().unwrap_or(1);
        let config = config(rng, plant, &engines, slot_max.unwrap_or(SLOT_UNIT_BYTES), classes);
        let fast = rng.range(200, 20_000);
        let mut faults = Faults::new(rng);
        if config.tier && rng.chance(75) {
            // Memory is emptied often, so that pages are read back.
            faults.admin = rng.range(3, 20);
        }
        Self {
            config,
            faults,
            chains: usize::try_from(rng.range(1, 8)).unwrap_or(1),
            chain_pages: usize::try_from(rng.range(2, 12)).unwrap_or(2),
            request_pages: rng.range(1, 6),
            turn_us: rng.range(1_000, 40_000),
            delay_us: rng.range(20, 4_000),
            engine_us: rng.range(20, 4_000) * if rng.chance(30) { 20 } else { 1 },
            beat_us: fast,
            slow_beat_us: fast * rng.range(4, 60),
            slow_copies: if rng.chance(70) { rng.range(5, 40) } else { 0 },
            grow_us: rng.range(100, 80_000),
            disk_us: if rng.chance(50) { rng.range(50, 5_000) } else { rng.range(5_000, 400_000) },
            scrub_us: if rng.chance(60) { rng.range(2_000, 60_000) } else { 0 },
            scrub_slot_us: if rng.chance(50) { rng.range(20, 2_000) } else { rng.range(2_000, 200_000) },
            deadlines: rng.below(80),
            chunked: rng.chance(25),
            ahead: if rng.chance(60) { rng.range(10, 70) } else { 0 },
            recoveries: if rng.chance(50) { rng.range(10, 60) } else { 0 },
            strict: if rng.chance(40) { rng.range(5, 60) } else { 0 },
            parts: if rng.chance(70) { rng.range(20, 90) } else { 0 },
            weights: std::array::from_fn(|_| rng.range(1, 8)),
            engines,
        }
    }

    /// A pause around `mean_us`.
    pub(crate) fn pause(rng: &mut Rng, mean_us: u64) -> u64 {
        rng.range(mean_us / 4, mean_us * 7 / 4).max(1)
    }
}

/// Slabs that an engine needs at least: one for each shard and slot size.
fn classes(engine: &EnginePlan) -> u64 {
    let mut all: Vec<_> = engine
        .groups
        .iter()
        .flat_map(|g| (0..g.shard_count).map(|shard| (slot_bytes(g.page_bytes), shard)))
        .collect();
    all.sort_unstable();
    all.dedup();
    all.len() as u64
}

fn engines(rng: &mut Rng) -> Vec<EnginePlan> {
    let shared = rng.chance(60);
    let count = if rng.chance(3) { 10 } else { rng.range(1, 4) };
    let first = engine(rng, 0);
    (0..count)
        .map(|n| {
            // Engines of one namespace have the same groups: its digest says so.
            if shared && rng.chance(75) {
                return EnginePlan { probes: rng.chance(40), ..first.clone() };
            }
            engine(rng, n + 1)
        })
        .collect()
}

fn engine(rng: &mut Rng, number: u64) -> EnginePlan {
    let world_size = [1, 1, 2, 4][rng.index(4)];
    let topology = match world_size {
        1 => [Topology::Solo, Topology::Joint, Topology::Split][rng.index(3)],
        _ => Topology::Split,
    };
    let shards = [world_size, world_size, 1][rng.index(3)];
    let mut groups = vec![GroupSpec::prefix(GroupId(0), 4096, shards, 16)];
    let more = [0, 0, 0, 1, 2][rng.index(5)];
    for group in 1..=more {
        let page_bytes = [4096, 12_288][rng.index(2)];
        let shard_count = [world_size, 1][rng.index(2)];
        let page_tokens = [16, 16, 32][rng.index(3)];
        let window = Rule::Window { tokens: u32::try_from(rng.range(1, 80)).unwrap_or(1) };
        let rule = [Rule::Prefix, window, Rule::Checkpoint][rng.index(3)];
        groups.push(GroupSpec { group: GroupId(group), page_bytes, shard_count, page_tokens, rule });
    }
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&(number + 1).to_le_bytes());
    EnginePlan { namespace: NamespaceDigest(digest), world_size, topology, groups, probes: rng.chance(40) }
}

fn config(
    rng: &mut Rng,
    plant: Option<Plant>,
    engines: &[EnginePlan],
    slot_max: u64,
    classes: u64,
) -> Config {
    let segment_bytes = slot_max * rng.range(2, 8);
    let spare = if rng.chance(45) { rng.below(3) } else { rng.range(2, 12) };
    let pool_bytes = segment_bytes * (classes + spare);
    let shapes = engines.iter().flat_map(|e| &e.groups);
    let page_max = shapes.map(|g| slot_bytes(g.page_bytes) * u64::from(g.shard_count)).max();
    // One page must always fit, or nothing could ever be restored.
    let least = page_max.unwrap_or(slot_max);
    // With the whole pool to give away there is often room to read ahead.
    let whole = rng.chance(40);
    let query_budget_bytes =
        if whole { pool_bytes } else { rng.range(least, pool_bytes.max(least)).min(pool_bytes) };
    let own = if rng.chance(50) { query_budget_bytes } else { rng.range(least, query_budget_bytes) };
    Config {
        segment_bytes,
        query_budget_bytes,
        query_instance_budget_bytes: own,
        operations_per_session: usize::try_from(rng.range(2, 16)).unwrap_or(2),
        operations: usize::try_from(rng.range(4, 48)).unwrap_or(4),
        saves_per_session: usize::try_from(rng.range(2, 16)).unwrap_or(2),
        saves: usize::try_from(rng.range(4, 48)).unwrap_or(4),
        sessions: 64,
        hashes_per_request: 64,
        speculative_percent: if rng.chance(40) { 25 } else { rng.range(10, 100) },
        preparations_per_session: usize::try_from(rng.range(1, 4)).unwrap_or(1),
        warm_ups_per_session: usize::try_from(rng.range(1, 6)).unwrap_or(1),
        speculations: usize::try_from(rng.range(1, 12)).unwrap_or(1),
        unclaimed_ttl_ms: rng.range(20, 1_000),
        warm_up_lifetime_ms: rng.range(20, 1_500),
        prepared_batch_bytes: slot_max * rng.range(1, 8),
        tier: rng.chance(65),
        tier_policy: if rng.chance(60) { WritePolicy::All } else { WritePolicy::Reuse },
        tier_writes: usize::try_from(rng.range(1, 12)).unwrap_or(1),
        read_batch_bytes: if rng.chance(50) { 0 } else { slot_max * rng.range(1, 6) },
        read_batches: if rng.chance(70) { 0 } else { u32::try_from(rng.range(1, 3)).unwrap_or(1) },
        read_timeout_ms: if rng.chance(70) { 0 } else { rng.range(5, 300) },
        arrivals_per_turn: [1, 3, 8, 32][rng.index(4)],
        operation_lifetime_ms: rng.range(50, 2_000),
        lease_ttl_ms: rng.range(20, 1_500),
        filling_percent: rng.range(10, 100),
        plant,
        ..Config::for_pool(pool_bytes)
    }
}

impl Faults {
    fn new(rng: &mut Rng) -> Self {
        let some = |rng: &mut Rng, most: u64| if rng.chance(55) { rng.range(1, most) } else { 0 };
        Self {
            kill: some(rng, 3),
            socket: some(rng, 8),
            stop: some(rng, 4),
            lost_reply: some(rng, 15),
            growth: some(rng, 40),
            disk: some(rng, 20),
            disk_rot: some(rng, 8),
            rot: some(rng, 5),
            hello: some(rng, 5),
            admin: some(rng, 3),
            jump: some(rng, 2),
            forget: some(rng, 6),
            abort: some(rng, 25),
            abuse: some(rng, 40),
            early_tickets: rng.chance(35),
        }
    }

    /// Everything from here on goes well.
    pub(crate) fn cease(&mut self) {
        *self = Self::default();
    }
}
