//! The cache manager of a host, as a library that its binary and its tests share.
//!
//! One core thread owns the [`orbitkv_core::Core`]: it waits in epoll for clients, their processes,
//! signals and its helpers, turns frames into events, and carries effects out. One thread takes and
//! returns the memory of segments, one checks pages in memory, one serves HTTP. Each cache directory has one that
//! reads and writes pages.
#![forbid(unsafe_code)]

mod admin;
mod amount;
mod args;
mod claim;
mod clock;
mod configuration;
mod connection;
mod convert;
#[cfg(feature = "test-hooks")]
mod hooks;
mod http;
mod lease_clock;
mod logging;
mod manager;
mod metrics;
mod outbox;
mod poller;
mod pool;
mod processes;
mod rate;
mod ready;
mod registration;
mod scrub;
mod server;
mod service_order;
mod sessions;
mod settings;
mod snapshot;
mod ssd;
mod tally;
mod tier;
mod verification;
mod waker;

pub use amount::{Amount, AmountError, AmountOrNone};
pub use args::{Args, HttpAddress, LogFormat, LogLevel, SsdIo, SsdWritePolicy};
pub use claim::{Claim, ClaimError};
pub use configuration::{Configuration, FileError, FileProblem, Invocation, InvocationError, Origin};
pub use manager::{StartError, run};
pub use rate::{Period, Rate, RateError, RateOrNone};
pub use server::ServerError;
pub use settings::{SettingsError, config};
pub use ssd::SsdError;
