//! What vLLM's server needs: the connector. The hash of its blocks stays its own, and must not collide.

use super::flags::{self, Conflict, Flag};
use super::transfer;
use super::{EngineError, Wishes};
use std::ffi::OsString;

const TRANSFER: Flag = Flag::new("--kv-transfer-config", "--kv-t");
const HASH: Flag = Flag::new("--prefix-caching-hash-algo", "--prefix-c");
const CONFIG: Flag = Flag::new("--config", "--config");
pub(super) const PORT: Flag = Flag::new("--port", "--port");
pub(super) const HOST: Flag = Flag::new("--host", "--host");

const CONFLICTS: [Conflict; 2] = [
    (
        Flag::new("--no-enable-prefix-caching", "--no-enable-prefix"),
        "without prefix caching, blocks have no hash that the cache could find them by",
    ),
    (
        Flag::new("--kv-offloading-size", "--kv-offloading-s"),
        "it chooses the engine's own offloading as connector, and an engine has one",
    ),
];

/// The socket that the user named inside `--kv-transfer-config`, if that is there and ours.
pub(super) fn socket_in(command: &[OsString]) -> Result<Option<String>, EngineError> {
    let config = flags::find(command, &TRANSFER)?.map(|found| transfer::parse(&found.value)).transpose()?;
    Ok(config.and_then(|config| transfer::socket_of(&config)))
}

/// The user's command line, then our flags.
pub(super) fn with_cache(command: &[OsString], wishes: Wishes<'_>) -> Result<Vec<OsString>, EngineError> {
    flags::refuse_conflicts(command, &CONFLICTS)?;
    refuse_in_file(command)?;
    let mut line = command.to_vec();
    let mut config = serde_json::Map::new();
    if let Some(found) = flags::find(&line, &TRANSFER)? {
        config = transfer::parse(&found.value)?;
        line.drain(found.place);
        // Only the last one counts for the engine too, so an earlier one would only confuse.
        if let Some(again) = flags::find(&line, &TRANSFER)? {
            return Err(EngineError::Conflict { flag: again.flag, why: "the flag is given twice" });
        }
    }
    let config = transfer::complete(config, wishes)?;
    line.extend(["--kv-transfer-config".into(), config.to_string().into()]);
    match flags::find(&line, &HASH)? {
        Some(found) if found.value.starts_with("xxhash") => Err(EngineError::WeakHash(found.value)),
        _ => Ok(line),
    }
}

/// Flags on the command line override the file, so a connector in it would be lost without a word.
fn refuse_in_file(command: &[OsString]) -> Result<(), EngineError> {
    let Some(file) = flags::find(command, &CONFIG)? else { return Ok(()) };
    match flags::named_in_file(&file.value, [&TRANSFER]) {
        Some(_) => Err(EngineError::Scattered(format!("--config {}", file.value))),
        None => Ok(()),
    }
}
