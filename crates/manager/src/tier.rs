//! A slower tier in this process's own memory, with a delay: what stands behind the pool until a disk
//! does. It is driven by the effects that a disk will be driven by.

use crate::waker::Waker;
use crc_fast::{CrcAlgorithm, checksum};
use orbitkv_core::{ExtentId, PageKey, SlotRef};
use orbitkv_shm::Segment;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How large the tier is, and how slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TierSettings {
    /// Payload it holds; zero: there is no tier.
    pub(crate) bytes: u64,
    /// From a request to its end.
    pub(crate) delay: Duration,
}

/// Where a payload is in the pool.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// What to do. As many are under way as the core allows: it bounds writes, and reads own their bytes.
#[derive(Debug)]
pub(crate) enum Job {
    Write { slot: SlotRef, key: PageKey, from: Place },
    Read { slot: SlotRef, extent: ExtentId, crc: u64, into: Place },
    Erase { extent: ExtentId },
}

/// What has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Written { slot: SlotRef, extent: Option<ExtentId> },
    Read { slot: SlotRef, good: bool },
    Lost { key: PageKey, extent: ExtentId },
}

/// The core thread's end of it.
#[derive(Debug)]
pub(crate) struct Tier {
    jobs: Sender<(Instant, Job)>,
    done: Receiver<Done>,
    delay: Duration,
}

impl Tier {
    /// Starts the thread.
    pub(crate) fn start(settings: TierSettings, waker: Waker) -> io::Result<Self> {
        let (jobs, todo) = channel();
        let (sender, done) = channel();
        let store = Store { capacity_bytes: settings.bytes, ..Store::default() };
        thread::Builder::new()
            .name("orbitkv-tier".to_owned())
            .spawn(move || serve(store, &todo, &sender, &waker))?;
        Ok(Self { jobs, done, delay: settings.delay })
    }

    /// Begins a job. A tier whose thread has ended never answers: reads end at their deadlines.
    pub(crate) fn submit(&self, job: Job) {
        let due = Instant::now() + self.delay;
        if self.jobs.send((due, job)).is_err() {
            tracing::error!("the tier's thread has ended");
        }
    }

    /// The next job that has ended.
    pub(crate) fn next_done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }
}

/// A job and when its delay is over; the earliest comes first in a heap.
struct Pending {
    due: Instant,
    number: u64,
    job: Job,
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}

impl Eq for Pending {}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

fn serve(mut store: Store, todo: &Receiver<(Instant, Job)>, done: &Sender<Done>, waker: &Waker) {
    let mut pending: BinaryHeap<Pending> = BinaryHeap::new();
    let mut number = 0;
    loop {
        let next = match pending.peek() {
            Some(first) => todo.recv_timeout(first.due.saturating_duration_since(Instant::now())),
            None => todo.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok((due, job)) => {
                number += 1;
                pending.push(Pending { due, number, job });
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(Pending { job, .. }) = pending.pop() {
                    let mut sent = true;
                    store.carry_out(job, |what| sent &= done.send(what).is_ok());
                    if !sent {
                        return;
                    }
                    waker.wake();
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Payloads by extent.
#[derive(Debug, Default)]
struct Store {
    capacity_bytes: u64,
    used_bytes: u64,
    payloads: BTreeMap<ExtentId, (PageKey, Vec<u8>)>,
    /// Oldest first; erased ones too.
    order: VecDeque<ExtentId>,
    next: u64,
}

impl Store {
    fn carry_out(&mut self, job: Job, mut tell: impl FnMut(Done)) {
        match job {
            Job::Write { slot, key, from } => {
                let extent = self.write(key, &from, &mut tell);
                tell(Done::Written { slot, extent });
            }
            Job::Read { slot, extent, crc, into } => {
                tell(Done::Read { slot, good: self.read(extent, crc, &into) });
            }
            Job::Erase { extent } => self.erase(extent),
        }
    }

    /// Makes room by dropping the oldest, and keeps a copy.
    fn write(&mut self, key: PageKey, from: &Place, tell: &mut impl FnMut(Done)) -> Option<ExtentId> {
        let bytes = from.bytes as u64;
        if bytes > self.capacity_bytes {
            return None;
        }
        while self.used_bytes + bytes > self.capacity_bytes {
            let oldest = self.order.pop_front()?;
            if let Some((key, _)) = self.payloads.get(&oldest) {
                tell(Done::Lost { key: *key, extent: oldest });
                self.erase(oldest);
            }
        }
        let mut payload = vec![0; from.bytes];
        from.segment.read_at(from.offset, &mut payload).ok()?;
        self.next += 1;
        let extent = ExtentId(self.next);
        self.used_bytes += bytes;
        self.payloads.insert(extent, (key, payload));
        self.order.push_back(extent);
        Some(extent)
    }

    fn read(&self, extent: ExtentId, crc: u64, into: &Place) -> bool {
        let Some((_, payload)) = self.payloads.get(&extent) else {
            return false;
        };
        payload.len() == into.bytes
            && checksum(CrcAlgorithm::Crc64Nvme, payload) == crc
            && into.segment.write_at(into.offset, payload).is_ok()
    }

    fn erase(&mut self, extent: ExtentId) {
        if let Some((_, payload)) = self.payloads.remove(&extent) {
            self.used_bytes -= payload.len() as u64;
        }
        // Erased numbers stay in the order until they come to its front, but never more than live ones.
        if self.order.len() > 2 * self.payloads.len() + 64 {
            self.order.retain(|extent| self.payloads.contains_key(extent));
        }
    }
}
