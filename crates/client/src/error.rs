//! What makes a call impossible. Nothing here is about the manager being away: that is a miss.

use crate::TicketError;
use orbitkv_contract::{ContractError, RangeError};
use thiserror::Error;

/// A call that cannot be carried out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// An argument outside its range.
    #[error("{name} is {got}; it must be {want}")]
    Value {
        /// Which argument.
        name: &'static str,
        /// What came.
        got: String,
        /// What is allowed.
        want: String,
    },
    /// A ticket that is not one, or not for this call.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// A recovery contract that contradicts itself.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// A recovery that the contract does not allow.
    #[error(transparent)]
    Recovery(#[from] RangeError),
    /// The query has no lease to hand out.
    #[error("query is {state}, not ready: compute these tokens instead")]
    NotReady {
        /// Its state or miss reason.
        state: &'static str,
    },
    /// The preparation has become a query.
    #[error("the preparation was claimed before: use the query of that claim")]
    Spent,
    /// A limit of this client.
    #[error("{what}: at most {max}")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// Its value.
        max: usize,
    },
    /// The client has been closed.
    #[error("the client is closed; make a new one")]
    Closed,
    /// The system refuses something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
    /// The copy engine cannot do it.
    #[error("copy: {0}")]
    Copy(String),
}

impl ClientError {
    #[allow(clippy::needless_pass_by_value)] // Mostly temporaries.
    pub(crate) fn value(name: &'static str, got: impl std::fmt::Display, want: impl Into<String>) -> Self {
        Self::Value { name, got: got.to_string(), want: want.into() }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
