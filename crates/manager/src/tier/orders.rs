//! What the core thread and a tier's threads tell each other.

use orbitkv_core::{ExtentId, FoundShard, NamespaceDigest, SlotRef, StoredName, StoredShard, Ticket};
use orbitkv_shm::Segment;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Where a payload is in the pool. The slot's header lies in front of it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// What takes the device's time. As many wait as the core allows: it bounds writes, and reads own their bytes.
#[derive(Debug)]
pub(crate) enum Job {
    Write {
        slot: SlotRef,
        shard: StoredShard,
        from: Place,
    },
    Read {
        slot: SlotRef,
        extent: ExtentId,
        name: StoredName,
        crc: u64,
        ticket: Ticket,
        urgent: bool,
        into: Place,
    },
}

/// What the core wants.
#[derive(Debug)]
pub(crate) enum Order {
    Do(Job),
    Hasten {
        ticket: Ticket,
    },
    Erase {
        extent: ExtentId,
    },
    /// To be answered by that number.
    Forget {
        namespace: NamespaceDigest,
        number: u64,
    },
    /// A segment of the pool that payloads may lie in from now on.
    AddSegment {
        segment: Arc<Segment>,
    },
    /// Its memory is to go: the order is dropped when the device has let go of it.
    RemoveSegment {
        segment: Arc<Segment>,
        let_go: LetGo,
    },
}

/// Held by whoever may still have a segment. The pool waits for the last of them.
#[derive(Clone, Debug)]
pub(crate) struct LetGo(#[allow(dead_code, reason = "it is dropped, no more")] Sender<()>);

impl LetGo {
    /// With what tells that all are gone, by being disconnected.
    pub(crate) fn new() -> (Self, Receiver<()>) {
        let (held, all_gone) = channel();
        (Self(held), all_gone)
    }
}

/// What has been done, or has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Written {
        slot: SlotRef,
        extent: Option<ExtentId>,
    },
    Read {
        slot: SlotRef,
        good: bool,
    },
    /// Nobody should wait for the read of that slot, which goes on.
    Overdue {
        slot: SlotRef,
    },
    /// A namespace was forgotten; `recorded`: by later managers too.
    Forgotten {
        number: u64,
        recorded: bool,
    },
    Lost {
        name: StoredName,
        extent: ExtentId,
    },
    Moved {
        name: StoredName,
        from: ExtentId,
        to: ExtentId,
    },
    /// A few at a time, so that the core thread has time for others in between.
    Found(Vec<FoundShard>),
    FoundAll,
    State {
        reads: bool,
        writes: bool,
    },
}
