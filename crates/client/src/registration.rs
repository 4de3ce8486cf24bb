//! What a client says of itself, checked before anything connects.

use crate::ClientError;
use orbitkv_contract::{Contract, ContractError, GroupRule};
use orbitkv_wire::{Hello, HelloGroup, HelloRole};
use std::path::PathBuf;

/// Longest engine, version or model name.
const MAX_NAME_BYTES: usize = 1024;
/// Longest path of a Unix socket on Linux, without its final zero.
const MAX_SOCKET_BYTES: usize = 107;
/// The same limits as the manager's.
const MAX_WORLD_SIZE: u16 = 1024;
const MAX_GROUPS: usize = 64;
const MAX_PAGE_BYTES: u64 = 1 << 30;
/// Kept for the attach probe of a worker.
pub(crate) const PROBE_GROUP: u16 = u16::MAX;

/// One cache group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSpec {
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

/// What both sides of an instance tell the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Socket of the manager.
    pub socket: PathBuf,
    /// `vllm`, `sglang`, or a name of the user's own.
    pub engine: String,
    /// Its version.
    pub engine_version: String,
    /// Model name, for people only.
    pub model: String,
    /// Token that joins scheduler and workers, 32 hex digits.
    pub instance: String,
    /// Digest of everything that changes the bytes of a page, 64 hex digits.
    pub namespace: String,
    /// Workers of the instance.
    pub world_size: u16,
    /// Cache groups, the first one being the workers' layout.
    pub groups: Vec<GroupSpec>,
    /// Tokens that one hash of a request covers; zero: those of the smallest block.
    pub hash_tokens: u32,
}

impl Registration {
    /// Checks every value.
    ///
    /// # Errors
    /// [`ClientError::Value`] names the first one that cannot be.
    pub fn check(&self) -> Result<(), ClientError> {
        let socket_bytes = self.socket.as_os_str().len();
        if socket_bytes == 0 || socket_bytes > MAX_SOCKET_BYTES {
            let want = format!("1 to {MAX_SOCKET_BYTES} bytes long; choose a shorter directory");
            return Err(ClientError::value("socket", self.socket.display(), want));
        }
        for (name, text) in
            [("engine", &self.engine), ("engine_version", &self.engine_version), ("model", &self.model)]
        {
            if text.len() > MAX_NAME_BYTES {
                let got = format!("{} bytes long", text.len());
                return Err(ClientError::value(name, got, format!("at most {MAX_NAME_BYTES} bytes long")));
            }
        }
        check_hex("instance", &self.instance, 32)?;
        check_hex("namespace", &self.namespace, 64)?;
        if self.world_size == 0 || self.world_size > MAX_WORLD_SIZE {
            let want = format!("1 to {MAX_WORLD_SIZE}");
            return Err(ClientError::value("world_size", self.world_size, want));
        }
        if self.groups.is_empty() || self.groups.len() > MAX_GROUPS {
            let want = format!("1 to {MAX_GROUPS} cache groups");
            return Err(ClientError::value("groups", self.groups.len(), want));
        }
        for (i, group) in self.groups.iter().enumerate() {
            group.check(self.world_size)?;
            if self.groups[..i].iter().any(|other| other.group == group.group) {
                return Err(ClientError::value("group", group.group, "registered once"));
            }
        }
        self.contract().map(|_| ())
    }

    /// The recovery contract of its groups.
    pub(crate) fn contract(&self) -> Result<Contract, ClientError> {
        let rule = |g: &GroupSpec| {
            let rule = g.rule.parse()?;
            Ok(GroupRule { group: g.group, page_tokens: g.block_tokens, rule })
        };
        let rules = self.groups.iter().map(rule).collect::<Result<Vec<_>, ContractError>>()?;
        Ok(Contract::compile(self.hash_tokens, &rules)?)
    }

