//! Where a manager is, and the files that commands keep beside its socket.

use crate::args::{DEFAULT_HTTP, Place};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// A manager's socket and where its HTTP may be.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// Absolute: engines run in other directories.
    pub(crate) socket: PathBuf,
    /// Whether the user chose it.
    pub(crate) socket_given: bool,
    /// Where the user says that HTTP is.
    pub(crate) http_given: Option<SocketAddr>,
    /// Where the manager's file says that it is.
    pub(crate) http_configured: Option<SocketAddr>,
}

impl Endpoint {
    /// What the options mean, the defaults filled in.
    pub(crate) fn of(place: &Place) -> Self {
        let default = || {
            let uid = rustix::process::geteuid().as_raw();
            orbitkv_wire::default_socket(std::env::var_os("XDG_RUNTIME_DIR").as_deref(), uid)
        };
        let socket = place.socket.clone().unwrap_or_else(default);
        Self {
            // Fails only without a working directory; the path as it is then is the best there is.
            socket: std::path::absolute(&socket).unwrap_or(socket),
            socket_given: place.socket.is_some(),
            http_given: place.http_addr,
            http_configured: None,
        }
    }

    /// Address of a manager that is known by its socket only.
    pub(crate) fn likely_http(&self) -> SocketAddr {
        self.http_given.or(self.http_configured).unwrap_or(DEFAULT_HTTP)
    }

    /// Address for a manager that is started. The default one gives way when it is taken: nobody should
    /// have to choose a port for a second user of the machine.
    pub(crate) fn http_to_serve(&self) -> SocketAddr {
        self.http_given.unwrap_or_else(|| match TcpListener::bind(DEFAULT_HTTP) {
            Ok(_) => DEFAULT_HTTP,
            Err(_) => SocketAddr::new(DEFAULT_HTTP.ip(), 0),
        })
    }

    /// The directory of the socket.
    pub(crate) fn directory(&self) -> &Path {
        self.socket.parent().unwrap_or(Path::new("/"))
    }

    /// `<socket>.<suffix>`.
    fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = self.socket.clone().into_os_string();
        path.push(suffix);
        path.into()
    }

    /// What a started manager says about itself: pid and HTTP address.
    pub(crate) fn ready_file(&self) -> PathBuf {
        self.beside(".json")
    }

    /// Output of a started manager.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.beside(".log")
    }

    /// Pid of a manager that the last of its runs is to stop.
    pub(crate) fn owned_file(&self) -> PathBuf {
        self.beside(".owned")
    }

    /// Locked by each run for its whole life, shared.
    pub(crate) fn users_file(&self) -> PathBuf {
        self.beside(".users")
    }

    /// Locked while a manager is found, started or stopped.
    pub(crate) fn turn_file(&self) -> PathBuf {
        self.beside(".turn")
    }
}
