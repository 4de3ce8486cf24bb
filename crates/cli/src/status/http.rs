//! HTTP to the manager and to the engine, on this host.

use std::net::SocketAddr;
use std::time::Duration;
use thiserror::Error;

/// A manager that takes longer is reported as stuck; its own patience is two seconds.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Far more than a report with every allowed session.
const MAX_BODY_BYTES: u64 = 8 << 20;

/// Why a request got no useful answer.
#[derive(Debug, Error)]
pub(crate) enum HttpError {
    /// No answer, or an error as answer.
    #[error("the cache manager does not answer at http://{http}: {source}")]
    NoAnswer {
        /// Who was asked.
        http: SocketAddr,
        /// What came instead.
        source: Box<ureq::Error>,
    },
    /// Somebody else.
    #[error("http://{http}/status is not the status of a cache manager: {source}")]
    NotAReport {
        /// Who was asked.
        http: SocketAddr,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        // A proxy for the outside has no way to this host's loopback.
        .proxy(None)
        .max_redirects(0)
        .build();
    config.into()
}

/// Body of `GET /status`.
pub(crate) fn status_text(http: SocketAddr) -> Result<String, HttpError> {
    let get = || {
        let mut answer = agent().get(format!("http://{http}/status")).call()?;
        answer.body_mut().with_config().limit(MAX_BODY_BYTES).read_to_string()
    };
    get().map_err(|source| HttpError::NoAnswer { http, source: Box::new(source) })
}

/// Whether `GET /health` is answered with success.
pub(crate) fn is_healthy(host_and_port: &str) -> bool {
    agent().get(format!("http://{host_and_port}/health")).call().is_ok()
}
