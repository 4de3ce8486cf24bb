//! What stands behind the pool: devices, each with a thread of its own, and the core thread's end of them.
//!
//! A page's name says which device its shards are written to, as long as that one takes its share (`route`); an
//! extent carries the number of its device. A device that fails or does not answer takes nobody with it: what is asked
//! of it is a miss, and what was to be written goes to the others.

mod device;
mod handle;
mod memory;
mod orders;
mod outlet;
mod resets;
mod route;
#[cfg(test)]
mod tests;

pub(crate) use handle::{Bell, Handle, pair};
pub(crate) use memory::MemoryTierSettings;
pub(crate) use orders::{Done, Job, LetGo, Order, Place};
pub(crate) use outlet::Outlet;

use crate::ssd::{self, OpenedDirectory, SsdStatus, WriteBudget};
use crate::waker::Waker;
use device::Device;
use orbitkv_core::{ExtentId, NamespaceDigest, SlotRef, Ticket};
use orbitkv_shm::Segment;
use resets::Resets;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long devices may take to end.
const CLOSING: Duration = Duration::from_secs(15);

/// What there is to be started.
#[derive(Debug)]
pub(crate) enum TierParts {
    None,
    Memory(MemoryTierSettings),
    Ssd(Vec<OpenedDirectory>, WriteBudget),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Tier {
    name: &'static str,
    devices: Vec<Device>,
    /// Of what directories write.
    budget: WriteBudget,
    /// Devices that have not told of everything yet.
    finding: usize,
    /// Payloads that are being written: the device, and their bytes.
    writing: BTreeMap<SlotRef, (usize, u32)>,
    writing_bytes: u64,
    /// Slots that are being read into, and the device.
    reading: BTreeMap<SlotRef, usize>,
    resets: Resets,
    /// Answers that no device has to give.
    answers: VecDeque<Done>,
    /// What the core was told.
    told: (bool, bool),
}

impl Tier {
    /// Starts the threads, if there is a tier.
    pub(crate) fn start(parts: TierParts, waker: &Waker) -> io::Result<Option<Self>> {
        let mut budget = WriteBudget::default();
        let (name, devices) = match parts {
            TierParts::None => return Ok(None),
            TierParts::Memory(settings) => {
                ("memory", vec![Device::new(memory::start(settings, waker.clone())?, None)])
            }
            TierParts::Ssd(opened, of_all) => {
                budget = of_all;
                let started = opened.into_iter().zip(0..).map(|(directory, number)| {
                    let (handle, report) = ssd::start(directory, number, budget.clone(), waker.clone())?;
                    Ok(Device::new(handle, Some(report)))
                });
                ("ssd", started.collect::<io::Result<_>>()?)
            }
        };
        Ok(Some(Self::of(name, devices, budget)))
    }

    fn of(name: &'static str, devices: Vec<Device>, budget: WriteBudget) -> Self {
        Self {
            name,
            finding: devices.len(),
            devices,
            budget,
            writing: BTreeMap::new(),
            writing_bytes: 0,
            reading: BTreeMap::new(),
            resets: Resets::default(),
            answers: VecDeque::new(),
            told: (true, true),
        }
    }

    /// For labels: `memory` or `ssd`.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Hands a job over. What no device can do now is answered by [`Tier::next_done`].
    pub(crate) fn submit(&mut self, job: Job) {
        let (slot, device) = match &job {
            Job::Write { slot, shard, .. } => {
                let Some(device) = route::choose(&self.devices, &shard.name) else {
                    return self.answers.push_back(Done::Written { slot: *slot, extent: None });
                };
                self.note_write(*slot, device, shard.payload_bytes);
                (*slot, device)
            }
            Job::Read { slot, extent, .. } => {
                let device = ssd::device_of(*extent);
                // Not asked for in vain: who waits for it gets its answer, and what is computed again is written
                // to another device.
                if self.devices.get(device).is_none_or(|device| device.stuck) {
                    return self.answers.push_back(Done::Read { slot: *slot, good: false });
                }
                self.reading.insert(*slot, device);
                (*slot, device)
            }
        };
        let write = matches!(job, Job::Write { .. });
        if !self.send(device, Order::Do(job)) {
            // It never came to a thread, so nobody touches the slot.
            let failed = match write {
                true => Done::Written { slot, extent: None },
                false => Done::Read { slot, good: false },
            };
            if let Some(failed) = self.digest(device, failed) {
                self.answers.push_back(failed);
            }
        }
    }

    fn note_write(&mut self, slot: SlotRef, device: usize, bytes: u32) {
        self.writing.insert(slot, (device, bytes));
        self.writing_bytes += u64::from(bytes);
        if let Some(device) = self.devices.get_mut(device) {
            device.writing += 1;
        }
    }

    /// Demand has come for what is read ahead.
    pub(crate) fn hasten(&mut self, ticket: Ticket) {
        for device in 0..self.devices.len() {
            self.send(device, Order::Hasten { ticket });
        }
    }

    /// A shard is not wanted any more.
    pub(crate) fn erase(&mut self, extent: ExtentId) {
        self.send(ssd::device_of(extent), Order::Erase { extent });
    }

