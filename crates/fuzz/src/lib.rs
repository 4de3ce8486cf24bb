//! What the fuzz targets do with their bytes, as ordinary functions.
//!
//! `fuzz/` at the root of the repository gives these functions to libFuzzer; `tests/corpus.rs` gives
//! them every file of the committed corpora, on the stable compiler and without a fuzzer. A body returns
//! for any bytes whatever, or panics: that is a finding.
#![deny(unsafe_code)]

mod bytes;
mod frames;
mod messages;
#[allow(unsafe_code, reason = "a global allocator is an unsafe trait")]
mod meter;
mod segments;
mod steps;
mod tickets;

pub use frames::frames;
pub use messages::{to_client, to_manager};
pub use meter::allocated_bytes;
pub use segments::segments;
pub use steps::{marks_of_steps, steps};
pub use tickets::tickets;

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of its binary and of the directory of its corpus.
    pub name: &'static str,
    /// What is done with the bytes.
    pub body: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 6] = [
    Target { name: "to_manager", body: to_manager },
    Target { name: "to_client", body: to_client },
    Target { name: "frames", body: frames },
    Target { name: "tickets", body: tickets },
    Target { name: "steps", body: steps },
    Target { name: "segments", body: segments },
];
