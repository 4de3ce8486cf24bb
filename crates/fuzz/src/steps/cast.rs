//! Who takes part: two instances that may share a namespace, and some that cannot be.

use orbitkv_core::{
    BlockHash, ClientId, Config, GroupId, GroupSpec, InstanceId, NamespaceDigest, Role, Rule, SessionSpec,
};

pub(super) const GROUP: GroupId = GroupId(0);
/// 4 KiB of payload behind the 4 KiB header.
const SLOT_BYTES: u64 = 8192;

pub(super) fn hash(n: u8) -> BlockHash {
    BlockHash([n; 32])
}

/// Mostly the first group.
pub(super) fn group(choice: u8) -> GroupId {
    match choice & 7 {
        0..=4 => GROUP,
        5 => GroupId(1),
        6 => GroupId::PROBE,
        _ => GroupId(9),
    }
}

/// A pool of 2 to 17 slots in one to four segments, with limits that are met at once. Bit 6 of `pool`: with
/// a slower tier; bit 7: one page is written at a time, and little is read ahead. Bit 6 of `limits`: two batches
/// of one page for a demand; bit 7: its reads end after 50 ms.
pub(super) fn config(pool: u8, limits: u8) -> Config {
    let slots = 2 + u64::from(pool & 15);
    let segments = 1 + u64::from(pool >> 4 & 3);
    let pool_bytes = slots * SLOT_BYTES;
    let segment_bytes = (slots / segments).max(1) * SLOT_BYTES;
    let budget_bytes = (1 + u64::from(limits & 15)) * SLOT_BYTES;
    let budget_bytes = budget_bytes.min(pool_bytes);
    let (narrow, batched) = (pool & 128 != 0, limits & 64 != 0);
    Config {
        segment_bytes,
        query_budget_bytes: budget_bytes,
        query_instance_budget_bytes: (budget_bytes / (1 + u64::from(limits >> 4 & 1))).max(1),
        operations_per_session: 6,
        operations: 10,
        saves_per_session: 6,
        saves: 10,
        sessions: 8,
        hashes_per_request: 12,
        parts_per_answer: 16,
        operation_lifetime_ms: 2_000,
        lease_ttl_ms: 5_000,
        filling_percent: if limits & 32 == 0 { 100 } else { 50 },
        tier: pool & 64 != 0,
        tier_writes: if narrow { 1 } else { 4 },
        read_batch_bytes: if batched { SLOT_BYTES } else { 0 },
        read_batches: if batched { 2 } else { 0 },
        read_timeout_ms: if limits & 128 == 0 { 0 } else { 50 },
        speculative_percent: if narrow { 50 } else { 100 },
        preparations_per_session: 2,
        warm_ups_per_session: 2,
        speculations: 3,
        prepared_batch_bytes: 2 * SLOT_BYTES,
        ..Config::for_pool(pool_bytes)
    }
}

/// The client of a seat and what it says of itself. Low three bits: which seat; bit 3: of a namespace
/// apart; bit 4: not as its instance has it.
pub(super) fn seat(choice: u8) -> (ClientId, SessionSpec) {
    let number = choice & 7;
    let (instance, world_size, role) = match number {
        0 => (1, 2, Role::Scheduler),
        1 | 2 => (1, 2, Role::Worker { rank: u16::from(number) - 1 }),
        4 => (3, 1, Role::Scheduler),
        5 => (3, 1, Role::Worker { rank: 0 }),
        6 => (3, 1, Role::Worker { rank: 1 }),
        // Two that want one seat.
        _ => (2, 1, Role::Solo),
    };
    let apart = choice & 8 != 0;
    let odd = choice & 16 != 0;
    let shards = if odd { 3 } else { world_size };
    let mut groups = vec![GroupSpec::prefix(GROUP, 4096, shards, 16)];
    if world_size == 1 {
        // Two classes of slots in one pool; of the second group a boundary takes three pages.
        let rule = Rule::Window { tokens: 40 };
        groups.push(GroupSpec { rule, ..GroupSpec::prefix(GroupId(1), 12_000, 1, 16) });
    }
    let spec = SessionSpec {
        role,
        instance: InstanceId(instance),
        world_size,
        namespace: NamespaceDigest([u8::from(apart) + if world_size == 1 { 0 } else { 4 }; 32]),
        groups,
        hash_tokens: 0,
    };
    (ClientId(u128::from(number)), spec)
}
