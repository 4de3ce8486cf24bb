//! A compiled contract, and the pages that it takes to go on at a boundary.

use crate::{ContractError, RangeError, Rule};

/// Boundaries further apart than this would leave nothing to restore.
const MAX_BOUNDARY_TOKENS: u32 = 1 << 20;

/// One cache group of a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRule {
    /// Its number in keys.
    pub group: u16,
    /// Tokens of one page.
    pub page_tokens: u32,
    /// What it needs.
    pub rule: Rule,
}

/// Pages `first_page .. end_page` of one cache group; page numbers count from the start of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupRange {
    /// Its number in keys.
    pub group: u16,
    /// The first page.
    pub first_page: u32,
    /// The page after the last one.
    pub end_page: u32,
}

impl GroupRange {
    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.end_page - self.first_page
    }

    fn describe(range: Option<&Self>) -> String {
        range.map_or_else(|| "none".to_owned(), |r| format!("{} to {}", r.first_page, r.end_page))
    }
}

/// Which pages of which groups make a boundary restorable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    hash_tokens: u32,
    boundary_tokens: u32,
    groups: Vec<GroupRule>,
}

impl Contract {
    /// Compiles the rules of all groups. `hash_tokens` are the tokens that one hash of a batch covers; zero:
    /// those of the smallest page.
    ///
    /// # Errors
    /// Rules that contradict each other.
    pub fn compile(hash_tokens: u32, groups: &[GroupRule]) -> Result<Self, ContractError> {
        let Some(smallest) = groups.iter().map(|g| g.page_tokens).min() else {
            return Err(ContractError::NoGroups);
        };
        if let Some(empty) = groups.iter().find(|g| g.page_tokens == 0) {
            return Err(ContractError::EmptyPage { group: empty.group });
        }
        let hash_tokens = if hash_tokens == 0 { smallest } else { hash_tokens };
        let mut boundary_tokens = 1;
        for (i, &GroupRule { group, page_tokens, .. }) in groups.iter().enumerate() {
            if groups[..i].iter().any(|other| other.group == group) {
                return Err(ContractError::GroupTwice { group });
            }
            if !page_tokens.is_multiple_of(hash_tokens) {
                return Err(ContractError::PageBetweenHashes { group, page_tokens, hash_tokens });
            }
            boundary_tokens = common_multiple(boundary_tokens, page_tokens)?;
        }
        Ok(Self { hash_tokens, boundary_tokens, groups: groups.to_vec() })
    }

    /// Tokens between two boundaries: the least common multiple of all pages.
    #[must_use]
    pub fn boundary_tokens(&self) -> u32 {
        self.boundary_tokens
    }

    /// The rules, in the order in which they were given.
    #[must_use]
    pub fn groups(&self) -> &[GroupRule] {
        &self.groups
    }

    /// The last boundary that so many hashes cover.
    #[must_use]
    pub fn last_boundary(&self, hashes: usize) -> u32 {
        let covered = u32::try_from(self.covered(hashes)).unwrap_or(u32::MAX);
        covered - covered % self.boundary_tokens
    }

    fn covered(&self, hashes: usize) -> u64 {
        (hashes as u64).saturating_mul(u64::from(self.hash_tokens))
    }

    /// Place of a page's key in a batch of hashes.
    #[must_use]
    pub fn hash_index(&self, page_tokens: u32, page: u32) -> usize {
        let end_tokens = (u64::from(page) + 1) * u64::from(page_tokens);
        usize::try_from(end_tokens / u64::from(self.hash_tokens) - 1).unwrap_or(usize::MAX)
    }

    /// The pages of each group that must be restored to go on at `end_tokens`, when the engine holds what it
    /// needs at `start_tokens`: page-aligned, in the order of the groups, none of them empty.
    ///
    /// # Errors
    /// An empty or unaligned span, or one past the tokens that `hashes` hashes cover.
    pub fn required_ranges(
        &self,
        start_tokens: u32,
        end_tokens: u32,
        hashes: usize,
    ) -> Result<Vec<GroupRange>, RangeError> {
        self.check_boundary("start", start_tokens)?;
        if end_tokens <= start_tokens {
            return Err(RangeError::Empty { start_tokens, end_tokens });
        }
        self.check_boundary("end", end_tokens)?;
        let hashed_tokens = self.covered(hashes);
        if u64::from(end_tokens) > hashed_tokens {
            return Err(RangeError::PastBatch { end_tokens, hashes, hashed_tokens });
        }
        Ok(self.groups.iter().map(|group| group.range(start_tokens, end_tokens)).collect())
    }

    /// Checks ranges that a caller computed against [`Self::required_ranges`]: each group once, all of them,
    /// and nothing else.
    ///
    /// # Errors
    /// The first group whose range is another one.
    pub fn check_ranges(required: &[GroupRange], named: &[GroupRange]) -> Result<(), RangeError> {
        let of = |ranges: &'_ [GroupRange], group: u16| ranges.iter().find(|r| r.group == group).copied();
        for (i, range) in named.iter().enumerate() {
            if named[..i].iter().any(|other| other.group == range.group) {
                return Err(RangeError::GroupTwice { group: range.group });
            }
        }
        for group in required.iter().chain(named).map(|range| range.group) {
            let (got, want) = (of(named, group), of(required, group));
            if got != want {
                let (got, want) = (GroupRange::describe(got.as_ref()), GroupRange::describe(want.as_ref()));
                return Err(RangeError::OtherRange { group, got, want });
            }
        }
        Ok(())
    }

    pub(crate) fn check_boundary(&self, what: &'static str, got: u32) -> Result<(), RangeError> {
        let boundary_tokens = self.boundary_tokens;
        if got.is_multiple_of(boundary_tokens) {
            return Ok(());
        }
        Err(RangeError::NoBoundary { what, got, boundary_tokens })
    }
}

impl GroupRule {
    fn range(&self, start_tokens: u32, end_tokens: u32) -> GroupRange {
        let end_page = end_tokens / self.page_tokens;
        let first_page =
            self.rule.first_page(self.page_tokens, end_page).max(start_tokens / self.page_tokens);
        GroupRange { group: self.group, first_page, end_page }
    }
}

fn common_multiple(a: u32, b: u32) -> Result<u32, ContractError> {
    let (mut high, mut low) = (a, b);
    while low != 0 {
        (high, low) = (low, high % low);
    }
    let got = u64::from(a / high) * u64::from(b);
    let max = MAX_BOUNDARY_TOKENS;
    u32::try_from(got).ok().filter(|got| *got <= max).ok_or(ContractError::BoundariesTooFar { got, max })
}
