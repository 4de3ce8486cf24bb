//! From a configuration to a serving manager, and to its end.

use crate::admin::Admin;
use crate::args::HttpAddress;
use crate::claim::{Claim, ClaimError};
use crate::configuration::{self, Configuration, Invocation};
use crate::server::{Parts, Server, ServerError};
use crate::settings::{self, SettingsError};
use crate::ssd::{self, SsdError, WriteBudget};
use crate::tier::TierParts;
use crate::waker::Waker;
use crate::{http, logging, ready};
use orbitkv_core::Config;
use orbitkv_shm::AvailableMemory;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why the manager does not serve, or stopped serving.
#[derive(Debug, Error)]
pub enum StartError {
    /// A flag that cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// No socket to serve on.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// A cache directory that cannot be used.
    #[error(transparent)]
    Ssd(#[from] SsdError),
    /// No address to serve HTTP on.
    #[error("{name} {address}: {source}; choose another address, port 0 for a free port, or off")]
    Http {
        /// Flag, or key and line.
        name: String,
        /// What was asked for.
        address: SocketAddr,
        /// The answer.
        source: io::Error,
    },
    /// The ready file could not be written.
    #[error("--ready-file {path}: {source}")]
    Ready {
        /// What was asked for.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// The core thread.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// A system call without which nothing can be served.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: &'static str,
        /// The answer.
        source: io::Error,
    },
}

impl StartError {
    /// 2 for what another command line fixes, 3 when another manager serves, 1 for the rest.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Claim(ClaimError::Taken { .. }) | Self::Ssd(SsdError::Taken { .. }) => 3,
            Self::Settings(_) | Self::Ssd(_) | Self::Claim(_) | Self::Http { .. } | Self::Ready { .. } => 2,
            Self::Server(_) | Self::Io { .. } => 1,
        }
    }
}

/// Does what a command line asks for.
///
/// # Errors
/// Whatever keeps a manager from serving, or would keep it from starting.
pub fn run(invocation: &Invocation) -> Result<(), StartError> {
    match invocation {
        Invocation::Serve(configuration) => serve(configuration),
        Invocation::ShowConfig { configuration, json } => {
            let text = configuration::show(configuration, available_memory()?, *json)?;
            let written = io::stdout().lock().write_all(text.as_bytes());
            written.map_err(|source| StartError::Io { what: "standard output", source })
        }
    }
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Whatever keeps it from serving. Socket, lock and ready file are gone then, as after a normal end.
fn serve(configuration: &Configuration) -> Result<(), StartError> {
    let failed = |what| move |source| StartError::Io { what, source };
    let args = &configuration.args;
    logging::start(args.log_format, args.log_level);
    let config = settings::config(configuration, available_memory()?)?;
    // Before the first file is made: none of ours is for anybody else.
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    raise_descriptor_limit();
    // Before the socket exists, so that a signal never leaves it behind.
    let signals = signal_pipe().map_err(failed("signals"))?;
    let (socket, _) = settings::socket(args);
    let (claim, listener, web) = take_addresses(&socket, configuration)?;
    // Behind the claim: what another manager works in is not to be touched.
    let tier = open_tier(configuration, &config)?;
    if let Some(path) = &args.ready_file {
        // Of a manager that crashed. Only now: the one of a manager that serves must stay.
        let _ = std::fs::remove_file(path);
    }
    let waker = Waker::new().map_err(failed("eventfd"))?;
    let (admin, requests) = Admin::new(waker.clone());
    let http = match web {
        Some(listener) => Some(http::start(listener, admin).map_err(failed("HTTP"))?),
        None => None,
    };
    let boot = random_identity().map_err(failed("getrandom"))?;
    let pool_bytes = config.pool_bytes;
    let scrub_rate = args.scrub_rate.0;
    let parts =
        Parts { config, scrub_rate, tier, claim, listener, signals, admin: requests, waker, http, boot };
    let server = Server::new(parts)?;
    let ready = ReadyFile::write(args.ready_file.as_ref(), &socket, http)?;
    tracing::info!(
        socket = %socket.display(),
        http = %http.map_or_else(|| "off".to_owned(), |a| a.to_string()),
        pool_bytes,
        huge_pages = ?orbitkv_shm::shmem_huge_pages(),
        "ready"
    );
    let served = server.run();
    drop(ready);
    tracing::info!("stopped");
    Ok(served?)
}

/// What stands behind the pool, ready to be started.
fn open_tier(configuration: &Configuration, config: &Config) -> Result<TierParts, StartError> {
    if let Some(settings) = settings::ssd(configuration)? {
        let budget = WriteBudget::new(configuration.args.ssd_write_budget);
        return Ok(TierParts::Ssd(ssd::open(&settings)?, budget));
    }
    let memory = settings::memory_tier(&configuration.args, config);
    Ok(if config.tier { TierParts::Memory(memory) } else { TierParts::None })
}

fn available_memory() -> Result<AvailableMemory, StartError> {
    orbitkv_shm::available_memory()
        .map_err(|e| StartError::Io { what: "available memory", source: io::Error::other(e) })
}

/// Takes the HTTP address first, because that makes no file. Where it is taken, another manager on our
/// socket is the better reason, if there is one; asking for it makes no file either.
fn take_addresses(
    socket: &Path,
    configuration: &Configuration,
) -> Result<(Claim, UnixListener, Option<TcpListener>), StartError> {
    let web =
        match configuration.args.http_addr {
            HttpAddress::Off => Ok(None),
            HttpAddress::At(address) => TcpListener::bind(address).map(Some).map_err(|source| {
                StartError::Http { name: configuration.name("http_addr"), address, source }
            }),
        };
    let web = match web {
        Err(error) if UnixStream::connect(socket).is_err() => return Err(error),
        web => web,
    };
    let (claim, listener) = Claim::take(socket)?;
    Ok((claim, listener, web?))
}

/// Removed when the manager ends: a file that stays would name a manager that is not there.
struct ReadyFile(Option<PathBuf>);

impl ReadyFile {
    fn write(path: Option<&PathBuf>, socket: &Path, http: Option<SocketAddr>) -> Result<Self, StartError> {
        if let Some(path) = path {
            ready::write(path, socket, http)
                .map_err(|source| StartError::Ready { path: path.clone(), source })?;
        }
        Ok(Self(path.cloned()))
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A stream that becomes readable at SIGTERM or SIGINT.
fn signal_pipe() -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, theirs.try_clone()?)?;
    }
    Ok(ours)
}

/// A session takes one descriptor, its process another, a segment a third.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

fn random_identity() -> io::Result<u128> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
    if got == bytes.len() { Ok(u128::from_le_bytes(bytes)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
