//! Engines, their processes and clients: plain data.

use crate::content::{Key, Words};
use crate::plan::EnginePlan;
use crate::scheduler::Desk;
use crate::worker::Hands;
use orbitkv_core::{InstanceId, PagePart, Role, SlotRef, Ticket};
use orbitkv_wire::Resume;

/// A process of an engine.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) alive: bool,
    /// Threads of it rest until then; copies that a device makes do not.
    pub(crate) stopped_until_us: u64,
    /// Copies of a dead process go on until then.
    pub(crate) dma_until_us: u64,
    /// The manager has seen its exit.
    pub(crate) gone: bool,
}

/// One session's other side. It reconnects by itself for as long as its process lives.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) id: u128,
    pub(crate) process: usize,
    pub(crate) engine: usize,
    pub(crate) instance: InstanceId,
    pub(crate) role: Role,
    pub(crate) epoch: u32,
    pub(crate) link: Option<usize>,
    /// Set by the welcome.
    pub(crate) session: Option<u64>,
    /// When the welcome came.
    pub(crate) since_us: u64,
    /// The last session that welcomed it.
    pub(crate) last_session: Option<u64>,
    /// Earlier sessions for which the end of all copies has not been attested.
    pub(crate) past: Vec<u64>,
    /// Those of which the present connection was told, which the manager may never read.
    pub(crate) said: Vec<u64>,
    pub(crate) next_operation: u64,
    /// What it does as a scheduler.
    pub(crate) desk: Option<Desk>,
    /// What it does as a worker.
    pub(crate) hands: Option<Hands>,
    /// What its last but one and its last hello said of earlier sessions.
    pub(crate) resumes: [Option<Resume>; 2],
    /// A connection attempt is scheduled.
    pub(crate) connecting: bool,
}

/// One inference engine over all its restarts.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) plan: EnginePlan,
    /// Current scheduler client.
    pub(crate) scheduler: Option<usize>,
    /// Current worker clients by rank.
    pub(crate) workers: Vec<usize>,
    /// Its processes live.
    pub(crate) up: bool,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    Restore,
    Save,
}

/// A page in a ticket: its name and its parts by shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TicketPage {
    pub(crate) key: Key,
    pub(crate) parts: Vec<PagePart>,
}

/// What a scheduler hands to the workers through the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkTicket {
    pub(crate) direction: Direction,
    pub(crate) owner: Ticket,
    /// Time before the manager was asked for what the ticket gives.
    pub(crate) issued_us: u64,
    pub(crate) pages: Vec<TicketPage>,
}

impl PartialOrd for WorkTicket {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Only so that events can live in a heap; their sequence numbers always differ.
impl Ord for WorkTicket {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.owner.cmp(&other.owner)
    }
}

/// One page of a running copy.
#[derive(Clone, Debug)]
pub(crate) struct CopyPage {
    pub(crate) key: Key,
    pub(crate) shard: u16,
    pub(crate) part: PagePart,
    /// What has been read so far.
    pub(crate) words: Words,
}

impl CopyPage {
    pub(crate) fn slot(&self) -> SlotRef {
        self.part.slot
    }
}

/// A copy that runs on behalf of a worker. It does not stop because a socket or a process ends.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) client: usize,
    /// The worker's session when it began: whose custody it uses.
    pub(crate) session: u64,
    pub(crate) owner: Ticket,
    pub(crate) direction: Direction,
    pub(crate) pages: Vec<CopyPage>,
    /// Beats done.
    pub(crate) beat: usize,
    pub(crate) beat_us: u64,
    /// Stops before this beat and gives everything back.
    pub(crate) abort_at: Option<usize>,
    /// The core has counted the worker as a reader of it.
    pub(crate) owed: bool,
    /// It began before the manager knew of the restore.
    pub(crate) early: bool,
    /// Belongs to the worker's self-test.
    pub(crate) probe: bool,
}
