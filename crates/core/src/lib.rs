//! The ownership core of OrbitKV: who owns, wants and may touch every page of the pool.
//!
//! [`Core::step`] takes the time and one [`Event`] and appends [`Effect`]s. There is no clock, no I/O,
//! no thread and no `unsafe` in here, so the simulator drives exactly the code that serves engines.
//!
//! Two facts about a page never share a flag. *Interest* (an operation, a lease, the index) may end at
//! any moment. *Custody* (a client copying into or out of the bytes) ends only by evidence: the copy
//! is reported done, the process has exited, or the process attests that its copies ended. Bytes are
//! reused only when custody is empty.
#![forbid(unsafe_code)]

mod config;
mod core;
mod counters;
mod effect;
mod event;
mod histogram;
mod ids;
mod index;
mod instance;
mod ledger;
mod loading;
mod marks;
mod operation;
mod operations;
mod page;
mod phase;
mod plant;
mod policy;
mod refusal;
mod save;
mod session;
mod slab;
mod slots;
mod stored;
mod stored_name;
mod view;
mod wanted;

pub use crate::core::{BUDGET_WAIT_BUCKETS, Core};
pub use config::{Config, ConfigError, WritePolicy};
pub use counters::{Counters, ScrubCounters};
pub use effect::{Effect, Grant, MissReason, OperationOutcome, PageGrant, PagePart, RecoveredRange};
pub use event::{Demand, Event, Evidence, Mode, Recovery, SaveRequest};
pub use histogram::Histogram;
pub use ids::{
    BlockHash, ClientId, ExtentId, GroupId, InstanceId, Micros, NamespaceDigest, NamespaceId, OperationId,
    PageKey, Revision, SegmentId, SessionId, ShardId, SlotRef, Ticket,
};
pub use ledger::{Account, Ledger};
pub use marks::Mark;
pub use orbitkv_contract::{Contract, ContractError, GroupRange, RangeError, Rule};
pub use phase::{Phase, Trigger};
pub use plant::Plant;
pub use refusal::Refusal;
pub use session::{GroupSpec, Role, SessionSpec};
pub use slots::SlotState;
pub use stored_name::{FoundShard, StoredName, StoredShard};
pub use view::{OperationView, SlotView};
