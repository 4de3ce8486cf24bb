//! The recovery contract of an engine.
//!
//! An engine with several cache groups can go on at a token boundary only if every group has what its kind
//! of attention needs there: all pages, the last pages of a window, or one checkpoint. The contract is
//! compiled once, at registration; from then on the manager computes which pages a boundary takes, and the
//! client tells the engine the same, so neither computes it in Python.
//!
//! Tokens are counted from the start of the sequence. Page `p` of a group covers the tokens from
//! `p × page_tokens` to `(p + 1) × page_tokens`, and its key is the hash of its last block.

#![forbid(unsafe_code)]

mod boundaries;
mod contract;
mod error;
mod rule;

pub use boundaries::common_boundaries;
pub use contract::{Contract, GroupRange, GroupRule};
pub use error::{ContractError, RangeError};
pub use rule::Rule;
