//! A manager in its own process, and clients that speak the protocol by hand.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "tests")]

mod beside;
mod client;
mod engine;
mod manager;
pub mod ssd;

pub use beside::Beside;
pub use client::{Client, Message, hello};
pub use engine::{Engine, PAGE_BYTES, hash, page};
pub use manager::{Exit, Manager, command, run_to_end};

use std::time::{Duration, Instant};

/// Longest wait for something that happens at once on an idle machine: it ends a broken test, it is
/// not a promise.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `probe` gives a value.
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
