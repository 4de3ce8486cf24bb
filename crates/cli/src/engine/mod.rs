//! The engine's command line: which programs are supported, and what `run` adds to it.

mod flags;
mod invocation;
mod transfer;
mod version;

pub(crate) use invocation::Invocation;
pub(crate) use version::installed_version;

use std::ffi::OsString;
use std::path::Path;
use thiserror::Error;

/// Why an engine is not started.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum EngineError {
    /// A program that is not known.
    #[error(
        "orbitkv run does not know how to give {0:?} the cache; it supports `vllm serve MODEL …` and \
         `python -m vllm.entrypoints.openai.api_server …`"
    )]
    Unsupported(String),
    /// A vLLM command other than `serve`.
    #[error("orbitkv run supports `vllm serve MODEL …`, not `vllm {0}`")]
    NotServe(String),
    /// Another connector.
    #[error(
        "--kv-transfer-config names the connector {0:?}, and an engine has one; remove the flag, or name \
         OrbitKVConnector there"
    )]
    OtherConnector(String),
    /// A value that is no JSON object.
    #[error("--kv-transfer-config is not a JSON object ({0}); remove it, or write it as one object")]
    BadTransferConfig(String),
    /// Dotted flags, and configuration files.
    #[error(
        "{0} sets the connector where orbitkv run cannot merge it; give it as one --kv-transfer-config JSON"
    )]
    Scattered(String),
    /// Two sockets.
    #[error("--kv-transfer-config says socket {theirs:?} and --socket says {ours:?}; leave one of them out")]
    TwoSockets {
        /// In the engine's flag.
        theirs: String,
        /// In ours.
        ours: String,
    },
    /// A hash that collides.
    #[error(
        "--prefix-caching-hash-algo {0} is not collision resistant, so equal hashes would not mean equal tokens; \
         remove it (sha256 is the engine's own choice)"
    )]
    WeakHash(String),
    /// A flag that the cache cannot work with.
    #[error("{flag}: {why}; remove it")]
    Conflict {
        /// As it was written.
        flag: String,
        /// What it breaks.
        why: &'static str,
    },
    /// A flag at the very end.
    #[error("{0} has no value")]
    NoValue(String),
    /// A path that JSON cannot hold.
    #[error("the socket path {0} is not UTF-8; choose another with --socket")]
    NotUtf8(String),
}

/// What `run` decides for the connector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes<'a> {
    /// The manager's socket, absolute.
    pub(crate) socket: &'a Path,
    /// Whether the user chose it.
    pub(crate) socket_given: bool,
    /// Value of `load_mode`, if the user chose one.
    pub(crate) load_mode: Option<&'static str>,
}

/// The socket that the user named inside `--kv-transfer-config`, if that is there and ours.
///
/// # Errors
/// The flag cannot be used.
pub(crate) fn socket_in(command: &[OsString]) -> Result<Option<String>, EngineError> {
    let config =
        flags::find(command, &flags::TRANSFER)?.map(|found| transfer::parse(&found.value)).transpose()?;
    Ok(config.and_then(|config| transfer::socket_of(&config)))
}

/// The command line with the cache: the user's own, then our flags.
///
/// # Errors
/// A flag of the user's that the cache cannot work with; the message says what to change.
pub(crate) fn with_cache(command: &[OsString], wishes: Wishes<'_>) -> Result<Vec<OsString>, EngineError> {
    flags::refuse_conflicts(command)?;
    let mut line = command.to_vec();
    let mut config = serde_json::Map::new();
    if let Some(found) = flags::find(&line, &flags::TRANSFER)? {
        config = transfer::parse(&found.value)?;
        line.drain(found.place);
        // Only the last one counts for the engine too, so an earlier one would only confuse.
        if let Some(again) = flags::find(&line, &flags::TRANSFER)? {
            return Err(EngineError::Conflict { flag: again.flag, why: "the flag is given twice" });
        }
    }
    let config = transfer::complete(config, wishes)?;
    line.extend(["--kv-transfer-config".into(), config.to_string().into()]);
    match flags::find(&line, &flags::HASH)? {
        Some(found) if found.value.starts_with("xxhash") => Err(EngineError::WeakHash(found.value)),
        _ => Ok(line),
    }
}

/// Host and port at which the engine will answer on this machine, as its flags say.
pub(crate) fn health_address(command: &[OsString]) -> String {
    let value = |flag| flags::find(command, flag).ok().flatten().map(|found| found.value);
    let port = value(&flags::PORT).unwrap_or_else(|| "8000".to_owned());
    match value(&flags::HOST).as_deref() {
        // Every address: this machine's own is one of them.
        None | Some("" | "0.0.0.0") => format!("127.0.0.1:{port}"),
        Some("::") => format!("[::1]:{port}"),
        Some(host) if host.contains(':') => format!("[{host}]:{port}"),
        Some(host) => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests;
