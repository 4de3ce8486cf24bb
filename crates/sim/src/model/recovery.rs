//! What a recovery takes, page by page and as the words of each rule say it.

use super::Model;
use crate::failure::{Checked, Checker, ensure};
use orbitkv_core::{BlockHash, Core, GroupId, GroupSpec, Recovery, Rule, SessionId};

/// Pages of several groups, in restore order, and where each group's pages begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Required {
    pub(super) pages: Vec<(GroupId, BlockHash)>,
    pub(super) firsts: Vec<(GroupId, u32)>,
}

impl Model {
    fn groups(&self, session: SessionId) -> &[GroupSpec] {
        self.sessions.get(&session).map_or(&[], |s| &s.spec.groups)
    }

    /// Tokens between two boundaries: the first one at which every group has a page that ends.
    pub(super) fn boundary_tokens(&self, session: SessionId) -> u32 {
        let groups = self.groups(session);
        let all = |tokens: &u32| groups.iter().all(|g| tokens.is_multiple_of(g.page_tokens));
        (1..).find(all).unwrap_or(1)
    }

    /// The pages for that boundary; `None` if the recovery cannot be.
    pub(super) fn required(&self, session: SessionId, recovery: &Recovery<'_>) -> Option<Required> {
        let groups = self.groups(session);
        let hash_tokens = groups.iter().map(|g| g.page_tokens).min()?;
        let boundary_tokens = self.boundary_tokens(session);
        let (start, end, hashes) = (recovery.start_tokens, recovery.end_tokens, recovery.hashes);
        let covered = hash_tokens * u32::try_from(hashes.len()).ok()?;
        if start >= end || end > covered {
            return None;
        }
        if !start.is_multiple_of(boundary_tokens) || !end.is_multiple_of(boundary_tokens) {
            return None;
        }
        let mut required = Required { pages: Vec::new(), firsts: Vec::new() };
        for group in groups {
            let mut first = None;
            for page in start / group.page_tokens..end / group.page_tokens {
                let (begins, ends) = (page * group.page_tokens, (page + 1) * group.page_tokens);
                let needed = match group.rule {
                    Rule::Prefix => true,
                    // Some token of the page is in the window, once the window is rounded up to whole pages.
                    Rule::Window { tokens } => begins + tokens.next_multiple_of(group.page_tokens) >= end,
                    Rule::Checkpoint => ends == end,
                };
                if needed {
                    first.get_or_insert(page);
                    required.pages.push((group.group, hashes[(ends / hash_tokens - 1) as usize]));
                }
            }
            required.firsts.push((group.group, first?));
        }
        let most = self.config.hashes_per_request;
        (required.pages.len() <= most && !hashes.is_empty() && hashes.len() <= most).then_some(required)
    }

    /// The boundaries that the core named must be all those of which every page is there.
    pub(super) fn check_candidates(
        &self,
        session: SessionId,
        (start_tokens, hashes): (u32, &[BlockHash]),
        boundaries: &[u32],
        core: &Core,
    ) -> Checked {
        let instance = self.sessions.get(&session).map(|s| s.spec.instance);
        let active = core.instances().any(|(id, active, _)| Some(id) == instance && active);
        let here = |group, hash| self.key(session, group, hash).is_some_and(|key| self.is_here(&key, core));
        let hash_tokens = self.groups(session).iter().map(|g| g.page_tokens).min().unwrap_or(1);
        let covered = hash_tokens * u32::try_from(hashes.len()).unwrap_or(0);
        let step = self.boundary_tokens(session) as usize;
        let ends = (start_tokens..=covered).step_by(step).skip(1);
        let want: Vec<u32> = ends
            .filter(|&end_tokens| {
                let (ranges, deadline_ms, mode) = (&[][..], None, orbitkv_core::Mode::Demand);
                let recovery = Recovery { start_tokens, end_tokens, hashes, ranges, deadline_ms, mode };
                // The limit on pages is not one on boundaries, and no batch of these worlds reaches it.
                let required = self.required(session, &recovery);
                active && required.is_some_and(|r| r.pages.iter().all(|(group, hash)| here(*group, *hash)))
            })
            .collect();
        ensure(boundaries == want, Checker::Model, || {
            format!(
                "{session:?} was told of boundaries {boundaries:?} from {start_tokens} on, not of {want:?}"
            )
        })
    }
}
