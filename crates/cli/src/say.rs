//! Lines for people. A closed stream is no reason to stop an engine, so failures to write are ignored.

use std::io::Write;

/// One line on standard error.
pub(crate) fn line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Text on standard output, as it is.
pub(crate) fn out(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}
