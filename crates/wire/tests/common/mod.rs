//! Random messages of every kind, built from one bag of random fields.
// Each test binary uses a part of this.
#![allow(dead_code, clippy::unwrap_used)]

use orbitkv_wire::{
    CommitItem, GrantStatus, GrantedBody, Hash, KeepItem, Kind, Part, QueryMode, QueryRule, RangeItem,
    RecoverBody, RecoveredBody, RecoveredItem, Slot, ToClient, ToManager, WireMiss, write_frame,
};
use proptest::prelude::*;
use zerocopy::little_endian::U32;

/// Random values from which any message can be made.
#[derive(Clone, Debug)]
pub(crate) struct Fields {
    pub(crate) group: u16,
    pub(crate) small: u32,
    pub(crate) large: u64,
    pub(crate) boot: u128,
    pub(crate) flag: bool,
    pub(crate) hash: Hash,
    pub(crate) hashes: Vec<Hash>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) items: Vec<CommitItem>,
    pub(crate) kept: Vec<KeepItem>,
    pub(crate) shards: u16,
    pub(crate) statuses: Vec<u8>,
    pub(crate) parts: Vec<Part>,
    pub(crate) text: String,
    pub(crate) miss: WireMiss,
    pub(crate) ranges: Vec<RangeItem>,
    /// Two parts each.
    pub(crate) recovered: Vec<RecoveredItem>,
    pub(crate) boundaries: Vec<U32>,
}

pub(crate) const TO_MANAGER: usize = 18;
pub(crate) const TO_CLIENT: usize = 17;

fn slot() -> impl Strategy<Value = Slot> {
    any::<[u32; 3]>().prop_map(|[segment, index, generation]| Slot {
        segment: segment.into(),
        index: index.into(),
        generation: generation.into(),
    })
}

fn part() -> impl Strategy<Value = Part> {
    (slot(), any::<u64>()).prop_map(|(slot, crc)| Part { slot, crc: crc.into() })
}

fn item() -> impl Strategy<Value = CommitItem> {
    (slot(), any::<Hash>(), any::<u64>()).prop_map(|(slot, hash, crc)| CommitItem {
        slot,
        hash,
        crc: crc.into(),
    })
}

fn miss() -> impl Strategy<Value = WireMiss> {
    prop_oneof![
        Just(WireMiss::Absent),
        Just(WireMiss::Inactive),
        Just(WireMiss::Deadline),
        Just(WireMiss::Lifetime),
        Just(WireMiss::Limit),
        Just(WireMiss::Expired),
    ]
}

pub(crate) fn fields() -> impl Strategy<Value = Fields> {
    let numbers = (any::<u16>(), any::<u32>(), any::<u64>(), any::<u128>(), any::<bool>(), any::<Hash>());
    let lists = (
        prop::collection::vec(any::<Hash>(), 0..20),
        prop::collection::vec(slot(), 0..20),
        prop::collection::vec(item(), 0..20),
    );
    let grants = (1u16..4, prop::collection::vec(0u8..4, 0..20), prop::collection::vec(part(), 80));
    (numbers, lists, grants, "\\PC{0,40}", miss()).prop_map(|(numbers, lists, grants, text, miss)| {
        let (group, small, large, boot, flag, hash) = numbers;
        let (hashes, slots, items) = lists;
        let kept = slots.iter().map(|slot: &Slot| KeepItem {
            operation: large.into(),
            revision: slot.index,
            zero: 0.into(),
        });
        let kept = kept.collect();
        let range = |slot: &Slot| RangeItem {
            group: group.into(),
            zero: 0.into(),
            first_page: slot.index,
            end_page: slot.segment,
        };
        let ranges = slots.iter().map(range).collect();
        let two = |slot: &Slot| RecoveredItem {
            group: group.into(),
            shards: (1 + u16::from(flag)).into(),
            first_page: slot.index,
            pages: (2 - u32::from(flag)).into(),
        };
        let recovered = slots.iter().map(two).collect();
        let boundaries = slots.iter().map(|slot| slot.generation).collect();
        let (shards, statuses, parts) = grants;
        Fields {
            group,
            small,
            large,
            boot,
            flag,
            hash,
            hashes,
            slots,
            items,
            kept,
            shards,
            statuses,
            parts,
            text,
            miss,
            ranges,
            recovered,
            boundaries,
        }
    })
}

