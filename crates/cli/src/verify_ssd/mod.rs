//! `orbitkv verify-ssd`: reads a cache directory with the manager off, and says what is in it and what is broken.

mod check;
mod damage;
mod place;
mod progress;
mod report;
mod tally;
mod text;

use crate::args::VerifySsdArgs;
use crate::say;
use check::check;
use report::{Outcome, Unchecked};
use std::process::ExitCode;

/// Damage was found.
const DAMAGED: u8 = 1;
/// Nothing can be said of the directory.
const UNCHECKED: u8 = 2;

/// Prints what was found. The exit code is the answer: 0 clean, 1 damaged, 2 not checked.
pub(crate) fn command(args: &VerifySsdArgs) -> ExitCode {
    match check(&args.directory) {
        Ok(report) => {
            say::out(&if args.json { json(&report) } else { text::render(&report) });
            if report.outcome == Outcome::Damaged { ExitCode::from(DAMAGED) } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            if args.json {
                say::out(&json(&Unchecked::new(&args.directory, &error)));
            }
            say::line(&format!("error: {error}"));
            ExitCode::from(UNCHECKED)
        }
    }
}

fn json(value: &impl serde::Serialize) -> String {
    // Only maps whose keys are no strings cannot be written, and there are none.
    serde_json::to_string_pretty(value).map(|text| text + "\n").unwrap_or_default()
}
