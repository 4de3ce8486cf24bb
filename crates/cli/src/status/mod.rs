//! What the manager says about itself, and `orbitkv status`.

mod http;
mod report;
mod table;

pub(crate) use http::{HttpError, is_healthy, status_text};
pub(crate) use report::{Counters, Instance, Report, SsdDirectory};

use crate::args::StatusArgs;
use crate::manager::{Endpoint, FindError, Http, find};
use crate::say;
use std::net::SocketAddr;
use std::process::ExitCode;
use thiserror::Error;

/// Why there is no status to show.
#[derive(Debug, Error)]
pub(crate) enum StatusError {
    /// Nobody serves.
    #[error("no cache manager serves on {0}; `orbitkv run vllm serve MODEL` (or sglang) starts one")]
    Nobody(String),
    /// A manager without HTTP.
    #[error("the cache manager on {0} serves no HTTP; start it with an --http-addr")]
    HttpOff(String),
    /// At an address that we do not know.
    #[error("the cache manager on {0} does not say its HTTP address; give it with --http-addr")]
    UnknownHttp(String),
    /// Not to be asked.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It does not answer.
    #[error(transparent)]
    Http(#[from] HttpError),
}

/// Asks for the report.
pub(crate) fn fetch(http: SocketAddr) -> Result<Report, HttpError> {
    let text = status_text(http)?;
    serde_json::from_str(&text).map_err(|source| HttpError::NotAReport { http, source })
}

/// `orbitkv status`.
pub(crate) fn command(args: &StatusArgs) -> Result<ExitCode, StatusError> {
    let endpoint = Endpoint::of(&args.place);
    let shown = || endpoint.socket.display().to_string();
    let running = find(&endpoint)?.ok_or_else(|| StatusError::Nobody(shown()))?;
    let http = match running.http {
        Http::At(http) => http,
        Http::Off => return Err(StatusError::HttpOff(shown())),
        Http::Unknown => return Err(StatusError::UnknownHttp(shown())),
    };
    if args.json {
        say::out(&format!("{}\n", status_text(http)?.trim_end()));
    } else {
        say::out(&table::render(&fetch(http)?));
    }
    Ok(ExitCode::SUCCESS)
}
