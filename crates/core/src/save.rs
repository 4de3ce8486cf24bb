//! A reservation that has slots out.

use crate::{PageGrant, Revision};

/// Kept until every granted slot is committed or given back.
#[derive(Clone, Debug)]
pub(crate) struct Save {
    pub(crate) revision: Revision,
    pub(crate) digest: u64,
    /// The answer, for a repetition of the request.
    pub(crate) grants: Vec<PageGrant>,
    /// Slots neither committed nor given back.
    pub(crate) open_slots: usize,
}
