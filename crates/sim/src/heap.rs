//! What is going to happen, in order of time and then of cause.

use crate::engine::WorkTicket;
use orbitkv_core::SlotRef;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// One thing that happens at one moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// The next piece of a client's stream reaches the manager.
    Up { link: usize },
    /// The next piece of the manager's stream reaches a client.
    Down { link: usize },
    /// The core asked to be woken.
    Timer,
    /// An engine comes up with new processes.
    StartEngine { engine: usize },
    /// A process dies; what its copies have started goes on for a while.
    Kill { process: usize },
    /// The last copy of a dead process has ended and its exit is seen.
    Gone { process: usize },
    /// A client tries to connect.
    Connect { client: usize },
    /// A scheduler does something, or nothing.
    Turn { client: usize },
    /// A worker looks after its self-test.
    Probe { client: usize },
    /// The engine carries a ticket to a worker.
    Dispatch { client: usize, ticket: Rc<WorkTicket> },
    /// The engine tells its scheduler that a worker has restored.
    Told { client: usize, session: u64, operation: u64, rank: u16, restored: bool },
    /// A copy moves one stripe of one page.
    Beat { copy: u64 },
    /// A write to the slower tier ends.
    Written { slot: SlotRef },
    /// A read from the slower tier ends.
    ReadEnds { slot: SlotRef },
    /// The slower tier tells of something that an earlier run has left.
    Finding,
    /// It is time to check some of what is in memory.
    Scrub,
    /// The check of a slot ends.
    ScrubEnds { slot: SlotRef },
    /// A segment is populated, or cannot be.
    Grown { segment: u32, works: bool },
}

impl Happening {
    /// A small number for the history's hash.
    pub(crate) fn code(&self) -> u64 {
        match self {
            Self::Up { link } => 1 + 16 * *link as u64,
            Self::Down { link } => 2 + 16 * *link as u64,
            Self::Timer => 3,
            Self::StartEngine { engine } => 4 + 16 * *engine as u64,
            Self::Kill { process } => 5 + 16 * *process as u64,
            Self::Gone { process } => 6 + 16 * *process as u64,
            Self::Connect { client } => 7 + 16 * *client as u64,
            Self::Turn { client } => 8 + 16 * *client as u64,
            Self::Probe { client } => 9 + 16 * *client as u64,
            Self::Dispatch { client, .. } => 10 + 16 * *client as u64,
            Self::Told { client, .. } => 11 + 16 * *client as u64,
            Self::Beat { copy } => 12 + 16 * copy,
            Self::Written { slot } => 14 + 16 * u64::from(slot.index),
            Self::ReadEnds { slot } => 15 + 16 * u64::from(slot.index),
            Self::Finding => 16,
            Self::Scrub => 32,
            Self::ScrubEnds { slot } => 48 + 16 * u64::from(slot.index),
            Self::Grown { segment, .. } => 13 + 16 * u64::from(*segment),
        }
    }
}

/// The heap of events. Events of one moment happen in the order in which they were scheduled.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    events: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    sequence: u64,
}

impl Heap {
    pub(crate) fn push(&mut self, at_us: u64, what: Happening) {
        self.sequence += 1;
        self.events.push(Reverse((at_us, self.sequence, what)));
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, Happening)> {
        self.events.pop().map(|Reverse((at, _, what))| (at, what))
    }
}
