//! Checksums: work of the copy thread that nobody may have to wait for. It does a few at a time, and looks for new
//! restores in between.

use super::load::LoadJob;
use super::pinned::PinJob;
use super::save::SavePage;
use super::summers::Summed;
use crate::ticket::PagePart;
use std::collections::VecDeque;
use std::sync::Arc;

/// Who waits for a check.
#[derive(Clone)]
pub(super) enum Checked {
    /// A restore whose pages are being copied meanwhile.
    Load(Arc<LoadJob>),
    /// Pages that are restored later, or not at all.
    Pin(Arc<PinJob>),
}

impl Checked {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Load(one), Self::Load(two)) => Arc::ptr_eq(one, two),
            (Self::Pin(one), Self::Pin(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }
}

/// A page whose checksum is compared.
pub(super) struct Check {
    pub(super) of: Checked,
    /// Its place among the pages of it.
    pub(super) page: usize,
    pub(super) part: PagePart,
    pub(super) source: Summed,
}

/// A page that has been copied into the pool, and is committed with its checksum.
pub(super) struct Sum {
    pub(super) page: Arc<SavePage>,
    pub(super) target: Summed,
}

/// One of them.
pub(super) enum Chore {
    Check(Check),
    Sum(Sum),
}

impl Chore {
    /// What is to be summed for it.
    pub(super) fn summed(&self) -> &Summed {
        match self {
            Self::Check(check) => &check.source,
            Self::Sum(sum) => &sum.target,
        }
    }
}

/// What is left to do.
#[derive(Default)]
pub(super) struct Chores {
    checks: VecDeque<Check>,
    sums: VecDeque<Sum>,
}

impl Chores {
    pub(super) fn check(&mut self, check: Check) {
        self.checks.push_back(check);
    }

    pub(super) fn sum(&mut self, sum: Sum) {
        self.sums.push_back(sum);
    }

    /// The next ones, so many at most, checks first: an engine may be about to wait for them.
    pub(super) fn next(&mut self, count: usize) -> Vec<Chore> {
        let checks = self.checks.len().min(count);
        let sums = self.sums.len().min(count - checks);
        let checks = self.checks.drain(..checks).map(Chore::Check);
        checks.chain(self.sums.drain(..sums).map(Chore::Sum)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.checks.is_empty() && self.sums.is_empty()
    }

    pub(super) fn has_checks(&self) -> bool {
        !self.checks.is_empty()
    }

    pub(super) fn has_sums(&self) -> bool {
        !self.sums.is_empty()
    }

    pub(super) fn pages_to_sum(&self) -> impl Iterator<Item = &Arc<SavePage>> {
        self.sums.iter().map(|sum| &sum.page)
    }

    /// Whether a page of it is still to be checked.
    pub(super) fn checks(&self, of: &Checked) -> bool {
        self.checks.iter().any(|check| check.of.is(of))
    }
}
