//! The value of `--kv-transfer-config`.

use super::{EngineError, Wishes};
use serde_json::{Map, Value, json};

const CONNECTOR: &str = "OrbitKVConnector";
const EXTRA: &str = "kv_connector_extra_config";

/// Reads the user's value, which must name our connector.
pub(super) fn parse(text: &str) -> Result<Map<String, Value>, EngineError> {
    let bad = |why: String| EngineError::BadTransferConfig(why);
    let config = match serde_json::from_str(text) {
        Ok(Value::Object(config)) => config,
        Ok(other) => return Err(bad(format!("it is {other}"))),
        Err(error) => return Err(bad(error.to_string())),
    };
    if !config.get(EXTRA).is_none_or(Value::is_object) {
        return Err(bad(format!("{EXTRA} is no object")));
    }
    match config.get("kv_connector") {
        Some(Value::String(name)) if name == CONNECTOR => Ok(config),
        Some(Value::String(name)) => Err(EngineError::OtherConnector(name.clone())),
        other => Err(bad(format!("kv_connector is {}", other.unwrap_or(&Value::Null)))),
    }
}

/// The socket in there, if any.
pub(super) fn socket_of(config: &Map<String, Value>) -> Option<String> {
    config.get(EXTRA)?.get("socket")?.as_str().map(str::to_owned)
}

/// Adds what is missing; what the user wrote stays.
pub(super) fn complete(mut config: Map<String, Value>, wishes: Wishes<'_>) -> Result<Value, EngineError> {
    let socket =
        wishes.socket.to_str().ok_or_else(|| EngineError::NotUtf8(wishes.socket.display().to_string()))?;
    if let Some(theirs) = socket_of(&config).filter(|theirs| wishes.socket_given && theirs != socket) {
        return Err(EngineError::TwoSockets { theirs, ours: socket.to_owned() });
    }
    let ours = [
        ("kv_connector", json!(CONNECTOR)),
        ("kv_connector_module_path", json!("orbitkv.vllm")),
        ("kv_role", json!("kv_both")),
        // The engine's default ends a request whose restore failed.
        ("kv_load_failure_policy", json!("recompute")),
        (EXTRA, json!({})),
    ];
    for (key, value) in ours {
        config.entry(key).or_insert(value);
    }
    if let Some(extra) = config.get_mut(EXTRA).and_then(Value::as_object_mut) {
        extra.entry("socket").or_insert_with(|| json!(socket));
        if let Some(mode) = wishes.load_mode {
            extra.insert("load_mode".to_owned(), json!(mode));
        }
    }
    Ok(Value::Object(config))
}
