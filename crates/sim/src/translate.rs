//! Between the numbers of the wire and those of the core.

use orbitkv_core::{
    Effect, Grant, GroupId, GroupSpec, InstanceId, MissReason, Mode, NamespaceDigest, OperationOutcome,
    PageGrant, PagePart, RecoveredRange, Role, SegmentId, SessionSpec, SlotRef,
};
use orbitkv_wire::{
    GrantStatus, GrantedBody, Hello, HelloGroup, HelloRole, Part, QueryMode, RecoveredBody, RecoveredItem,
    Slot, ToClient, WireMiss,
};

pub(crate) fn slot_ref(slot: &Slot) -> SlotRef {
    SlotRef {
        segment: SegmentId(slot.segment.get()),
        index: slot.index.get(),
        generation: slot.generation.get(),
    }
}

pub(crate) fn slot(at: SlotRef) -> Slot {
    Slot { segment: at.segment.0.into(), index: at.index.into(), generation: at.generation.into() }
}

pub(crate) fn page_part(part: &Part) -> PagePart {
    PagePart { slot: slot_ref(&part.slot), crc: part.crc.get() }
}

fn part(part: &PagePart) -> Part {
    Part { slot: slot(part.slot), crc: part.crc.into() }
}

/// What a query is for.
pub(crate) fn mode(mode: QueryMode) -> Mode {
    match mode {
        QueryMode::Demand => Mode::Demand,
        QueryMode::Prepare => Mode::Prepare,
        QueryMode::WarmUp => Mode::WarmUp,
    }
}

pub(crate) fn outcome<'a>(
    outcome: &OperationOutcome,
    ranges: &'a mut Vec<RecoveredItem>,
    parts: &'a mut Vec<Part>,
) -> ToClient<'a> {
    match outcome {
        OperationOutcome::Waiting => ToClient::Waiting,
        OperationOutcome::Prepared { pages } => ToClient::Prepared { pages: *pages },
        OperationOutcome::Warmed { pages } => ToClient::Warmed { pages: *pages },
        OperationOutcome::Ready { pages, shards, parts: leased } => {
            parts.extend(leased.iter().map(part));
            ToClient::Ready { pages: *pages, shards: *shards, parts }
        }
        OperationOutcome::Recovered { ranges: recovered, parts: leased } => {
            let item = |r: &RecoveredRange| RecoveredItem {
                group: r.group.0.into(),
                shards: r.shards.into(),
                first_page: r.first_page.into(),
                pages: r.pages.into(),
            };
            ranges.extend(recovered.iter().map(item));
            parts.extend(leased.iter().map(part));
            ToClient::Recovered(RecoveredBody { ranges, parts })
        }
        OperationOutcome::Miss(reason) => ToClient::Miss(match reason {
            MissReason::Absent => WireMiss::Absent,
            MissReason::Inactive => WireMiss::Inactive,
            MissReason::Deadline => WireMiss::Deadline,
            MissReason::Lifetime => WireMiss::Lifetime,
            MissReason::Limit => WireMiss::Limit,
            MissReason::Expired => WireMiss::Expired,
            MissReason::Budget => WireMiss::Budget,
        }),
    }
}

pub(crate) fn granted<'a>(
    grants: &[PageGrant],
    statuses: &'a mut Vec<u8>,
    parts: &'a mut Vec<Part>,
) -> ToClient<'a> {
    let mut shards = 0;
    for page in grants {
        let status = match &page.grant {
            Grant::Slots(slots) => {
                shards = u16::try_from(slots.len()).unwrap_or(u16::MAX);
                parts.extend(slots.iter().map(part));
                GrantStatus::Slots
            }
            Grant::Exists => GrantStatus::Exists,
            Grant::Busy => GrantStatus::Busy,
            Grant::Refused => GrantStatus::Refused,
        };
        statuses.push(status as u8);
    }
    ToClient::Granted(GrantedBody { shards, statuses, parts })
}

/// The text of a refusal among the effects.
pub(crate) fn refusal(effects: &[Effect]) -> Option<String> {
    effects.iter().find_map(|effect| match effect {
        Effect::Refused { refusal, .. } => Some(refusal.to_string()),
        _ => None,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A hello of that session; `resume` is added by the caller.
pub(crate) fn hello(client: u128, epoch: u32, spec: &SessionSpec) -> Hello {
    let role = match spec.role {
        Role::Scheduler => HelloRole::Scheduler,
        Role::Worker { .. } => HelloRole::Worker,
        Role::Solo => HelloRole::Solo,
    };
    let group = |g: &GroupSpec| HelloGroup {
        group: g.group.0,
        page_bytes: g.page_bytes,
        block_tokens: g.page_tokens,
        shard_count: g.shard_count,
        rule: g.rule.to_string(),
    };
    Hello {
        engine: "simulated".into(),
        engine_version: "1".into(),
        model: "words".into(),
        role,
        rank: spec.role.rank().unwrap_or(0),
        world_size: spec.world_size,
        client: format!("{client:032x}"),
        epoch,
        instance: format!("{:032x}", spec.instance.0),
        namespace: hex(&spec.namespace.0),
        groups: spec.groups.iter().map(group).collect(),
        hash_tokens: spec.hash_tokens,
        verify_restore: None,
        resume: None,
    }
}

/// Client, epoch and session of a hello.
pub(crate) fn registration(hello: &Hello) -> Result<(u128, u32, SessionSpec), String> {
    let number = |text: &str| u128::from_str_radix(text, 16).map_err(|e| format!("{text:?}: {e}"));
    let mut namespace = [0; 32];
    for (i, byte) in namespace.iter_mut().enumerate() {
        let digits = hello.namespace.get(2 * i..2 * i + 2).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).map_err(|e| format!("namespace: {e}"))?;
    }
    let role = match hello.role {
        HelloRole::Scheduler => Role::Scheduler,
        HelloRole::Worker => Role::Worker { rank: hello.rank },
        HelloRole::Solo => Role::Solo,
    };
    let group = |g: &HelloGroup| {
        let rule = g.rule.parse().map_err(|e| format!("group {}: {e}", g.group))?;
        let (group, page_tokens) = (GroupId(g.group), g.block_tokens);
        let (page_bytes, shard_count) = (g.page_bytes, g.shard_count);
        Ok(GroupSpec { group, page_bytes, shard_count, page_tokens, rule })
    };
    let spec = SessionSpec {
        role,
        instance: InstanceId(number(&hello.instance)?),
        world_size: hello.world_size,
        namespace: NamespaceDigest(namespace),
        groups: hello.groups.iter().map(group).collect::<Result<_, String>>()?,
        hash_tokens: hello.hash_tokens,
    };
    Ok((number(&hello.client)?, hello.epoch, spec))
}
