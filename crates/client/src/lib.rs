//! The engine's side of OrbitKV: one connection to the cache manager of the host, and the copies
//! between the engine's KV memory and the pool.
//!
//! [`SchedulerClient`] asks for pages and for room to save; [`WorkerClient`] copies. What the first one
//! learns reaches the second one as a [`Ticket`] inside the engine's own metadata.
//!
//! No engine thread ever waits for the manager. A call encodes a frame into a bounded buffer and
//! returns; the connection's own thread sends what the socket did not take at once, reads answers, and
//! keeps deadlines. A thread that waits for an answer, always for a bounded time, reads it itself. With the manager slow, stopped, dead or restarted, queries become misses, saves come
//! to nothing, and the connection is made again by itself.
#![forbid(unsafe_code)]

mod clock;
mod error;
mod hooks;
mod link;
mod operations;
mod registration;
mod scheduler;
mod sync;
mod ticket;
mod waiters;
mod worker;

pub use error::ClientError;
pub use operations::{Demand, MissReason, PreparationState, QueryState, RecoveryDemand};
pub use orbitkv_contract::{GroupRange, common_boundaries};
pub use orbitkv_wire::{GrantStatus, Hash, MAX_HASHES};
pub use registration::{GroupSpec, Registration};
pub use scheduler::{Candidates, Preparation, Query, Reservation, Reset, SchedulerClient};
pub use ticket::{PagePart, Section, Ticket, TicketError, TicketKind};
pub use worker::{
    CudaDevice, Device, LayerOrder, Load, Pinned, Save, SelfTest, Verify, WorkerClient, WorkerConfig,
    gather_block, scatter_block,
};
