//! Whether a manager serves on a socket, and which one.

use super::Endpoint;
use crate::status;
use serde::Deserialize;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use thiserror::Error;

/// A manager that serves.
#[derive(Debug)]
pub(crate) struct Running {
    /// `None` for a process of another pid namespace.
    pub(crate) pid: Option<u32>,
    pub(crate) http: Http,
    /// Where the identity of the process comes from: it is fixed while this is open.
    pub(crate) connection: UnixStream,
}

/// Where a manager serves HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http {
    /// There.
    At(SocketAddr),
    /// Nowhere: it was told so.
    Off,
    /// It has left no note beside its socket, and does not answer where it is likely to.
    Unknown,
}

impl Http {
    /// Where to ask, if that is known.
    pub(crate) fn address(self) -> Option<SocketAddr> {
        match self {
            Self::At(address) => Some(address),
            Self::Off | Self::Unknown => None,
        }
    }
}

/// Why what is there cannot be used.
#[derive(Debug, Error)]
pub(crate) enum FindError {
    /// Of somebody else.
    #[error(
        "the process on {socket} belongs to user {uid}, not to you; cached KV is not shared between users: choose \
         another --socket"
    )]
    OtherUser {
        /// Where.
        socket: PathBuf,
        /// Whose.
        uid: u32,
    },
    /// Neither a manager nor nobody.
    #[error("{socket}: {source}")]
    Io {
        /// Where.
        socket: PathBuf,
        /// The answer.
        source: io::Error,
    },
}

/// What a started manager writes.
#[derive(Debug, Deserialize)]
pub(super) struct ReadyNote {
    pub(super) pid: u32,
    pub(super) http: Option<SocketAddr>,
}

/// Reads a ready file; `None` when it is not there, or not whole.
pub(super) fn read_note(endpoint: &Endpoint) -> Option<ReadyNote> {
    serde_json::from_slice(&fs::read(endpoint.ready_file()).ok()?).ok()
}

/// Looks for a manager. `None`: nobody listens.
pub(crate) fn find(endpoint: &Endpoint) -> Result<Option<Running>, FindError> {
    let socket = &endpoint.socket;
    let failed = |source| FindError::Io { socket: socket.clone(), source };
    let connection = match UnixStream::connect(socket) {
        Ok(connection) => connection,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let peer = orbitkv_shm::peer_credentials(connection.as_fd()).map_err(failed)?;
    if peer.uid != rustix::process::geteuid().as_raw() {
        return Err(FindError::OtherUser { socket: socket.clone(), uid: peer.uid });
    }
    Ok(Some(Running { pid: peer.pid, http: http_of(endpoint, peer.pid), connection }))
}

/// The note beside the socket, if this manager wrote it; else the likely address, if this manager answers
/// there. Never the address of another one.
fn http_of(endpoint: &Endpoint, pid: Option<u32>) -> Http {
    match read_note(endpoint) {
        Some(note) if Some(note.pid) == pid => note.http.map_or(Http::Off, Http::At),
        _ => {
            let likely = endpoint.likely_http();
            match status::fetch(likely) {
                Ok(report) if Some(report.pid) == pid => Http::At(likely),
                _ => Http::Unknown,
            }
        }
    }
}
