//! A query and everything it owns.

use crate::ledger::Account;
use crate::loading::Loading;
use crate::slab::PageId;
use crate::wanted::Wanted;
use crate::{BlockHash, Demand, GroupId, InstanceId, Micros, Mode, NamespaceId, Phase, SessionId};
use std::ops::Range;

/// A worker that may be copying for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owing {
    pub(crate) session: SessionId,
    pub(crate) rank: u16,
}

/// Which of the leased pages the workers were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Handed {
    pub(crate) first: u32,
    pub(crate) pages: u32,
}

impl Handed {
    /// Places of those pages, if there are any and `leased` pages cover them.
    pub(crate) fn within(self, leased: usize) -> Option<Range<usize>> {
        let (first, pages) = (self.first as usize, self.pages as usize);
        let end = first.checked_add(pages).filter(|end| pages > 0 && *end <= leased)?;
        Some(first..end)
    }
}

/// A query as the core keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) instance: InstanceId,
    pub(crate) namespace: NamespaceId,
    pub(crate) phase: Phase,
    /// Digest of the parameters, to tell a repetition from a change.
    pub(crate) digest: u64,
    /// All of it or nothing.
    pub(crate) strict: bool,
    /// Batches and deadlines do not cut it short.
    pub(crate) wait_full_prefix: bool,
    /// Nothing is read for it.
    pub(crate) memory_only: bool,
    /// The pages it asks for.
    pub(crate) wanted: Wanted,
    /// Pages that a read brought for it.
    pub(crate) read: usize,
    /// Pages it leases, in the order in which they are wanted.
    pub(crate) pages: Vec<PageId>,
    /// What it still reads, while it prepares.
    pub(crate) loading: Option<Box<Loading>>,
    /// Where its reads are booked: ahead of demand, or for one.
    pub(crate) reading: Account,
    /// Pages whose reads go on after it has stopped to wait for them; their bytes stay booked as read.
    pub(crate) lingering: u32,
    /// Bytes of those pages.
    pub(crate) lingering_bytes: u64,
    /// Bytes it has reserved beside those, and where they are booked.
    pub(crate) charge: Option<(Account, u64)>,
    /// When it ends by itself.
    pub(crate) expires_at: Micros,
    /// How many queries came before it.
    pub(crate) arrival: u64,
    /// Its deadline in the waiting queue, while it is there.
    pub(crate) queued: Option<Micros>,
    /// Whether the deadline, not the lifetime, ends the wait.
    pub(crate) by_deadline: bool,
    /// The lease has run out and its owner was asked to give it back.
    pub(crate) revoked: bool,
    /// What the owner's `Restore` named, to tell a repetition from a change.
    pub(crate) handed: Handed,
    /// Workers that have not said that they are done.
    pub(crate) owing: Vec<Owing>,
    /// Workers that said so before the owner's `Restore` was read: the engine carries a ticket to its
    /// workers on a way of its own, which may be the shorter one.
    pub(crate) early: Vec<SessionId>,
}

/// Order of the waiting queue: by deadline among those that came together, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Nobody of a later turn goes first, whatever its deadline: this bounds how often one is overtaken.
    pub(crate) turn: u64,
    pub(crate) deadline: Micros,
    pub(crate) arrival: u64,
}

impl Operation {
    /// Bytes it owns.
    pub(crate) fn bytes(&self) -> u64 {
        self.charge.map_or(0, |(_, bytes)| bytes) + self.lingering_bytes
    }

    /// Group and number of the pages it asks for.
    pub(crate) fn asked(&self) -> (GroupId, usize) {
        (self.wanted.group(), self.wanted.len())
    }
}

/// What is asked of a query, beside its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Group and number of the pages.
    pub(crate) asked: (GroupId, usize),
    /// See [`Operation::digest`].
    pub(crate) digest: u64,
    pub(crate) deadline_ms: Option<u32>,
    pub(crate) mode: Mode,
    pub(crate) strict: bool,
    pub(crate) wait_full_prefix: bool,
    pub(crate) memory_only: bool,
}

impl From<&Demand<'_>> for Ask {
    fn from(demand: &Demand<'_>) -> Self {
        let Demand { group, hashes, deadline_ms, mode, strict, wait_full_prefix, memory_only } = *demand;
        let (asked, digest) = ((group, hashes.len()), demand_digest(demand));
        Self { asked, digest, deadline_ms, mode, strict, wait_full_prefix, memory_only }
    }
}

/// A word-wise multiply-and-rotate digest: only repetitions of a session's own requests are compared, so
/// it need not resist an adversary, but it runs over every hash of every query. Four lanes, because each
/// step of one waits for its last.
pub(crate) fn digest(group: GroupId, lead: u64, hashes: &[BlockHash]) -> u64 {
    let mix = |h: u64, word: u64| (h ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let start = mix(mix(0xcbf2_9ce4_8422_2325, u64::from(group.0)), lead);
    let mut lanes = [start, start ^ 1, start ^ 2, start ^ 3];
    for hash in hashes {
        for (lane, word) in lanes.iter_mut().zip(hash.0.as_chunks::<8>().0) {
            *lane = mix(*lane, u64::from_le_bytes(*word));
        }
    }
    lanes.into_iter().fold(hashes.len() as u64, mix)
}

/// Digest of a demand. Deadline and mode may differ: they are not part of what is asked, and a claim asks
/// for what was prepared.
fn demand_digest(demand: &Demand<'_>) -> u64 {
    let (patient, memory_only) = (u64::from(demand.wait_full_prefix), u64::from(demand.memory_only));
    let rule = 2 + u64::from(demand.strict) + 2 * patient + 4 * memory_only;
    digest(demand.group, rule, demand.hashes)
}
