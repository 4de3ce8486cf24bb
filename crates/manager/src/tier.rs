//! A slower tier in this process's own memory, with a delay: what stands behind the pool until a disk
//! does. It is driven by the effects that a disk will be driven by.

mod device;
mod store;

use crate::waker::Waker;
use device::Device;
use orbitkv_core::{ExtentId, NamespaceDigest, SlotRef, StoredName, StoredShard, Ticket};
use orbitkv_shm::Segment;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// How large the tier is, and how slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TierSettings {
    /// Payload it holds; zero: there is no tier.
    pub(crate) bytes: u64,
    /// From the beginning of a job to its end.
    pub(crate) delay: Duration,
    /// Jobs under way at once; zero: no limit. Others wait in the order of service.
    pub(crate) depth: u32,
}

/// Where a payload is in the pool.
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

/// What has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Written { slot: SlotRef, extent: Option<ExtentId> },
    Read { slot: SlotRef, good: bool },
    Lost { name: StoredName, extent: ExtentId },
    FoundAll,
}

/// The core thread's end of it.
#[derive(Debug)]
pub(crate) struct Tier {
    orders: Sender<Order>,
    done: Receiver<Done>,
}

impl Tier {
    /// Starts the thread.
    pub(crate) fn start(settings: TierSettings, waker: Waker) -> io::Result<Self> {
        let (orders, todo) = channel();
        let (sender, done) = channel();
        thread::Builder::new()
            .name("orbitkv-tier".to_owned())
            .spawn(move || Device::new(settings).serve(&todo, &sender, &waker))?;
        Ok(Self { orders, done })
    }

    /// Hands an order over. A tier whose thread has ended never answers: reads end at their deadlines.
    pub(crate) fn submit(&self, order: Order) {
        if self.orders.send(order).is_err() {
            tracing::error!("the tier's thread has ended");
        }
    }

    /// The next job that has ended.
    pub(crate) fn next_done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }
}
