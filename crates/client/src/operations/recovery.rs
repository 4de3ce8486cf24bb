//! Recoveries: what an engine of several cache groups asks for at a token boundary.

use super::counters::count;
use super::demand::Demand;
use super::table::{Entry, MAX_LIVE, Operations};
use crate::sync::OnceLock;
use crate::waiters::Waiters;
use orbitkv_contract::GroupRange;
use orbitkv_wire::{Hash, MAX_HASHES, QueryMode, QueryRule, RangeItem, RecoverBody, ToManager};
use std::sync::Arc;
use std::time::Duration;

/// All that the engine needs to go on at a token boundary: pages of every cache group. It is had as a whole
/// or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryDemand {
    /// The engine holds what it needs up to here: a boundary.
    pub start_tokens: u32,
    /// Where it will go on: a later boundary.
    pub end_tokens: u32,
    /// Pages of each cache group, as the contract takes them. The manager refuses any others.
    pub ranges: Vec<GroupRange>,
    /// Hashes of the sequence from its first token on.
    pub hashes: Vec<Hash>,
}

/// The pages that a query asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wants<'a> {
    /// The longest prefix of these.
    Prefix { group: u16, hashes: &'a [Hash] },
    /// All that a boundary needs; the second: its ranges as they travel.
    Recovery(&'a RecoveryDemand, &'a [RangeItem]),
}

/// The same, kept.
#[derive(Clone, Debug)]
pub(crate) enum Kept {
    Prefix { group: u16, hashes: Vec<Hash> },
    Recovery(RecoveryDemand, Vec<RangeItem>),
}

impl Wants<'_> {
    fn hashes(&self) -> &[Hash] {
        match self {
            Self::Prefix { hashes, .. } => hashes,
            Self::Recovery(demand, _) => &demand.hashes,
        }
    }

    /// Whether there is nothing to ask for.
    pub(super) fn is_empty(&self) -> bool {
        self.hashes().is_empty()
    }

    /// Whether a frame cannot hold it.
    pub(super) fn is_too_long(&self) -> bool {
        self.hashes().len() > MAX_HASHES
    }

    /// The group of a prefix.
    pub(super) fn group(&self) -> u16 {
        match self {
            Self::Prefix { group, .. } => *group,
            Self::Recovery(..) => 0,
        }
    }

    pub(super) fn message(&self, deadline_ms: u32, rule: QueryRule) -> ToManager<'_> {
        match *self {
            Self::Prefix { group, hashes } => ToManager::Query { group, deadline_ms, rule, hashes },
            Self::Recovery(demand, ranges) => ToManager::Recover(RecoverBody {
                start_tokens: demand.start_tokens,
                end_tokens: demand.end_tokens,
                deadline_ms,
                mode: rule.mode,
                ranges,
                hashes: &demand.hashes,
            }),
        }
    }

    pub(super) fn keep(&self) -> Kept {
        match *self {
            Self::Prefix { group, hashes } => Kept::Prefix { group, hashes: hashes.to_vec() },
            Self::Recovery(demand, ranges) => Kept::Recovery(demand.clone(), ranges.to_vec()),
        }
    }
}

impl Kept {
    pub(super) fn wants(&self) -> Wants<'_> {
        match self {
            Self::Prefix { group, hashes } => Wants::Prefix { group: *group, hashes },
            Self::Recovery(demand, ranges) => Wants::Recovery(demand, ranges),
        }
    }
}

impl RecoveryDemand {
    /// Its ranges as they travel.
    pub(crate) fn items(&self) -> Vec<RangeItem> {
        let item = |range: &GroupRange| RangeItem {
            group: range.group.into(),
            zero: 0.into(),
            first_page: range.first_page.into(),
            end_page: range.end_page.into(),
        };
        self.ranges.iter().map(item).collect()
    }
}

/// Where a recovery could end.
#[derive(Debug, Default)]
pub(crate) struct CandidatesCell {
    boundaries: OnceLock<Vec<u32>>,
    waiters: Waiters,
}

impl CandidatesCell {
    pub(crate) fn boundaries(&self) -> Option<&[u32]> {
        self.boundaries.get().map(Vec::as_slice)
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Option<&[u32]> {
        self.waiters.wait(timeout, || self.boundaries().is_none());
        self.boundaries()
    }

    /// The first answer stays.
    pub(super) fn answer(&self, boundaries: Vec<u32>) {
        self.waiters.change(|| self.boundaries.set(boundaries)).ok();
    }
}

impl Operations {
    /// Asks for a boundary.
    pub(crate) fn recover(&self, recovery: &RecoveryDemand, deadline_ms: u32) -> Arc<super::QueryCell> {
        let items = recovery.items();
        let demand = Demand { deadline_ms, strict: true, ..Demand::default() };
        self.ask(|table| self.open_query(table, Wants::Recovery(recovery, &items), demand))
    }

    /// Asks where a recovery could end. Without a manager, or over a limit: nowhere.
    pub(crate) fn candidates(&self, start_tokens: u32, hashes: &[Hash]) -> (u64, Arc<CandidatesCell>) {
        let cell = Arc::new(CandidatesCell::default());
        let mut table = self.lock();
        let fits = !hashes.is_empty() && hashes.len() <= MAX_HASHES && table.live.len() < MAX_LIVE;
        let message = ToManager::Candidates { start_tokens, hashes };
        match fits.then(|| table.open(&self.link, &message)) {
            Some(Ok((_, operation))) => {
                count(&self.counters.candidate_queries);
                table.live.insert(operation, Entry::Candidates(Arc::clone(&cell)));
                (operation, cell)
            }
            _ => {
                cell.answer(Vec::new());
                (0, cell)
            }
        }
    }

    /// Nobody waits for that answer any more.
    pub(crate) fn drop_candidates(&self, operation: u64, cell: &CandidatesCell) {
        if cell.boundaries().is_none() {
            self.lock().live.remove(&operation);
        }
    }

    pub(super) fn candidates_found(&self, operation: u64, boundaries: Vec<u32>) {
        if let Some(Entry::Candidates(cell)) = self.lock().live.remove(&operation) {
            cell.answer(boundaries);
        }
    }
}

/// What a query is for that is read ahead.
pub(super) fn ahead(mode: QueryMode, wants: &Wants<'_>) -> QueryRule {
    // A recovery is strict whatever the rule says.
    QueryRule { mode, strict: matches!(wants, Wants::Recovery(..)), ..QueryRule::default() }
}
