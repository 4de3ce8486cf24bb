//! The fixed mix of events: what a scheduler in the middle of its work sends.

/// One event of the mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// A new demand for a chain.
    Query,
    /// The latest demand again with a newer revision and another chain: the old lease ends.
    Revise,
    /// The oldest live demand ends.
    Release,
    /// So does this one, by another name.
    Cancel,
    /// Room for one page.
    Reserve,
    /// That page is written.
    Commit,
}

use Turn::{Cancel, Commit, Query, Release, Reserve, Revise};

/// 40 events: 24 queries (10 new, 14 revisions), 8 releases, 6 reserves or commits, 2 cancels. As many
/// demands end as begin, so it can be repeated for ever.
#[rustfmt::skip]
pub(crate) const MIX: [Turn; 40] = [
    Query, Revise, Release, Reserve, Query, Revise, Revise, Release, Commit, Query,
    Revise, Release, Query, Revise, Cancel, Reserve, Query, Revise, Revise, Release,
    Query, Revise, Release, Commit, Query, Revise, Revise, Release, Query, Revise,
    Cancel, Reserve, Query, Revise, Revise, Release, Query, Revise, Commit, Release,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_those_promised() {
        let share = |of: &[Turn]| MIX.iter().filter(|turn| of.contains(turn)).count() * 100 / MIX.len();
        assert_eq!(share(&[Query, Revise]), 60);
        assert_eq!(share(&[Release]), 20);
        assert_eq!(share(&[Reserve, Commit]), 15);
        assert_eq!(share(&[Cancel]), 5);
    }

    #[test]
    fn as_much_ends_as_begins() {
        let count = |one: Turn| MIX.iter().filter(|turn| **turn == one).count();
        assert_eq!(count(Query), count(Release) + count(Cancel));
        assert_eq!(count(Reserve), count(Commit));
    }
}
