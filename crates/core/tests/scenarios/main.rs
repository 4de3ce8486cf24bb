//! Short stories through the public interface, each about one promise.
#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests stop the test")]

mod demands;
mod pages;
mod recovery;
mod scrub;
mod sessions;
mod speculation;
mod tier;
mod tiered;
mod world;
