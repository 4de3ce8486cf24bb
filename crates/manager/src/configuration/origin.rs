//! Where a value comes from.

use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// Who set a value, from the weakest to the strongest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Origin {
    /// Nobody.
    Default,
    /// The configuration file.
    File {
        /// As it was given.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// That variable of the environment.
    #[serde(rename = "env")]
    Environment {
        /// Its name.
        name: &'static str,
    },
    /// The command line.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "file {}:{line}", path.display()),
            Self::Environment { name } => write!(f, "env {name}"),
            Self::Default => f.write_str("default"),
            Self::Flag => f.write_str("flag"),
        }
    }
}
