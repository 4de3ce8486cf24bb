//! Where an engine could go on, given the pages that are there.

use crate::{Contract, GroupRule, RangeError};

impl Contract {
    /// Every boundary after `start_tokens`, among those that `hashes` hashes cover, at which each group has
    /// all that it needs, in ascending order. `has(group, page)` says whether a page is there; it is asked
    /// once for each page.
    ///
    /// # Errors
    /// A start that is no boundary.
    pub fn restorable_boundaries(
        &self,
        start_tokens: u32,
        hashes: usize,
        mut has: impl FnMut(&GroupRule, u32) -> bool,
    ) -> Result<Vec<u32>, RangeError> {
        self.check_boundary("start", start_tokens)?;
        let last = self.last_boundary(hashes);
        if last <= start_tokens {
            return Ok(Vec::new());
        }
        let widest = self.required_ranges(start_tokens, last, hashes)?;
        let step = self.boundary_tokens() as usize;
        let mut boundaries: Vec<u32> = (start_tokens..=last).step_by(step).skip(1).collect();
        for (group, range) in self.groups().iter().zip(&widest) {
            let first = start_tokens / group.page_tokens;
            // Pages in a row that are there and end before each page.
            let mut run = 0;
            let runs: Vec<u32> = (first..range.end_page)
                .map(|page| {
                    run = if has(group, page) { run + 1 } else { 0 };
                    run
                })
                .collect();
            boundaries.retain(|&boundary| {
                let end_page = boundary / group.page_tokens;
                let needed = end_page - group.rule.first_page(group.page_tokens, end_page).max(first);
                runs.get((end_page - first - 1) as usize).is_some_and(|run| *run >= needed)
            });
        }
        Ok(boundaries)
    }
}

/// The boundaries that are in every one of several ascending sets, as of several ranks: an engine whose ranks
/// look up by themselves may go on only where all of them can.
#[must_use]
pub fn common_boundaries<'a>(sets: impl IntoIterator<Item = &'a [u32]>) -> Vec<u32> {
    let mut sets = sets.into_iter();
    let mut common = sets.next().unwrap_or_default().to_vec();
    for set in sets {
        common.retain(|boundary| set.binary_search(boundary).is_ok());
    }
    common
}
