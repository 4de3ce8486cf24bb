//! `orbitkv doctor`: what is wrong with this machine or with a running cache, and how to mend it.

mod hits;
mod host;
mod manager;
mod python;
mod ssd;

use crate::args::DoctorArgs;
use crate::manager::Endpoint;
use crate::say;
use std::process::ExitCode;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grade {
    Ok,
    /// Works, not as well as it could; or it cannot be told yet.
    Warn,
    /// Does not work.
    Fail,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) grade: Grade,
    pub(crate) what: String,
    pub(crate) fix: Option<String>,
}

impl Finding {
    pub(crate) fn ok(what: impl Into<String>) -> Self {
        Self { grade: Grade::Ok, what: what.into(), fix: None }
    }

    pub(crate) fn warn(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { grade: Grade::Warn, what: what.into(), fix: Some(fix.into()) }
    }

    pub(crate) fn fail(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { grade: Grade::Fail, what: what.into(), fix: Some(fix.into()) }
    }

    fn render(&self) -> String {
        let grade = match self.grade {
            Grade::Ok => "ok  ",
            Grade::Warn => "warn",
            Grade::Fail => "FAIL",
        };
        let fix = self.fix.as_ref().map(|fix| format!("\n      {fix}")).unwrap_or_default();
        format!("{grade}  {}{fix}\n", self.what)
    }
}

/// Prints every finding; fails if one of them does.
pub(crate) fn command(args: &DoctorArgs) -> ExitCode {
    let endpoint = Endpoint::of(&args.place);
    let mut findings = host::findings(&endpoint);
    findings.extend(ssd::findings(args.ssd.as_deref()));
    findings.extend(python::findings(&args.python));
    findings.extend(manager::findings(&endpoint));
    for finding in &findings {
        say::out(&finding.render());
    }
    let failed = findings.iter().any(|finding| finding.grade == Grade::Fail);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
