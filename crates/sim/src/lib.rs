//! A simulated world around the ownership core and the protocol.
//!
//! One seed is one world: engines with their processes and clients, sockets, a manager's shell, the
//! memory of the pool, and everything that goes wrong with them. There is one thread, no clock and no
//! I/O, so a seed is a history that can be replayed. `docs/simulator.md` says what is checked.
#![forbid(unsafe_code)]

mod checks;
mod client;
mod content;
mod copies;
mod disk;
mod earlier;
mod effects;
mod engine;
mod exam;
mod failure;
mod faults;
mod heap;
mod manager;
mod model;
mod plan;
mod probe;
mod rng;
mod run;
mod scheduler;
mod scrub;
mod translate;
mod transport;
mod turns;
mod universe;
mod worker;
mod world;

pub use failure::{Checker, Failure};
pub use run::{
    Failed, PlantRow, Progress, Summary, find_plant, missing_marks, run_range, run_seed, silence_panics,
};
pub use world::{Options, Outcome};
