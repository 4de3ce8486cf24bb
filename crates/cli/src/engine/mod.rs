//! The engines' command lines: which programs are supported, and what `run` adds to them.

mod flags;
mod invocation;
mod sglang;
mod transfer;
mod version;
mod vllm;

pub(crate) use invocation::Invocation;
pub(crate) use version::installed_version;

use std::ffi::OsString;
use std::path::Path;
use thiserror::Error;

/// The engines that the cache works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Vllm,
    Sglang,
}

impl Engine {
    /// As its makers write it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
        }
    }

    /// Its command, which is also the name of its distribution.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }
}

/// Why an engine is not started.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum EngineError {
    /// A program that is not known.
    #[error(
        "orbitkv run does not know how to give {0:?} the cache; it supports `vllm serve MODEL …`, \
         `python -m vllm.entrypoints.openai.api_server …`, `sglang serve MODEL …` and \
         `python -m sglang.launch_server …`"
    )]
    Unsupported(String),
    /// A command of the engine other than `serve`.
    #[error("orbitkv run supports `{program} serve MODEL …`, not `{program} {command}`")]
    NotServe {
        /// The engine's command.
        program: &'static str,
        /// What it was asked to do.
        command: String,
    },
    /// Another radix cache.
    #[error("--radix-cache-backend names {0:?}, and an engine has one radix cache; remove the flag")]
    OtherRadixCache(String),
    /// A flag of `run` that means nothing to SGLang.
    #[error("{0} is for vLLM: SGLang always loads layer by layer, beside its forward pass; remove it")]
    VllmOnly(&'static str),
    /// A flag in a configuration file that the cache cannot work with.
    #[error("{file} sets {flag}, with which the engine has no cache of ours; remove it there")]
    InFile {
        /// The flag.
        flag: String,
        /// The file.
        file: String,
    },
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

/// What `run` decides for the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes<'a> {
    /// The manager's socket, absolute.
    pub(crate) socket: &'a Path,
    /// Whether the user chose it.
    pub(crate) socket_given: bool,
    /// Value of `load_mode`, if the user chose one.
    pub(crate) load_mode: Option<&'static str>,
}

/// What starts an engine with the cache.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The user's own words, then our flags.
    pub(crate) words: Vec<OsString>,
    /// Set for the engine beside what it inherits.
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// The socket that the user named in the engine's own flags, if that is there.
///
/// # Errors
/// The flag cannot be used.
pub(crate) fn socket_in(engine: Engine, command: &[OsString]) -> Result<Option<String>, EngineError> {
    match engine {
        Engine::Vllm => vllm::socket_in(command),
        Engine::Sglang => Ok(None),
    }
}

/// The command line with the cache.
///
/// # Errors
/// A flag of the user's that the cache cannot work with; the message says what to change.
pub(crate) fn with_cache(
    engine: Engine,
    command: &[OsString],
    wishes: Wishes<'_>,
) -> Result<Line, EngineError> {
    Ok(match engine {
        Engine::Vllm => Line { words: vllm::with_cache(command, wishes)?, environment: Vec::new() },
        Engine::Sglang => Line {
            words: sglang::with_cache(command, wishes)?,
            environment: vec![("ORBITKV_SOCKET", wishes.socket.into())],
        },
    })
}

/// What is worth saying about a command line with which the engine starts and the cache does not work.
pub(crate) fn note(engine: Engine, command: &[OsString]) -> Option<String> {
    match engine {
        Engine::Vllm => None,
        Engine::Sglang => sglang::note(command),
    }
}

/// Host and port at which the engine will answer on this machine, as its flags say.
pub(crate) fn health_address(engine: Engine, command: &[OsString]) -> String {
    let value = |flag| flags::find(command, flag).ok().flatten().map(|found| found.value);
    let (host, port, default) = match engine {
        Engine::Vllm => (value(&vllm::HOST), value(&vllm::PORT), "8000"),
        Engine::Sglang => (value(&sglang::HOST), value(&sglang::PORT), "30000"),
    };
    let port = port.unwrap_or_else(|| default.to_owned());
    match host.as_deref() {
        // Every address: this machine's own is one of them.
        None | Some("" | "0.0.0.0") => format!("127.0.0.1:{port}"),
        Some("::") => format!("[::1]:{port}"),
        Some(host) if host.contains(':') => format!("[{host}]:{port}"),
        Some(host) => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests;
