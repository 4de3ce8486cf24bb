//! `--config`: what a run must know of the manager's file. The manager reads it; nobody else knows its keys.

use super::start::{self, StartError};
use serde::Deserialize;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use thiserror::Error;

/// A file that a manager takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Configured {
    /// Absolute.
    pub(crate) file: PathBuf,
    /// The socket, if the file names one.
    pub(crate) socket: Option<PathBuf>,
    /// Where HTTP is served as the file has it, `off` included; `None` if it says nothing.
    pub(crate) http: Option<String>,
}

/// Why the file cannot be used.
#[derive(Debug, Error)]
pub(crate) enum ConfiguredError {
    /// There is nobody to read it.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The manager could not be asked.
    #[error("{program}: {source}")]
    Ask {
        /// Whom.
        program: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// It takes no such file.
    #[error("{0}")]
    Refused(String),
    /// Another version of it, perhaps.
    #[error(
        "{program} config show --json says something else than this command expects: {source}; install both \
             commands from one wheel"
    )]
    Answer {
        /// Whom.
        program: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

#[derive(Deserialize)]
struct Shown {
    settings: Settings,
}

#[derive(Deserialize)]
struct Settings {
    socket: Value,
    http_addr: Value,
}

#[derive(Deserialize)]
struct Value {
    value: String,
    origin: Origin,
}

#[derive(Deserialize)]
struct Origin {
    kind: String,
}

impl Value {
    fn of_file(self) -> Option<String> {
        (self.origin.kind == "file").then_some(self.value)
    }
}

impl Configured {
    /// Has the manager read the file, without starting anything.
    pub(crate) fn read(file: &Path) -> Result<Self, ConfiguredError> {
        let program = start::locate()?;
        // Fails only without a working directory; the path as it is then is the best there is.
        let file = std::path::absolute(file).unwrap_or_else(|_| file.into());
        let asked = Command::new(&program).args(["config", "show", "--json", "--config"]).arg(&file).output();
        let output = asked.map_err(|source| ConfiguredError::Ask { program: program.clone(), source })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(ConfiguredError::Refused(text.trim().trim_start_matches("error: ").to_owned()));
        }
        let shown: Shown = serde_json::from_slice(&output.stdout)
            .map_err(|source| ConfiguredError::Answer { program, source })?;
        let Settings { socket, http_addr } = shown.settings;
        Ok(Self { file, socket: socket.of_file().map(Into::into), http: http_addr.of_file() })
    }

    /// Where a manager with this file is likely to answer.
    pub(crate) fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref()?.parse().ok()
    }
}
