//! What a contract or a range can get wrong.

use thiserror::Error;

/// A contract that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ContractError {
    /// Nothing to restore.
    #[error("a recovery contract needs at least one cache group")]
    NoGroups,
    /// Two rules for one group.
    #[error("cache group {group} has two recovery rules; give one")]
    GroupTwice {
        /// Its number.
        group: u16,
    },
    /// A length of zero.
    #[error("cache group {group} has pages of 0 tokens; a page has at least 1")]
    EmptyPage {
        /// Its number.
        group: u16,
    },
    /// A page would end between two hashes.
    #[error(
        "cache group {group} has pages of {page_tokens} tokens, which hashes of {hash_tokens} tokens do not divide"
    )]
    PageBetweenHashes {
        /// Its number.
        group: u16,
        /// Tokens of its pages.
        page_tokens: u32,
        /// Tokens of a hash.
        hash_tokens: u32,
    },
    /// Page lengths whose common boundaries are too far apart.
    #[error("pages of all cache groups end together only every {got} tokens; at most {max} are allowed")]
    BoundariesTooFar {
        /// Tokens between two boundaries.
        got: u64,
        /// The limit.
        max: u32,
    },
    /// A rule nobody knows.
    #[error("recovery rule is {got:?}; it must be \"prefix\", \"window:TOKENS\" or \"checkpoint\"")]
    UnknownRule {
        /// The first characters of it.
        got: String,
    },
}

/// A recovery that a contract does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RangeError {
    /// Nothing to do.
    #[error("recovery from token {start_tokens} to {end_tokens} is empty; the end must be after the start")]
    Empty {
        /// First token that is asked for.
        start_tokens: u32,
        /// The boundary.
        end_tokens: u32,
    },
    /// A token at which not every group has a page that ends.
    #[error("recovery {what} {got} is no boundary; boundaries are multiples of {boundary_tokens} tokens")]
    NoBoundary {
        /// `start` or `end`.
        what: &'static str,
        /// The token.
        got: u32,
        /// Tokens between two boundaries.
        boundary_tokens: u32,
    },
    /// More tokens than the hashes cover.
    #[error(
        "recovery ends at token {end_tokens}, past the {hashed_tokens} tokens that the {hashes} hashes cover"
    )]
    PastBatch {
        /// The boundary.
        end_tokens: u32,
        /// Hashes of the batch.
        hashes: usize,
        /// Tokens that they cover.
        hashed_tokens: u64,
    },
    /// The caller's ranges are not what its contract says.
    #[error("recovery of cache group {group}: the demand names pages {got}; the contract takes {want}")]
    OtherRange {
        /// The group.
        group: u16,
        /// What came, or "none".
        got: String,
        /// What is needed, or "none".
        want: String,
    },
    /// The caller names a group twice.
    #[error("recovery names cache group {group} twice; each group has one range")]
    GroupTwice {
        /// The group.
        group: u16,
    },
}