    /// The first message of a connection, without what changes from one to the next.
    pub(crate) fn hello(&self, role: HelloRole, rank: u16, client: &str) -> Hello {
        let groups = self.groups.iter().map(|g| HelloGroup {
            group: g.group,
            page_bytes: g.page_bytes,
            block_tokens: g.block_tokens,
            shard_count: g.shard_count,
            rule: g.rule.clone(),
        });
        Hello {
            engine: self.engine.clone(),
            engine_version: self.engine_version.clone(),
            model: self.model.clone(),
            role,
            rank,
            world_size: self.world_size,
            client: client.to_owned(),
            epoch: 0,
            instance: self.instance.clone(),
            namespace: self.namespace.clone(),
            groups: groups.collect(),
            hash_tokens: self.hash_tokens,
            verify_restore: None,
            resume: None,
        }
    }
}

impl GroupSpec {
    fn check(&self, world_size: u16) -> Result<(), ClientError> {
        if self.group == PROBE_GROUP {
            return Err(ClientError::value("group", self.group, "below 65535, which the attach probe uses"));
        }
        if self.page_bytes == 0 || self.page_bytes > MAX_PAGE_BYTES {
            let want = format!("1 to {MAX_PAGE_BYTES}");
            return Err(ClientError::value("page_bytes", self.page_bytes, want));
        }
        if self.block_tokens == 0 {
            return Err(ClientError::value("block_tokens", 0, "at least 1"));
        }
        if self.shard_count == 0 || !world_size.is_multiple_of(self.shard_count) {
            let want = format!("a divisor of the world size {world_size}");
            return Err(ClientError::value("shard_count", self.shard_count, want));
        }
        Ok(())
    }
}

fn check_hex(name: &'static str, text: &str, digits: usize) -> Result<(), ClientError> {
    if text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(());
    }
    // The whole text could be of any length.
    let got: String = text.chars().take(80).collect();
    Err(ClientError::value(name, format!("{got:?}"), format!("{digits} hex digits")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Registration {
        let group = GroupSpec {
            group: 0,
            page_bytes: 4096,
            block_tokens: 16,
            shard_count: 1,
            rule: "prefix".to_owned(),
        };
        Registration {
            socket: "/tmp/x.sock".into(),
            engine: "vllm".to_owned(),
            engine_version: "0.29.0".to_owned(),
            model: "m".to_owned(),
            instance: "a".repeat(32),
            namespace: "b".repeat(64),
            world_size: 2,
            groups: vec![group],
            hash_tokens: 0,
        }
    }

    #[test]
    fn a_good_registration_passes() {
        good().check().unwrap();
    }

    #[test]
    fn every_bad_value_is_named() {
        let mut cases: Vec<(&str, Registration)> = Vec::new();
        let mut add = |name, change: fn(&mut Registration)| {
            let mut registration = good();
            change(&mut registration);
            cases.push((name, registration));
        };
        add("socket", |r| r.socket = "x".repeat(108).into());
        add("model", |r| r.model = "x".repeat(2000));
        add("instance", |r| r.instance = "g".repeat(32));
        add("namespace", |r| r.namespace = "b".repeat(63));
        add("world_size", |r| r.world_size = 0);
        add("groups", |r| r.groups.clear());
        add("group", |r| r.groups[0].group = PROBE_GROUP);
        add("group", |r| r.groups.push(r.groups[0].clone()));
        add("page_bytes", |r| r.groups[0].page_bytes = 0);
        add("block_tokens", |r| r.groups[0].block_tokens = 0);
        add("shard_count", |r| r.groups[0].shard_count = 3);
        for (name, registration) in cases {
            let error = registration.check().unwrap_err();
            assert!(matches!(&error, ClientError::Value { name: n, .. } if *n == name), "{name}: {error}");
        }
    }

    #[test]
    fn a_contract_that_contradicts_itself_is_named() {
        let error = |change: fn(&mut Registration)| {
            let mut registration = good();
            change(&mut registration);
            registration.check().unwrap_err().to_string()
        };
        let text = error(|r| r.groups[0].rule = "window".to_owned());
        assert!(text.contains("recovery rule is \"window\""), "{text}");
        let text = error(|r| r.hash_tokens = 24);
        assert!(text.contains("pages of 16 tokens, which hashes of 24 tokens do not divide"), "{text}");
    }
}
