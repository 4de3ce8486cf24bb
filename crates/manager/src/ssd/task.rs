//! What a directory's thread has to do, and what of it the disk has.

use crate::service_order::Service;
use crate::tier::{Job, Place};
use orbitkv_core::{ExtentId, SlotRef, StoredName, StoredShard, Ticket};
use orbitkv_store::{Extent, Priority, StoredPage};
use std::time::Instant;

/// A page to be written behind.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) slot: SlotRef,
    pub(super) shard: StoredShard,
    pub(super) from: Place,
    /// Its bytes are taken out of the budget.
    pub(super) paid: bool,
    /// The file system had no room for it once.
    pub(super) again: bool,
}

/// A page to be read into its slot.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) slot: SlotRef,
    pub(super) extent: ExtentId,
    pub(super) name: StoredName,
    pub(super) crc: u64,
    pub(super) ticket: Ticket,
    pub(super) urgent: bool,
    pub(super) into: Place,
}

/// Waits for the disk.
#[derive(Debug)]
pub(super) enum Task {
    Write(Write),
    Read(Read),
    /// A page whose segment goes, to be written again.
    Move(StoredPage),
}

impl From<Job> for Task {
    fn from(job: Job) -> Self {
        match job {
            Job::Write { slot, shard, from } => {
                Self::Write(Write { slot, shard, from, paid: false, again: false })
            }
            Job::Read { slot, extent, name, crc, ticket, urgent, into } => {
                Self::Read(Read { slot, extent, name, crc, ticket, urgent, into })
            }
        }
    }
}

impl Task {
    pub(super) fn service(&self) -> Service {
        match self {
            Self::Read(read) if read.urgent => Service::Demand(read.ticket),
            Self::Read(read) => Service::Ahead(read.ticket),
            Self::Write(_) | Self::Move(_) => Service::Write,
        }
    }
}

/// The disk has it.
#[derive(Debug)]
pub(super) enum Flight {
    Write(Write, Extent),
    Read(Read, Extent),
    MoveRead(StoredPage),
    MoveWrite(StoredPage, Extent),
}

impl Flight {
    pub(super) fn priority(&self) -> Priority {
        match self {
            Self::Read(read, _) if read.urgent => Priority::Demand,
            Self::Read(..) => Priority::Preparation,
            _ => Priority::Background,
        }
    }
}

/// With what the thread knows of it.
#[derive(Debug)]
pub(super) struct Flying {
    pub(super) flight: Flight,
    pub(super) bytes: u32,
    pub(super) since: Instant,
}