    /// Nothing of a namespace may be found again.
    pub(crate) fn forget(&mut self, namespace: NamespaceDigest) {
        let number = self.resets.begin(self.devices.len());
        for device in 0..self.devices.len() {
            if !self.send(device, Order::Forget { namespace, number }) {
                self.answers.extend(self.resets.answer(number, false));
            }
        }
    }

    /// Number of the last [`Tier::forget`], which [`Done::Forgotten`] will have once all devices have answered.
    pub(crate) fn last_reset(&self) -> u64 {
        self.resets.last()
    }

    /// Payloads may lie in that segment from now on.
    pub(crate) fn add_segment(&self, segment: &Arc<Segment>) {
        for device in 0..self.devices.len() {
            self.send(device, Order::AddSegment { segment: Arc::clone(segment) });
        }
    }

    /// The memory of a segment is to go: what tells when no device has it any more.
    pub(crate) fn remove_segment(&self, segment: &Arc<Segment>) -> Receiver<()> {
        let (held, all_gone) = LetGo::new();
        for device in 0..self.devices.len() {
            let (segment, let_go) = (Arc::clone(segment), held.clone());
            self.send(device, Order::RemoveSegment { segment, let_go });
        }
        all_gone
    }

    /// False if its thread has ended.
    fn send(&self, device: usize, order: Order) -> bool {
        let sent = self.devices.get(device).is_some_and(|device| device.handle.send(order));
        if !sent {
            tracing::debug!(device, "the thread of a tier's device has ended");
        }
        sent
    }

    /// Whether [`Tier::next_done`] has something that no device wakes anybody for.
    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The next thing that the core has to know.
    pub(crate) fn next_done(&mut self) -> Option<Done> {
        if let Some(done) = self.answers.pop_front() {
            return Some(done);
        }
        for at in 0..self.devices.len() {
            while let Some(done) = self.devices.get(at)?.handle.next_done() {
                if let Some(done) = self.digest(at, done) {
                    return Some(done);
                }
            }
        }
        None
    }

    /// What one device says, as the core is to hear it of all.
    fn digest(&mut self, at: usize, done: Done) -> Option<Done> {
        match done {
            Done::Written { slot, .. } => {
                if let Some((device, bytes)) = self.writing.remove(&slot) {
                    self.writing_bytes -= u64::from(bytes);
                    if let Some(device) = self.devices.get_mut(device) {
                        device.writing -= 1;
                    }
                }
                Some(done)
            }
            Done::Read { slot, .. } => {
                self.reading.remove(&slot);
                Some(done)
            }
            Done::FoundAll => {
                self.finding -= 1;
                (self.finding == 0).then_some(done)
            }
            Done::State { reads, writes } => {
                if let Some(device) = self.devices.get_mut(at) {
                    (device.reads, device.writes) = (reads, writes);
                }
                self.state()
            }
            Done::Forgotten { number, recorded } => self.resets.answer(number, recorded),
            done => Some(done),
        }
    }

    /// What all devices together can do, if it has changed: what any of them can.
    fn state(&mut self) -> Option<Done> {
        let reads = self.devices.iter().any(Device::is_readable);
        let writes = self.devices.iter().any(Device::is_writable);
        let changed = self.told != (reads, writes);
        self.told = (reads, writes);
        changed.then_some(Done::State { reads, writes })
    }

    /// Looks for devices that do not move, or do again. Whoever waits for one that does not is let go; what it has
    /// been given it keeps. The core hears of it by [`Tier::next_done`].
    pub(crate) fn watch(&mut self, now: Instant) {
        for (at, device) in self.devices.iter_mut().enumerate() {
            if device.becomes_stuck(now) {
                let overdue = self.reading.iter().filter(|(_, device)| **device == at);
                self.answers.extend(overdue.map(|(slot, _)| Done::Overdue { slot: *slot }));
            }
        }
        let state = self.state();
        self.answers.extend(state);
    }

    /// Whether there is something to watch, whatever the core waits for.
    pub(crate) fn is_busy(&self, now: Instant) -> bool {
        self.devices.iter().any(|device| device.stuck || device.is_busy(now))
    }

    /// Payload that is being written.
    pub(crate) fn writing_bytes(&self) -> u64 {
        self.writing_bytes
    }

    /// What each directory says of itself.
    pub(crate) fn status(&self) -> Vec<SsdStatus> {
        let write_budget = self.budget.status();
        let reports = self.devices.iter().filter_map(|device| device.report.as_ref());
        reports.map(|report| SsdStatus { write_budget, ..report.status() }).collect()
    }

    /// Has each device finish its writes and end. What takes too long is left as a crash would leave it.
    pub(crate) fn close(mut self) {
        self.devices.iter_mut().for_each(|device| device.handle.close());
        let until = Instant::now() + CLOSING;
        for device in &self.devices {
            if !device.handle.has_ended(until.saturating_duration_since(Instant::now())) {
                tracing::error!("a tier's device has not ended: it is left as a crash would leave it");
            }
        }
    }
}
