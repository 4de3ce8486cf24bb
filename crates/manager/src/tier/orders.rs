//! What the core thread and a tier's threads tell each other.

use orbitkv_core::{ExtentId, FoundShard, NamespaceDigest, SlotRef, StoredName, StoredShard, Ticket};
use orbitkv_shm::Segment;
use std::sync::Arc;

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
    Hasten { ticket: Ticket },
    Erase { extent: ExtentId },
    Forget { namespace: NamespaceDigest },
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
