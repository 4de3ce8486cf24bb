//! Rules a request can break.

use orbitkv_contract::{ContractError, RangeError};
use thiserror::Error;

/// Why a request had no effect. The text names the value and, where there is one, the fix.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The session is not open.
    #[error("session is not open; connect again")]
    UnknownSession,
    /// The client connected with an epoch that is not newer than its last one.
    #[error("epoch {got} of this client is not newer than {last}; connect with a higher epoch")]
    StaleEpoch {
        /// What came.
        got: u32,
        /// The newest known.
        last: u32,
    },
    /// The role may not do this.
    #[error("a {role} session may not {what}")]
    WrongRole {
        /// The role.
        role: &'static str,
        /// The request.
        what: &'static str,
    },
    /// Sessions of one instance disagree.
    #[error("instance has another {what}; all sessions of an instance must register alike")]
    InstanceMismatch {
        /// What differs.
        what: &'static str,
    },
    /// The seat is taken by a live session of another client.
    #[error("{role} of this instance is connected already")]
    SeatTaken {
        /// Which seat.
        role: &'static str,
    },
    /// The group is not registered.
    #[error("cache group {0} is not registered")]
    UnknownGroup(u16),
    /// A registration makes no sense.
    #[error("registration: {0}")]
    BadSpec(&'static str),
    /// A recovery contract contradicts itself.
    #[error("registration: {0}")]
    Contract(#[from] ContractError),
    /// The recovery contract does not allow this recovery.
    #[error(transparent)]
    Recovery(#[from] RangeError),
    /// No pages asked for, or too many.
    #[error("{got} hashes in one request; the limits are 1 and {max}")]
    HashCount {
        /// What came.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// The operation has ended.
    #[error("operation has ended; operation ids only grow")]
    RetiredOperation,
    /// A newer revision exists.
    #[error("revision {got} is older than {current}")]
    StaleRevision {
        /// What came.
        got: u32,
        /// The live one.
        current: u32,
    },
    /// The same revision came with other parameters.
    #[error("the same revision came with other parameters; raise the revision")]
    ParametersChanged,
    /// The operation is not in a phase that allows this.
    #[error("operation is {phase}, which does not allow {what}")]
    WrongPhase {
        /// Its phase.
        phase: &'static str,
        /// The request.
        what: &'static str,
    },
    /// No such operation.
    #[error("no such operation")]
    UnknownOperation,
    /// The slot is not in this session's custody, or has been reused since.
    #[error("slot is not held by this session")]
    NotInCustody,
    /// The commit names another page than the reservation.
    #[error("commit names another page than the slot was reserved for")]
    WrongPage,
    /// A restore of no page, or of pages outside the lease.
    #[error(
        "restore of {pages} pages from page {first} on, {leased} are leased; name one page or more, all of them leased"
    )]
    OutsideLease {
        /// First page that came.
        first: u32,
        /// How many came.
        pages: u32,
        /// The limit.
        leased: usize,
    },
    /// A restore of a part of a recovery.
    #[error(
        "restore of {pages} pages from page {first} on, the recovery has {leased}; it is handed out as a whole"
    )]
    PartOfRecovery {
        /// First page that came.
        first: u32,
        /// How many came.
        pages: u32,
        /// All there are.
        leased: usize,
    },
    /// No worker can copy.
    #[error("no worker of the instance is connected")]
    NoWorker,
    /// A limit of the configuration.
    #[error("limit reached: {what} (at most {max})")]
    Limit {
        /// Which limit.
        what: &'static str,
        /// Its value.
        max: usize,
    },
}
