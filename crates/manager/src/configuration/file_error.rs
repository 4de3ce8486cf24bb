//! What can be wrong with a configuration file.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A file that cannot be used as it is. Lines count from 1.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("--config {path}: {source}; name a TOML file that exists and that you may read")]
    Read {
        /// Which.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// No configuration is that long.
    #[error("--config {path} is longer than {max_bytes} bytes; is it the right file?")]
    TooLong {
        /// Which.
        path: PathBuf,
        /// The most that is read.
        max_bytes: u64,
    },
    /// Something in it is wrong.
    #[error("{path}:{line}: {problem}")]
    At {
        /// Which.
        path: PathBuf,
        /// Where.
        line: usize,
        /// What.
        problem: FileProblem,
    },
}

/// What is wrong at a line.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum FileProblem {
    /// No text.
    #[error("not UTF-8, so not TOML; save the file as UTF-8")]
    NotUtf8,
    /// No TOML.
    #[error("not TOML: {message}; a line is KEY = VALUE, text in quotes: pool_size = \"4gb\"")]
    NotToml {
        /// What the parser says.
        message: String,
    },
    /// A key that nothing reads.
    #[error("unknown key {key:?}; the nearest known key is {nearest:?}")]
    UnknownKey {
        /// As it is written.
        key: String,
        /// What may have been meant.
        nearest: &'static str,
    },
    /// A value of a type that the key does not take.
    #[error("{key} is {found}; write {expected}")]
    WrongType {
        /// Which.
        key: &'static str,
        /// The type, with an article.
        found: &'static str,
        /// What works.
        expected: &'static str,
    },
    /// A value of the right type that is wrong.
    #[error("{key} = {value}: {reason}; write {expected}")]
    BadValue {
        /// Which.
        key: &'static str,
        /// As it is written.
        value: String,
        /// Why not.
        reason: String,
        /// What works.
        expected: &'static str,
    },
}
