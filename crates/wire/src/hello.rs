//! The registration: JSON, once a connection.

use crate::WireError;
use serde::{Deserialize, Serialize};

/// Role of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HelloRole {
    /// Owns operations.
    Scheduler,
    /// Copies one rank's shards.
    Worker,
    /// Both.
    Solo,
}

/// One cache group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HelloGroup {
    /// Number used in keys.
    pub group: u16,
    /// Payload bytes of one shard of one page.
    pub page_bytes: u64,
    /// Tokens of one block.
    pub block_tokens: u32,
    /// Shards of a page.
    pub shard_count: u16,
    /// Recovery rule: `prefix`, `window:TOKENS` or `checkpoint`.
    pub rule: String,
}

/// What a reconnecting client says of its earlier session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// The last session that welcomed this client. The manager ends those between it and this hello:
    /// the client never heard of them, so none of its copies can run in them.
    pub session: u64,
    /// All its copies have ended and none will start.
    pub copies_ended: bool,
}

/// First payload of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// `vllm`, `sglang`, or a name of the user's own.
    pub engine: String,
    /// Its version.
    pub engine_version: String,
    /// Model name, for people only.
    pub model: String,
    /// Role.
    pub role: HelloRole,
    /// Rank of a worker; zero otherwise.
    pub rank: u16,
    /// Workers of the instance.
    pub world_size: u16,
    /// Random identity of the client, 32 hex digits, the same over reconnections.
    pub client: String,
    /// Grows with every connection of this client.
    pub epoch: u32,
    /// Instance token, 32 hex digits.
    pub instance: String,
    /// Namespace digest, 64 hex digits.
    pub namespace: String,
    /// Cache groups.
    pub groups: Vec<HelloGroup>,
    /// Tokens that one hash of a request covers; zero: those of the smallest block.
    #[serde(default)]
    pub hash_tokens: u32,
    /// Which restored pages a worker compares with their checksums: `off`, `sample:N` or `all`. For people only;
    /// a scheduler says nothing.
    #[serde(default)]
    pub verify_restore: Option<String>,
    /// Present on every connection but the first one to this manager.
    pub resume: Option<Resume>,
}

/// Most bytes of a hello.
pub(crate) const MAX_HELLO_BYTES: usize = 64 << 10;

impl Hello {
    /// Reads the JSON.
    ///
    /// # Errors
    /// [`WireError::Json`] names the field.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        if payload.len() > MAX_HELLO_BYTES {
            return Err(WireError::TooMany { what: "hello", got: payload.len(), max: MAX_HELLO_BYTES });
        }
        serde_json::from_slice(payload).map_err(|e| WireError::Json(e.to_string()))
    }

    /// Writes the JSON.
    ///
    /// # Errors
    /// [`WireError::Json`]; cannot happen for values of these types.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        serde_json::to_vec(self).map_err(|e| WireError::Json(e.to_string()))
    }
}
