//! The reference model: the promises of the core, written as plainly as possible and nothing like it.
//!
//! It sees every event and every effect, says beforehand whether a request must be refused, and keeps
//! who owns what: operations with their bytes and copying workers, slots with their writers, and every
//! page that was ever committed in full. It never evicts, so it may know pages that the core has
//! dropped; the core may never know one that the model does not.

mod compare;
mod effects;
mod events;
mod fairness;
mod pages;
mod recovery;
mod scrub;
mod speculation;
mod tier;

use crate::content::Key;
use crate::plan::slot_bytes;
use orbitkv_core::{
    Account, BlockHash, ClientId, Config, GroupId, InstanceId, OperationId, PagePart, Phase, Revision,
    SessionId, SessionSpec, SlotRef, Ticket,
};
use std::collections::{BTreeMap, BTreeSet};

/// A session that has been opened and is not gone.
#[derive(Clone, Debug)]
struct Session {
    client: ClientId,
    spec: SessionSpec,
    open: bool,
    last_operation: u64,
}

/// A query that is not over.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    instance: InstanceId,
    pub(crate) phase: Phase,
    /// What was asked for, beside the pages: all or nothing, patience, and only what is in memory.
    rule: (bool, bool, bool),
    /// Where its reads are booked.
    reading: Account,
    /// It was prepared, and nobody has claimed it.
    unclaimed: bool,
    /// When its owner was last heard to want it.
    kept_us: u64,
    /// The core has shown what it has reserved.
    learned: bool,
    /// Handed to the workers: its bytes are booked as being restored.
    handed: bool,
    /// Group and hash of each page.
    wanted: Vec<(GroupId, BlockHash)>,
    /// Shards and bytes of each page.
    shapes: Vec<(u16, u64)>,
    /// Of a recovery: where the pages of each group begin.
    recovery: Option<Vec<(GroupId, u32)>>,
    /// Pages it leases, and their parts.
    leased: u32,
    parts: Vec<PagePart>,
    pub(crate) bytes: u64,
    /// Bytes of those for reads that nobody waits for any more.
    lingering_bytes: u64,
    /// Workers that may be copying.
    pub(crate) owing: BTreeSet<SessionId>,
    /// First page and number of pages that its owner handed out.
    range: (u32, u32),
    /// Workers that were done before they could be counted in.
    early: BTreeSet<SessionId>,
    /// Turn, end of the wait, and order of arrival.
    place: (u64, u64, u64),
}

impl Operation {
    /// Bytes of the first so many pages.
    fn bytes_of(&self, pages: usize) -> u64 {
        self.shapes.iter().take(pages).map(|(_, bytes)| bytes).sum()
    }
}

/// A reservation with slots out.
#[derive(Clone, Debug)]
struct Save {
    revision: Revision,
    request: (GroupId, Option<BlockHash>, u32, Vec<BlockHash>),
    open_slots: usize,
}

/// A slot in somebody's write custody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fill {
    writer: SessionId,
    page: u64,
    bytes: u64,
    quarantined: bool,
}

/// A page between its grant and its last commit.
#[derive(Clone, Debug)]
struct Page {
    key: Key,
    parts: Vec<PagePart>,
    committed: usize,
    condemned: bool,
    saver: (SessionId, OperationId),
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    config: Config,
    sessions: BTreeMap<SessionId, Session>,
    operations: BTreeMap<Ticket, Operation>,
    saves: BTreeMap<(SessionId, OperationId), Save>,
    fills: BTreeMap<SlotRef, Fill>,
    pages: BTreeMap<u64, Page>,
    next_page: u64,
    /// Every complete commit that has not been forgotten since.
    complete: BTreeMap<Key, Vec<Vec<PagePart>>>,
    arrivals: u64,
    /// Pages that owners handed out, without those of self-tests.
    restored_pages: u64,
    /// Made by the event that is being observed.
    fresh: Option<Ticket>,
    tier: tier::Tier,
    /// Slots that the check of memory reads.
    scrubs: BTreeSet<SlotRef>,
}

impl Model {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            config: config.clone(),
            sessions: BTreeMap::new(),
            operations: BTreeMap::new(),
            saves: BTreeMap::new(),
            fills: BTreeMap::new(),
            pages: BTreeMap::new(),
            next_page: 0,
            complete: BTreeMap::new(),
            arrivals: 0,
            restored_pages: 0,
            fresh: None,
            tier: tier::Tier::default(),
            scrubs: BTreeSet::new(),
        }
    }

    fn open(&self, session: SessionId) -> Option<&Session> {
        self.sessions.get(&session).filter(|s| s.open)
    }

    /// Shards of a page and bytes of one of its slots.
    fn shape(&self, session: SessionId, group: GroupId) -> (u16, u64) {
        let groups = self.sessions.get(&session).map_or(&[][..], |s| &s.spec.groups);
        match group {
            GroupId::PROBE => (1, groups.first().map_or(0, |g| slot_bytes(g.page_bytes))),
            _ => {
                let of_group = groups.iter().find(|g| g.group == group);
                of_group.map_or((0, 0), |g| (g.shard_count, slot_bytes(g.page_bytes)))
            }
        }
    }

    fn key(&self, session: SessionId, group: GroupId, hash: BlockHash) -> Option<Key> {
        let namespace = self.sessions.get(&session)?.spec.namespace;
        Some(Key { namespace, group, hash })
    }

    /// The version of an operation in which somebody is still interested.
    fn live(&self, session: SessionId, operation: OperationId) -> Option<Ticket> {
        let of_it = self.operations.range(
            Ticket { session, operation, revision: Revision(0) }..=Ticket {
                session,
                operation,
                revision: Revision(u32::MAX),
            },
        );
        of_it.filter(|(_, op)| op.phase != Phase::Draining).map(|(ticket, _)| *ticket).next()
    }

    /// Open worker sessions of an instance by rank.
    fn workers(&self, instance: InstanceId) -> BTreeMap<u16, SessionId> {
        let open = self.sessions.iter().filter(|(_, s)| s.open && s.spec.instance == instance);
        open.filter_map(|(id, s)| Some((s.spec.role.rank()?, *id))).collect()
    }

    /// Whether the core must count that worker as copying for that operation.
    pub(crate) fn owes(&self, ticket: Ticket, worker: SessionId) -> bool {
        self.operations.get(&ticket).is_some_and(|op| op.owing.contains(&worker))
    }
}
