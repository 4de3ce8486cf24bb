//! Flags of the engines that `run` must understand, in every way their parsers accept them.

use super::EngineError;
use std::ffi::OsString;
use std::ops::Range;

/// A flag: its name, and the shortest beginning of it that the engine's parser takes for it.
pub(super) struct Flag {
    name: &'static str,
    shortest: usize,
}

/// A flag with which there would be no cache, or another one, and why.
pub(super) type Conflict = (Flag, &'static str);

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
    /// `shortest` is a beginning of `name`.
    pub(super) const fn new(name: &'static str, shortest: &str) -> Self {
        Self { name, shortest: shortest.len() }
    }

    /// vLLM's parser takes `_` for `-`, and both take unambiguous beginnings.
    fn is(&self, word: &str) -> bool {
        let name = word.replace('_', "-");
        name.len() >= self.shortest && self.name.starts_with(&name)
    }
}

/// The name part of a word that is a flag.
fn name_of(word: &OsString) -> Option<&str> {
    let word = word.to_str().filter(|word| word.starts_with("--"))?;
    word.split('=').next()
}

/// Whether a flag without a value is there.
pub(super) fn given(line: &[OsString], flag: &Flag) -> bool {
    line.iter().filter_map(name_of).any(|name| flag.is(name))
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

/// Refuses the first flag that is in `conflicts`.
pub(super) fn refuse_conflicts(line: &[OsString], conflicts: &[Conflict]) -> Result<(), EngineError> {
    for name in line.iter().filter_map(name_of) {
        if let Some((_, why)) = conflicts.iter().find(|(flag, _)| flag.is(name)) {
            return Err(EngineError::Conflict { flag: name.to_owned(), why });
        }
    }
    Ok(())
}

/// Whether a configuration file has a line that begins with the name of one of the flags. A file that
/// cannot be read is left to the engine's own message.
pub(super) fn named_in_file<'a>(path: &str, flags: impl IntoIterator<Item = &'a Flag>) -> Option<&'a str> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let keys: Vec<String> = text
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0.trim().trim_start_matches('-').replace('_', "-")))
        .collect();
    flags
        .into_iter()
        .map(|flag| flag.name)
        .find(|name| keys.iter().any(|key| key == name.trim_start_matches('-')))
}
