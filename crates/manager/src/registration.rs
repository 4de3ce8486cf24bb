//! From a hello to a session of the core.

use crate::verification::Verification;
use orbitkv_core::{
    ClientId, ContractError, GroupId, GroupSpec, InstanceId, NamespaceDigest, Role, Rule, SessionSpec,
};
use orbitkv_wire::{Hello, HelloGroup, HelloRole, MAX_PAYLOAD_BYTES, Part};
use thiserror::Error;

/// Longest names that are kept for people.
const MAX_NAME_BYTES: usize = 512;
/// Room in a reply for everything but its parts.
const REPLY_HEAD_BYTES: usize = 64;

/// What is wrong with a hello. The client gets the text and the connection closes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum HelloError {
    #[error("{field} is {got:?}; it must be {digits} hexadecimal digits")]
    Hex { field: &'static str, got: String, digits: usize },
    #[error("{field} has {got} bytes; at most {MAX_NAME_BYTES} are allowed")]
    Name { field: &'static str, got: usize },
    #[error("cache group {group}: {error}")]
    Rule { group: u16, error: ContractError },
    #[error("verify_restore is {got:?}; it must be off, all, or sample:N with N at least 1")]
    Verification { got: String },
    #[error("rank is {0} in a hello that is not a worker's; it must be 0")]
    Rank(u16),
    #[error("cache group {0} has zero tokens in a block")]
    BlockTokens(u16),
}

/// A checked hello.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) client: ClientId,
    pub(crate) epoch: u32,
    pub(crate) spec: SessionSpec,
    pub(crate) engine: String,
    pub(crate) engine_version: String,
    pub(crate) model: String,
    /// Of a worker that says it.
    pub(crate) verification: Option<Verification>,
}

impl Registration {
    pub(crate) fn from_hello(hello: Hello) -> Result<Self, HelloError> {
        let names =
            [("engine", &hello.engine), ("engine_version", &hello.engine_version), ("model", &hello.model)];
        if let Some((field, name)) = names.iter().find(|(_, name)| name.len() > MAX_NAME_BYTES) {
            return Err(HelloError::Name { field, got: name.len() });
        }
        if hello.rank != 0 && hello.role != HelloRole::Worker {
            return Err(HelloError::Rank(hello.rank));
        }
        let role = match hello.role {
            HelloRole::Scheduler => Role::Scheduler,
            HelloRole::Worker => Role::Worker { rank: hello.rank },
            HelloRole::Solo => Role::Solo,
        };
        for group in &hello.groups {
            if group.block_tokens == 0 {
                return Err(HelloError::BlockTokens(group.group));
            }
        }
        let groups = hello.groups.iter().map(group_spec).collect::<Result<_, _>>()?;
        let spec = SessionSpec {
            role,
            instance: InstanceId(u128::from_be_bytes(hex("instance", &hello.instance)?)),
            world_size: hello.world_size,
            namespace: NamespaceDigest(hex("namespace", &hello.namespace)?),
            groups,
            hash_tokens: hello.hash_tokens,
        };
        Ok(Self {
            client: ClientId(u128::from_be_bytes(hex("client", &hello.client)?)),
            epoch: hello.epoch,
            spec,
            engine: hello.engine,
            engine_version: hello.engine_version,
            model: hello.model,
            verification: hello.verify_restore.map(|text| verification(&text)).transpose()?,
        })
    }
}

fn verification(text: &str) -> Result<Verification, HelloError> {
    let bad = || HelloError::Verification { got: text.chars().take(80).collect() };
    Verification::parse(text).ok_or_else(bad)
}

fn group_spec(hello: &HelloGroup) -> Result<GroupSpec, HelloError> {
    let HelloGroup { group, page_bytes, block_tokens: page_tokens, shard_count, .. } = *hello;
    let rule: Rule = hello.rule.parse().map_err(|error| HelloError::Rule { group, error })?;
    Ok(GroupSpec { group: GroupId(group), page_bytes, shard_count, page_tokens, rule })
}

/// Most hashes in a request for pages of that many shards, so that the longest answer fits one frame.
pub(crate) fn max_hashes(shard_count: u16) -> usize {
    let page_bytes = 1 + size_of::<Part>() * usize::from(shard_count.max(1));
    (MAX_PAYLOAD_BYTES - REPLY_HEAD_BYTES) / page_bytes
}

fn hex<const N: usize>(field: &'static str, text: &str) -> Result<[u8; N], HelloError> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let mut out = [0; N];
    let fits = text.len() == 2 * N
        && out.iter_mut().zip(text.as_bytes().chunks_exact(2)).all(|(byte, pair)| {
            match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => {
                    *byte = high << 4 | low;
                    true
                }
                _ => false,
            }
        });
    if fits {
        Ok(out)
    } else {
        Err(HelloError::Hex { field, got: text.chars().take(80).collect(), digits: 2 * N })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_wire::HelloGroup;

    fn hello() -> Hello {
        let group = HelloGroup {
            group: 0,
            page_bytes: 4096,
            block_tokens: 16,
            shard_count: 1,
            rule: "prefix".into(),
        };
        Hello {
            engine: "vllm".into(),
            engine_version: "0.29.0".into(),
            model: "m".into(),
            role: HelloRole::Worker,
            rank: 1,
            world_size: 2,
            client: "0123456789abcdefABCDEF0000000001".into(),
            epoch: 3,
            instance: "f".repeat(32),
            namespace: "0a".repeat(32),
            groups: vec![group],
            hash_tokens: 0,
            verify_restore: Some("sample:16".into()),
            resume: None,
        }
    }

    #[test]
    fn hex_fields_become_numbers() {
        let registration = Registration::from_hello(hello()).unwrap();
        assert_eq!(registration.client, ClientId(0x0123_4567_89ab_cdef_abcd_ef00_0000_0001));
        assert_eq!(registration.spec.instance, InstanceId(u128::MAX));
        assert_eq!(registration.spec.namespace, NamespaceDigest([10; 32]));
        assert_eq!(registration.spec.role, Role::Worker { rank: 1 });
    }

    #[test]
    fn every_bad_field_is_named() {
        let text = |change: fn(&mut Hello)| {
            let mut hello = hello();
            change(&mut hello);
            Registration::from_hello(hello).unwrap_err().to_string()
        };
        assert!(text(|h| h.client = "12".into()).contains("client is \"12\""));
        assert!(text(|h| h.instance = "g".repeat(32)).contains("instance"));
        assert!(text(|h| h.namespace = "é".repeat(32)).contains("64 hexadecimal digits"));
        assert!(
            text(|h| h.groups[0].rule = "window".into())
                .contains("cache group 0: recovery rule is \"window\"")
        );
        assert!(text(|h| h.groups[0].block_tokens = 0).contains("group 0"));
        assert!(text(|h| h.role = HelloRole::Scheduler).contains("rank is 1"));
        assert!(text(|h| h.verify_restore = Some("often".into())).contains("verify_restore is \"often\""));
        assert!(text(|h| h.model = "x".repeat(513)).contains("model has 513 bytes"));
    }

    #[test]
    fn the_longest_answer_fits_a_frame() {
        for shards in [1, 8, 1024] {
            let pages = max_hashes(shards);
            assert!(pages * (1 + usize::from(shards) * size_of::<Part>()) + 8 <= MAX_PAYLOAD_BYTES);
            assert!(pages > 0);
        }
    }
}
