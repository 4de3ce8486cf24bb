//! Who is connected.

use crate::{ClientId, GroupId, InstanceId, NamespaceDigest, OperationId, Refusal};
use orbitkv_contract::{Contract, GroupRule, Rule};

/// What a session may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Owns operations; copies nothing.
    Scheduler,
    /// Copies the shards of one rank.
    Worker {
        /// Tensor-parallel rank, below the world size.
        rank: u16,
    },
    /// Both in one process, world size 1.
    Solo,
}

impl Role {
    /// Lower-case name, for refusals.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Worker { .. } => "worker",
            Self::Solo => "solo",
        }
    }

    /// Whether it owns queries and reservations of requests.
    #[must_use]
    pub fn schedules(self) -> bool {
        !matches!(self, Self::Worker { .. })
    }

    /// Its rank, if it copies.
    #[must_use]
    pub fn rank(self) -> Option<u16> {
        match self {
            Self::Scheduler => None,
            Self::Worker { rank } => Some(rank),
            Self::Solo => Some(0),
        }
    }
}

/// One cache group as registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Its number in keys.
    pub group: GroupId,
    /// Payload bytes of one shard of one page.
    pub page_bytes: u64,
    /// How many shards make a page.
    pub shard_count: u16,
    /// Tokens of one page.
    pub page_tokens: u32,
    /// What it needs at a boundary.
    pub rule: Rule,
}

impl GroupSpec {
    /// A group of full attention.
    #[must_use]
    pub fn prefix(group: GroupId, page_bytes: u64, shard_count: u16, page_tokens: u32) -> Self {
        Self { group, page_bytes, shard_count, page_tokens, rule: Rule::Prefix }
    }
}

/// What a client says of itself when it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSpec {
    /// Its role.
    pub role: Role,
    /// The instance it belongs to.
    pub instance: InstanceId,
    /// Workers in the instance.
    pub world_size: u16,
    /// Identity of the bytes.
    pub namespace: NamespaceDigest,
    /// Cache groups, the first one being the one whose page the attach probe uses.
    pub groups: Vec<GroupSpec>,
    /// Tokens that one hash of a request covers; zero: those of the smallest page.
    pub hash_tokens: u32,
}

impl SessionSpec {
    /// Checks the registration by itself, and compiles its recovery contract.
    ///
    /// # Errors
    /// [`Refusal::BadSpec`] or [`Refusal::Contract`] names the first thing wrong.
    pub fn check(&self) -> Result<Contract, Refusal> {
        let bad = |what| Err(Refusal::BadSpec(what));
        if self.world_size == 0 || self.world_size > 1024 {
            return bad("world size must be 1 to 1024");
        }
        if self.role.rank().is_some_and(|r| r >= self.world_size) {
            return bad("rank must be below the world size");
        }
        if self.role == Role::Solo && self.world_size != 1 {
            return bad("a solo session has world size 1");
        }
        if self.groups.is_empty() || self.groups.len() > 64 {
            return bad("1 to 64 cache groups");
        }
        for (i, g) in self.groups.iter().enumerate() {
            if g.group == GroupId::PROBE {
                return bad("group number 65535 is kept for the attach probe");
            }
            if self.groups[..i].iter().any(|o| o.group == g.group) {
                return bad("a cache group is registered twice");
            }
            if g.page_bytes == 0 || g.page_bytes > 1 << 30 {
                return bad("page bytes must be 1 to 1 GiB");
            }
            if g.shard_count == 0 || !self.world_size.is_multiple_of(g.shard_count) {
                return bad("shard count must divide the world size");
            }
        }
        let rule = |g: &GroupSpec| GroupRule { group: g.group.0, page_tokens: g.page_tokens, rule: g.rule };
        let rules: Vec<GroupRule> = self.groups.iter().map(rule).collect();
        Ok(Contract::compile(self.hash_tokens, &rules)?)
    }
}

/// Liveness of a session. A closed one keeps its custody until it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Open,
    Closed,
}

/// A session as the core keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) client: ClientId,
    pub(crate) epoch: u32,
    pub(crate) role: Role,
    pub(crate) instance: InstanceId,
    pub(crate) link: Link,
    /// The worker's self-test passed on this connection.
    pub(crate) attested: bool,
    /// Ids up to here have been used.
    pub(crate) last_operation: Option<OperationId>,
    /// Live queries.
    pub(crate) operations: usize,
    /// Reservations with slots out.
    pub(crate) saves: usize,
    /// Slots it may write.
    pub(crate) writing: usize,
    /// Operations that wait for its end of copy.
    pub(crate) owing: usize,
}

impl Session {
    /// Whether something of it, or that it must do, is not over.
    pub(crate) fn is_owed(&self) -> bool {
        self.writing > 0 || self.owing > 0 || self.operations > 0 || self.saves > 0
    }
}