impl Fields {
    fn rule(&self) -> QueryRule {
        let mode = [QueryMode::Demand, QueryMode::Prepare, QueryMode::WarmUp][self.small as usize % 3];
        let (wait_full_prefix, memory_only) = (self.large.is_multiple_of(2), self.large.is_multiple_of(3));
        QueryRule { mode, strict: self.flag, wait_full_prefix, memory_only }
    }

    pub(crate) fn to_manager(&self, which: usize) -> ToManager<'_> {
        let hashes = &self.hashes[..];
        match which {
            0 => ToManager::Hello(self.text.as_bytes()),
            1 => ToManager::Attest { passed: self.flag },
            2 => ToManager::Query { group: self.group, deadline_ms: self.small, rule: self.rule(), hashes },
            3 => ToManager::Restore { first: self.small, pages: !self.small },
            4 => ToManager::Release,
            5 => ToManager::Cancel,
            6 => ToManager::CopyDone { session: self.large, operation: !self.large, revision: self.small },
            7 => ToManager::BadPage { slot: self.parts[0].slot },
            8 => ToManager::Reserve {
                group: self.group,
                parent: self.flag.then_some(self.hash),
                first_depth: self.small,
                hashes,
            },
            9 => ToManager::Commit(&self.items),
            10 => ToManager::Abort(&self.slots),
            11 => ToManager::Fenced { scheduler: self.large },
            12 => ToManager::Forget { group: self.group, hashes },
            13 => ToManager::Reset,
            14 => ToManager::Keep(&self.kept),
            15 => ToManager::Recover(RecoverBody {
                start_tokens: self.small,
                end_tokens: !self.small,
                deadline_ms: self.small / 3,
                mode: self.rule().mode,
                ranges: &self.ranges,
                hashes,
            }),
            16 => ToManager::Candidates { start_tokens: self.small, hashes },
            _ => ToManager::CopiesEnded { session: self.large },
        }
    }

    pub(crate) fn to_client(&self, which: usize) -> ToClient<'_> {
        let granted = self.statuses.iter().filter(|s| **s == GrantStatus::Slots as u8).count();
        let pages = self.statuses.len();
        match which {
            0 => ToClient::Welcome { boot: self.boot },
            1 => ToClient::Rejected { text: &self.text },
            2 => ToClient::Waiting,
            12 => ToClient::Prepared { pages: self.small },
            13 => ToClient::Warmed { pages: self.small },
            14 => ToClient::Recovered(RecoveredBody {
                ranges: &self.recovered,
                parts: &self.parts[..self.recovered.len() * 2],
            }),
            15 => ToClient::Candidates(&self.boundaries),
            16 => ToClient::TierReads { pages: self.small, left_pages: !self.small, micros: self.large },
            3 => ToClient::Ready {
                pages: u32::try_from(pages).unwrap(),
                shards: self.shards,
                parts: &self.parts[..pages * usize::from(self.shards)],
            },
            4 => ToClient::Miss(self.miss),
            5 => ToClient::Granted(GrantedBody {
                shards: self.shards,
                statuses: &self.statuses,
                parts: &self.parts[..granted * usize::from(self.shards)],
            }),
            6 => ToClient::Refused { text: &self.text },
            7 => ToClient::InstanceState { active: self.flag },
            8 => ToClient::Fence { scheduler: self.large },
            9 => ToClient::Segment { segment: self.small, slot_bytes: self.large, bytes: !self.large },
            10 => ToClient::SegmentGone { segment: self.small },
            _ => ToClient::ResetDone,
        }
    }

    /// One frame of any kind.
    pub(crate) fn frame(&self, which: usize) -> Vec<u8> {
        let mut payload = Vec::new();
        let kind = if which < TO_MANAGER {
            let message = self.to_manager(which);
            message.encode(&mut payload);
            message.kind()
        } else {
            let message = self.to_client(which - TO_MANAGER);
            message.encode(&mut payload);
            message.kind()
        };
        framed(kind, (self.large, self.small, !self.large, !self.small), &payload)
    }
}

pub(crate) fn any_kind() -> impl Strategy<Value = usize> {
    0..TO_MANAGER + TO_CLIENT
}

pub(crate) fn framed(kind: Kind, ids: (u64, u32, u64, u32), payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(&mut out, kind, ids, payload).unwrap();
    out
}
