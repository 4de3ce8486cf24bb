//! One run's hold on a manager: found or started at the beginning, let go or stopped at the end.

use super::watch::Watch;
use crate::args::RunArgs;
use crate::engine::{self, Engine};
use crate::manager::{
    Configured, ConfiguredError, Endpoint, FindError, Http, Launch, Running, Share, ShareError, Ssd,
    SsdError, StartError, find, start, stop,
};
use crate::say;
use crate::status::{self, Report, SsdDirectory};
use bytesize::ByteSize;
use std::cell::RefCell;
use std::ffi::OsString;
use std::fmt::Write;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long sessions of an engine that has just ended may still be counted.
const SESSIONS_PATIENCE: Duration = Duration::from_secs(1);
const SESSIONS_POLL: Duration = Duration::from_millis(50);

/// Why there is no manager.
#[derive(Debug, Error)]
pub(crate) enum CacheError {
    /// What is there cannot be used.
    #[error(transparent)]
    Find(#[from] FindError),
    /// Other runs.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// Its file.
    #[error(transparent)]
    Configured(#[from] ConfiguredError),
    /// Its SSD.
    #[error(transparent)]
    Ssd(#[from] SsdError),
    /// It could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// A manager that serves, and our part in it.
pub(crate) struct Cache {
    endpoint: Endpoint,
    running: Running,
    share: Share,
    /// Present if it was started here.
    child: RefCell<Option<Child>>,
    started: bool,
}

impl Cache {
    /// Finds a manager, or starts one.
    pub(crate) fn open(
        endpoint: &Endpoint,
        args: &RunArgs,
        configured: Option<Configured>,
        interrupted: impl FnMut() -> bool,
    ) -> Result<Self, CacheError> {
        let (share, _turn) = Share::join(endpoint)?;
        let endpoint = endpoint.clone();
        if let Some(running) = find(&endpoint)? {
            return Ok(Self { endpoint, running, share, child: RefCell::new(None), started: false });
        }
        let ssd = args.ssd.as_ref().map(|path| Ssd::open(path.as_deref(), args.ssd_capacity.as_deref()));
        let launch = Launch { pool_size: args.pool_size.clone(), ssd: ssd.transpose()?, configured };
        let started = start(&endpoint, &launch, interrupted)?;
        let cache = Self {
            endpoint,
            running: started.running,
            child: RefCell::new(Some(started.child)),
            share,
            started: true,
        };
        if !args.keep_manager
            && let Some(pid) = cache.running.pid
        {
            cache.share.own(pid)?;
        }
        Ok(cache)
    }

    /// What is active, in one line.
    pub(crate) fn line(&self, engine: Engine, version: Option<String>, args: &RunArgs) -> String {
        let title = engine.title();
        let engine = version.map_or_else(|| title.to_owned(), |version| format!("{title} {version}"));
        let report = self.running.http.address().and_then(|http| status::fetch(http).ok());
        let holds = report.map_or_else(|| "pool size unknown".to_owned(), |report| holdings(&report));
        let pid = self.running.pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
        let whose = match self.started {
            true => "started",
            false if args.pool_size.is_none() && args.ssd.is_none() && args.config.is_none() => "shared",
            false => "shared, --pool-size, --ssd and --config have no effect",
        };
        let http = match self.running.http {
            Http::At(http) => format!("http://{http}/status"),
            Http::Off => "HTTP off".to_owned(),
            Http::Unknown => "HTTP address unknown, give it with --http-addr".to_owned(),
        };
        format!("OrbitKV: {engine} · {holds} · manager pid {pid} ({whose}) · {http}")
    }

    /// Something that will say when the engine uses the cache. Taken before the engine begins.
    pub(crate) fn watch(&self, engine: Engine, command: &[OsString]) -> Option<Watch> {
        Watch::prepare(self.running.http.address()?, engine, engine::health_address(engine, command))
    }

    /// Collects a manager that has ended.
    pub(crate) fn reap(&self) {
        let mut child = self.child.borrow_mut();
        if child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_)))) {
            *child = None;
        }
    }

    /// Ends our part. The last run stops a manager that a run has started, unless an engine still uses it.
    pub(crate) fn close(self) {
        let Self { endpoint, share, child, .. } = self;
        let problem = match share.leave() {
            Ok(None) => return,
            Ok(Some((pid, _turn))) => stop_owned(&endpoint, pid).err(),
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = problem {
            say::line(&format!("OrbitKV: the cache manager goes on: {problem}"));
        } else if let Some(mut child) = child.into_inner() {
            let _ = child.wait();
        }
    }
}

/// Memory and SSD for pages, as the manager has them: those of a shared one are not what this run asked for.
fn holdings(report: &Report) -> String {
    let size = |bytes| ByteSize(bytes).display().iec().to_string();
    let mut text = format!("pool {} DRAM", size(report.pool.limit_bytes));
    for SsdDirectory { path, capacity_bytes, .. } in &report.ssd {
        let _ = write!(text, " · SSD up to {} in {path}", size(*capacity_bytes));
    }
    text
}

fn stop_owned(endpoint: &Endpoint, pid: u32) -> Result<(), String> {
    // Another pid: that one was started by somebody else after ours had ended.
    let found = find(endpoint).map_err(|error| error.to_string())?;
    let Some(running) = found.filter(|running| running.pid == Some(pid)) else { return Ok(()) };
    let sessions = remaining_sessions(&running);
    if sessions > 0 {
        return Err(format!("{sessions} sessions of other engines are connected"));
    }
    stop(endpoint, &running).map_err(|error| error.to_string())
}

fn remaining_sessions(running: &Running) -> u64 {
    let begun = Instant::now();
    loop {
        let open = running
            .http
            .address()
            .and_then(|http| status::fetch(http).ok())
            .map_or(0, |report| report.sessions.open);
        if open == 0 || begun.elapsed() > SESSIONS_PATIENCE {
            return open;
        }
        thread::sleep(SESSIONS_POLL);
    }
}
