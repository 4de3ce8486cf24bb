//! Between the numbers of the wire and those of the core.

use orbitkv_core::{
    Grant, GroupRange, MissReason, Mode, OperationOutcome, PageGrant, PagePart, RecoveredRange, SegmentId,
    SlotRef,
};
use orbitkv_wire::{
    GrantStatus, GrantedBody, Part, QueryMode, RangeItem, RecoveredBody, RecoveredItem, Slot, ToClient,
    WireMiss,
};

pub(crate) fn slot_ref(slot: &Slot) -> SlotRef {
    SlotRef {
        segment: SegmentId(slot.segment.get()),
        index: slot.index.get(),
        generation: slot.generation.get(),
    }
}

fn part(part: &PagePart) -> Part {
    let slot = Slot {
        segment: part.slot.segment.0.into(),
        index: part.slot.index.into(),
        generation: part.slot.generation.into(),
    };
    Part { slot, crc: part.crc.into() }
}

/// What a query is for.
pub(crate) fn mode(mode: QueryMode) -> Mode {
    match mode {
        QueryMode::Demand => Mode::Demand,
        QueryMode::Prepare => Mode::Prepare,
        QueryMode::WarmUp => Mode::WarmUp,
    }
}

/// The message about a query; `ranges` and `parts` are scratch space.
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
            parts.clear();
            parts.extend(leased.iter().map(part));
            ToClient::Ready { pages: *pages, shards: *shards, parts }
        }
        OperationOutcome::Recovered { ranges: recovered_ranges, parts: leased } => {
            ranges.clear();
            ranges.extend(recovered_ranges.iter().map(recovered));
            parts.clear();
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

fn recovered(range: &RecoveredRange) -> RecoveredItem {
    RecoveredItem {
        group: range.group.0.into(),
        shards: range.shards.into(),
        first_page: range.first_page.into(),
        pages: range.pages.into(),
    }
}

/// Pages that a client names of each cache group.
pub(crate) fn group_ranges(items: &[RangeItem]) -> Vec<GroupRange> {
    let range = |item: &RangeItem| GroupRange {
        group: item.group.get(),
        first_page: item.first_page.get(),
        end_page: item.end_page.get(),
    };
    items.iter().map(range).collect()
}

/// The answer to a reservation; `statuses` and `parts` are scratch space.
pub(crate) fn granted<'a>(
    grants: &[PageGrant],
    statuses: &'a mut Vec<u8>,
    parts: &'a mut Vec<Part>,
) -> ToClient<'a> {
    statuses.clear();
    parts.clear();
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

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_core::BlockHash;
    use orbitkv_wire::Kind;

    const PART: PagePart =
        PagePart { slot: SlotRef { segment: SegmentId(1), index: 2, generation: 3 }, crc: 4 };

    #[test]
    fn slots_survive_the_round_trip() {
        assert_eq!(slot_ref(&part(&PART).slot), PART.slot);
    }

    #[test]
    fn grants_of_all_kinds_decode_as_sent() {
        let grants = [Grant::Slots(vec![PART, PART]), Grant::Exists, Grant::Busy, Grant::Refused]
            .map(|grant| PageGrant { hash: BlockHash([0; 32]), grant });
        let (mut statuses, mut parts, mut payload) = (Vec::new(), Vec::new(), Vec::new());
        granted(&grants, &mut statuses, &mut parts).encode(&mut payload);
        let Ok(ToClient::Granted(body)) = ToClient::decode(Kind::Granted, &payload) else {
            panic!("not a granted message");
        };
        assert_eq!((body.shards, body.statuses, body.parts.len()), (2, &[0, 1, 2, 3][..], 2));
    }
}
