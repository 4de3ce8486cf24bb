//! Why a disk cannot be opened.

use std::io;
use thiserror::Error;

/// Failure to open a disk.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A value that cannot work.
    #[error("{name} is {got}: {fix}")]
    Config {
        /// Which value.
        name: &'static str,
        /// What it is.
        got: u64,
        /// What would do.
        fix: &'static str,
    },
    /// io_uring was asked for and is refused.
    #[error("io_uring is refused ({reason}): allow it, or choose the engine `auto` or `threads`")]
    Ring {
        /// What the kernel said.
        reason: String,
    },
    /// No way to the kernel brings pages out and back.
    #[error("the self-test of the directory failed ({reason}): give it another directory")]
    SelfTest {
        /// What went wrong, by the slowest way that may be used.
        reason: String,
    },
    /// A thread or a descriptor could not be made.
    #[error("cannot {what}: {source}; raise the limit of the process, or lower `threads`")]
    Resource {
        /// What was done.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}
