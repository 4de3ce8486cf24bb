//! What a checker says when something is wrong.

use std::fmt;
use thiserror::Error;

/// The checker that noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Checker {
    /// Restored bytes, and what may be visible.
    Bytes,
    /// Who touches which slot.
    Custody,
    /// Accounts and budgets.
    Ledger,
    /// The core's books against each other.
    Audit,
    /// Everything ends, and pages are usable again.
    Liveness,
    /// Nobody is overtaken.
    Fairness,
    /// The reference model expects another answer.
    Model,
    /// A frame that does not decode, or that nobody should have sent.
    Protocol,
    /// The same seed gave another history.
    Determinism,
    /// An assertion of the core.
    Panic,
}

impl fmt::Display for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::Custody => "custody",
            Self::Ledger => "ledger",
            Self::Audit => "audit",
            Self::Liveness => "liveness",
            Self::Fairness => "fairness",
            Self::Model => "model",
            Self::Protocol => "protocol",
            Self::Determinism => "determinism",
            Self::Panic => "panic",
        })
    }
}

/// A failed check, in words.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{checker}: {words}")]
pub struct Failure {
    /// Who noticed.
    pub checker: Checker,
    /// What.
    pub words: String,
}

/// What every step of a world returns.
pub(crate) type Checked = Result<(), Failure>;

/// Fails with these words unless it holds.
pub(crate) fn ensure(holds: bool, checker: Checker, words: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Failure { checker, words: words() }) }
}

/// A failure with these words.
pub(crate) fn fail<T>(checker: Checker, words: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { checker, words: words.into() })
}
