//! Reading a configuration file.

use super::setting::{self, Setting};
use super::{FileError, FileProblem};
use crate::args::Args;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Far more than every key with a long comment.
const MAX_BYTES: u64 = 64 << 10;

/// A value of the file, not yet read as what its key is.
pub(crate) struct Entry {
    pub(crate) setting: &'static Setting,
    /// From 1.
    pub(crate) line: usize,
    /// What the flag would be given, once or several times.
    texts: Vec<String>,
    /// What stands in the file.
    written: String,
}

impl Entry {
    /// Sets the value.
    pub(crate) fn apply(&self, args: &mut Args, path: &Path) -> Result<(), FileError> {
        let Setting { key, expected, set, .. } = self.setting;
        self.texts.iter().try_for_each(|text| set(args, text)).map_err(|reason| {
            let problem = FileProblem::BadValue { key, value: self.written.clone(), reason, expected };
            FileError::At { path: path.into(), line: self.line, problem }
        })
    }
}

/// Every value of the file, in the order of its lines.
pub(crate) fn read(path: &Path) -> Result<Vec<Entry>, FileError> {
    let failed = |source| FileError::Read { path: path.into(), source };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(FileError::TooLong { path: path.into(), max_bytes: MAX_BYTES });
    }
    let at = |offset, problem| FileError::At { path: path.into(), line: line_of(&bytes, offset), problem };
    let text = std::str::from_utf8(&bytes).map_err(|error| at(error.valid_up_to(), FileProblem::NotUtf8))?;
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        at(offset, FileProblem::NotToml { message: error.message().to_owned() })
    })?;
    let mut values: Vec<_> = table.get_ref().iter().collect();
    // The table is sorted by key, but a reader goes from top to bottom.
    values.sort_by_key(|(key, _)| key.span().start);
    values
        .into_iter()
        .map(|(key, value)| {
            let offset = key.span().start;
            let (setting, texts) = entry(key.get_ref(), value).map_err(|problem| at(offset, problem))?;
            let written = text.get(value.span()).unwrap_or_default().to_owned();
            Ok(Entry { setting, line: line_of(&bytes, offset), texts, written })
        })
        .collect()
}

/// The setting of a key, and its value as text; a list is several.
fn entry(key: &str, value: &Spanned<DeValue<'_>>) -> Result<(&'static Setting, Vec<String>), FileProblem> {
    let setting = setting::find(key)
        .ok_or_else(|| FileProblem::UnknownKey { key: key.to_owned(), nearest: setting::nearest(key) })?;
    let found = match value.get_ref() {
        DeValue::String(text) => return Ok((setting, vec![text.clone().into_owned()])),
        DeValue::Array(items) if setting.takes_list => {
            let texts: Option<Vec<String>> =
                items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect();
            match texts {
                Some(texts) => return Ok((setting, texts)),
                None => "an array with something else than text",
            }
        }
        DeValue::Integer(integer) if setting.takes_integer => {
            // Of any radix; what does not fit is left to the size's own parser to refuse.
            let bytes = u64::from_str_radix(integer.as_str(), integer.radix());
            let text = bytes.map_or_else(|_| integer.to_string(), |bytes| bytes.to_string());
            return Ok((setting, vec![text]));
        }
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    };
    Err(FileProblem::WrongType { key: setting.key, found, expected: setting.expected })
}

fn line_of(bytes: &[u8], offset: usize) -> usize {
    1 + bytes.iter().take(offset).filter(|byte| **byte == b'\n').count()
}
