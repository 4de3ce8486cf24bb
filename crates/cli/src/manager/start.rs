//! Starting a manager and waiting until engines can connect.

use super::find::read_note;
use super::{Endpoint, Launch, Running, find};
use crate::program::{is_program, on_path};
use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

const PROGRAM: &str = "orbitkv-cache-manager";
/// Populating a first segment takes well under a second.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
const LOG_TAIL_LINES: usize = 12;

/// A manager that was started here.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) running: Running,
    pub(crate) child: Child,
}

/// Why there is none.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    /// Not installed.
    #[error("{PROGRAM} is neither beside {beside} nor on PATH; install both commands with the orbitkv wheel")]
    NotFound {
        /// Where this program is.
        beside: PathBuf,
    },
    /// It could not be run.
    #[error("{program}: {source}")]
    Spawn {
        /// What.
        program: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// Its log file.
    #[error("{path}: {source}")]
    Log {
        /// Where.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// It ended at once.
    #[error("the cache manager ended with {status}:\n{tail}\n({log})")]
    Ended {
        /// How.
        status: ExitStatus,
        /// Last lines of its log.
        tail: String,
        /// All of it.
        log: String,
    },
    /// It is not ready.
    #[error("the cache manager was not ready within {} s:\n{tail}\n({log})", PATIENCE.as_secs())]
    Slow {
        /// Last lines of its log.
        tail: String,
        /// All of it.
        log: String,
    },
    /// A signal came.
    #[error("interrupted")]
    Interrupted,
}

/// Starts one. Between polls it asks `interrupted`; the manager is gone again
/// whenever this fails.
pub(crate) fn start(
    endpoint: &Endpoint,
    launch: &Launch,
    mut interrupted: impl FnMut() -> bool,
) -> Result<Started, StartError> {
    // One that was left behind would be taken for the new one's.
    let _ = fs::remove_file(endpoint.ready_file());
    let mut child = Guard(Some(spawn(endpoint, launch)?));
    let begun = Instant::now();
    loop {
        if interrupted() {
            return Err(StartError::Interrupted);
        }
        if let Some(status) = child.ended() {
            return Err(StartError::Ended { status, tail: tail(endpoint), log: shown(endpoint) });
        }
        if read_note(endpoint).is_some_and(|note| Some(note.pid) == child.id())
            && let Ok(Some(running)) = find(endpoint)
            && let Some(child) = child.0.take()
        {
            return Ok(Started { running, child });
        }
        if begun.elapsed() > PATIENCE {
            return Err(StartError::Slow { tail: tail(endpoint), log: shown(endpoint) });
        }
        thread::sleep(POLL);
    }
}

fn spawn(endpoint: &Endpoint, launch: &Launch) -> Result<Child, StartError> {
    let program = locate()?;
    let path = endpoint.log_file();
    let log = File::create(&path).and_then(|log| Ok((log.try_clone()?, log)));
    let (out, err) = log.map_err(|source| StartError::Log { path, source })?;
    Command::new(&program)
        .arg("--socket")
        .arg(&endpoint.socket)
        .args(http_flag(endpoint, launch))
        .args(launch.flags())
        .arg("--ready-file")
        .arg(endpoint.ready_file())
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        // Ctrl-C at the terminal is for the engine; the manager ends after it.
        .process_group(0)
        .spawn()
        .map_err(|source| StartError::Spawn { program, source })
}

/// None where the file says it and the user does not.
fn http_flag(endpoint: &Endpoint, launch: &Launch) -> Vec<String> {
    if endpoint.http_given.is_none() && launch.has_http() {
        return Vec::new();
    }
    vec!["--http-addr".to_owned(), endpoint.http_to_serve().to_string()]
}

/// Beside this program, as a wheel installs both, or on PATH.
pub(super) fn locate() -> Result<PathBuf, StartError> {
    let this = env::current_exe().unwrap_or_default();
    let beside = this.with_file_name(PROGRAM);
    if is_program(&beside) {
        return Ok(beside);
    }
    on_path(Path::new(PROGRAM)).ok_or(StartError::NotFound { beside: this })
}

fn shown(endpoint: &Endpoint) -> String {
    format!("its log: {}", endpoint.log_file().display())
}

fn tail(endpoint: &Endpoint) -> String {
    let text = fs::read(endpoint.log_file()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(LOG_TAIL_LINES);
    lines[first..].iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Ends the manager on every way out that does not hand it on.
struct Guard(Option<Child>);

impl Guard {
    fn id(&self) -> Option<u32> {
        self.0.as_ref().map(Child::id)
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
