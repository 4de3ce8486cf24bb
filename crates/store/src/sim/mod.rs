//! A disk in memory that crashes and fails on request.
//!
//! At a crash any subset of the 4 KiB sectors of all writes since the last sync persists, submitted and not
//! completed ones included, each sector in any version it had since; of names, a prefix of the changes, as a
//! journalling file system keeps them. Reads and writes can fail, be cut short or take their time; the file
//! system can be full.

mod disk;
mod file;
mod rng;
mod storage;

pub use disk::{Faults, SimDisk};
pub use rng::Rng;
