//! Flags of the engine that `run` must understand, in every way its parser accepts them.

use super::EngineError;
use std::ffi::OsString;
use std::ops::Range;

/// A flag: its name, and the shortest beginning of it that the engine's parser takes for it.
pub(super) struct Flag {
    name: &'static str,
    shortest: usize,
}

pub(super) const TRANSFER: Flag = Flag { name: "--kv-transfer-config", shortest: "--kv-t".len() };
pub(super) const HASH: Flag = Flag { name: "--prefix-caching-hash-algo", shortest: "--prefix-c".len() };
pub(super) const PORT: Flag = Flag { name: "--port", shortest: "--port".len() };
pub(super) const HOST: Flag = Flag { name: "--host", shortest: "--host".len() };
const OFFLOAD: Flag = Flag { name: "--kv-offloading-size", shortest: "--kv-offloading-s".len() };
const NO_PREFIX: Flag = Flag { name: "--no-enable-prefix-caching", shortest: "--no-enable-prefix".len() };
const CONFIG: Flag = Flag { name: "--config", shortest: "--config".len() };

/// A flag with its value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// As it was written.
    pub(super) flag: String,
    pub(super) value: String,
    /// The words it takes.
    pub(super) place: Range<usize>,
}

impl Flag {
    /// The parser takes `_` for `-` and unambiguous beginnings.
    fn is(&self, word: &str) -> bool {
        let name = word.replace('_', "-");
        name.len() >= self.shortest && self.name.starts_with(&name)
    }
}

/// The last occurrence, which is the one that counts.
///
/// # Errors
/// The flag without its value, or in a form that cannot be read as one value.
pub(super) fn find(line: &[OsString], flag: &Flag) -> Result<Option<Found>, EngineError> {
    for (at, word) in line.iter().enumerate().rev() {
        let Some(word) = word.to_str().filter(|word| word.starts_with("--")) else { continue };
        let (name, inline) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        if name.split_once('.').is_some_and(|(name, _)| flag.is(name)) {
            return Err(EngineError::Scattered(name.to_owned()));
        }
        if !flag.is(name) {
            continue;
        }
        let (value, words) = match inline {
            Some(value) => (value, 1),
            None => {
                let next = line.get(at + 1).and_then(|next| next.to_str());
                (next.ok_or_else(|| EngineError::NoValue(name.to_owned()))?, 2)
            }
        };
        return Ok(Some(Found { flag: name.to_owned(), value: value.to_owned(), place: at..at + words }));
    }
    Ok(None)
}

/// Flags with which there would be no cache, or another one.
pub(super) fn refuse_conflicts(line: &[OsString]) -> Result<(), EngineError> {
    for word in line.iter().filter_map(|word| word.to_str()).filter(|word| word.starts_with("--")) {
        let name = word.split('=').next().unwrap_or(word);
        let why = if NO_PREFIX.is(name) {
            "without prefix caching, blocks have no hash that the cache could find them by"
        } else if OFFLOAD.is(name) {
            "it chooses the engine's own offloading as connector, and an engine has one"
        } else {
            continue;
        };
        return Err(EngineError::Conflict { flag: name.to_owned(), why });
    }
    match find(line, &CONFIG)? {
        Some(found) => refuse_in_file(&found.value),
        None => Ok(()),
    }
}

/// Flags on the command line override the file, so a connector in it would be lost without a word. A file
/// that cannot be read is left to the engine's own message.
fn refuse_in_file(path: &str) -> Result<(), EngineError> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let sets_connector = |line: &str| line.trim_start().replace('_', "-").starts_with("kv-transfer-config");
    if text.lines().any(sets_connector) {
        return Err(EngineError::Scattered(format!("--config {path}")));
    }
    Ok(())
}
