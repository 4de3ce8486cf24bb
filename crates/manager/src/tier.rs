//! What stands behind the pool: devices, each with a thread of its own, and the core thread's end of them.
//!
//! A page's name says which device its shards are written to, so that a directory sees all versions of a name;
//! an extent carries the number of its device.

mod handle;
mod memory;
mod orders;
mod outlet;

pub(crate) use handle::{Bell, Handle, pair};
pub(crate) use memory::MemoryTierSettings;
pub(crate) use orders::{Done, Job, Order, Place};
pub(crate) use outlet::Outlet;

use crate::ssd::{self, OpenedDirectory, Report, SsdStatus, WriteBudget};
use crate::waker::Waker;
use orbitkv_core::{SlotRef, StoredName};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device that has been busy with one thing for so long is not waited for.
const STUCK: Duration = Duration::from_secs(10);
/// How long devices may take to end.
const CLOSING: Duration = Duration::from_secs(15);

/// What there is to be started.
#[derive(Debug)]
pub(crate) enum TierParts {
    None,
    Memory(MemoryTierSettings),
    Ssd(Vec<OpenedDirectory>, WriteBudget),
}

#[derive(Debug)]
struct Device {
    handle: Handle,
    /// What it says of itself.
    reads: bool,
    writes: bool,
    /// What its silence says.
    stuck: bool,
    /// Only of a directory.
    report: Option<Arc<Report>>,
}

impl Device {
    fn new(handle: Handle, report: Option<Arc<Report>>) -> Self {
        Self { handle, reads: true, writes: true, stuck: false, report }
    }
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
    /// Payloads that are being written.
    writing: BTreeMap<SlotRef, u32>,
    writing_bytes: u64,
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
        let (finding, writing) = (devices.len(), BTreeMap::new());
        Ok(Some(Self { name, devices, budget, finding, writing, writing_bytes: 0, told: (true, true) }))
    }

    /// For labels: `memory` or `ssd`.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Hands an order over. A device whose thread has ended never answers: reads end at their deadlines.
    pub(crate) fn submit(&mut self, order: Order) {
        match &order {
            Order::Do(Job::Write { slot, shard, .. }) => {
                self.writing.insert(*slot, shard.payload_bytes);
                self.writing_bytes += u64::from(shard.payload_bytes);
                self.send(device_of(&shard.name, self.devices.len()), order);
            }
            Order::Do(Job::Read { extent, .. }) | Order::Erase { extent } => {
                self.send(ssd::device_of(*extent), order);
            }
            Order::Hasten { ticket } => {
                let ticket = *ticket;
                (0..self.devices.len()).for_each(|device| self.send(device, Order::Hasten { ticket }));
            }
            Order::Forget { namespace } => {
                let namespace = *namespace;
                (0..self.devices.len()).for_each(|device| self.send(device, Order::Forget { namespace }));
            }
        }
    }

    fn send(&self, device: usize, order: Order) {
        if !self.devices.get(device).is_some_and(|device| device.handle.send(order)) {
            tracing::error!(device, "the thread of a tier's device has ended");
        }
    }

    /// The next thing that the core has to know.
    pub(crate) fn next_done(&mut self) -> Option<Done> {
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
                let bytes = self.writing.remove(&slot).unwrap_or(0);
                self.writing_bytes -= u64::from(bytes);
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
            done => Some(done),
        }
    }

    /// What all devices together can do, if it has changed. One that is stuck takes the others with it: nobody
    /// waits for a page of which a shard may be there.
    fn state(&mut self) -> Option<Done> {
        let stuck = self.devices.iter().any(|device| device.stuck);
        let reads = !stuck && self.devices.iter().any(|device| device.reads);
        let writes = !stuck && self.devices.iter().any(|device| device.writes);
        let changed = self.told != (reads, writes);
        self.told = (reads, writes);
        changed.then_some(Done::State { reads, writes })
    }

    /// Looks for devices that do not move, or do again.
    pub(crate) fn watch(&mut self, now: Instant) -> Option<Done> {
        for device in &mut self.devices {
            let Some(report) = &device.report else { continue };
            let busy = report.busy_for(now);
            let stuck = busy.is_some_and(|busy| busy >= STUCK);
            if stuck != device.stuck {
                let directory = report.path();
                if stuck {
                    tracing::error!(directory, "the SSD cache does not answer: going on without it");
                } else {
                    tracing::info!(directory, "the SSD cache answers again");
                }
                device.stuck = stuck;
                report.set_stuck(stuck);
            }
        }
        self.state()
    }

    /// Whether there is something to watch although the core waits for nothing.
    pub(crate) fn is_stuck(&self) -> bool {
        self.devices.iter().any(|device| device.stuck)
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

/// Which of `devices` holds the shards of that name.
fn device_of(name: &StoredName, devices: usize) -> usize {
    // Hashes need not be spread evenly: engines choose them.
    let mixed = name.hash.0.iter().fold(u64::from(name.shard.0), |mixed, byte| {
        (mixed ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let folded = mixed ^ (mixed >> 32);
    usize::try_from(folded % devices.max(1) as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orbitkv_core::{BlockHash, GroupId, NamespaceDigest, ShardId};

    /// A tier of directories whose threads say nothing.
    fn silent(devices: usize) -> (Tier, Vec<Arc<Report>>) {
        let reports: Vec<_> = (0..devices).map(|_| Arc::new(Report::new(SsdStatus::default()))).collect();
        let devices = reports.iter().map(|report| Device::new(pair().0, Some(Arc::clone(report)))).collect();
        let writing = BTreeMap::new();
        let budget = WriteBudget::default();
        let tier =
            Tier { name: "ssd", devices, budget, finding: 0, writing, writing_bytes: 0, told: (true, true) };
        (tier, reports)
    }

    #[test]
    fn a_device_that_does_not_move_is_not_waited_for_until_it_does() {
        let (mut tier, reports) = silent(2);
        // In whole milliseconds of the report, so a little earlier than that.
        let since = Instant::now();
        reports[1].busy(Some(since));
        assert_eq!(tier.watch(since + Duration::from_secs(9)), None);
        let late = since + Duration::from_secs(11);
        assert_eq!(tier.watch(late), Some(Done::State { reads: false, writes: false }));
        assert!(tier.is_stuck() && tier.watch(late).is_none(), "it is told once");
        assert_eq!(tier.status().iter().filter(|ssd| ssd.state.name() == "stuck").count(), 1);
        reports[1].busy(Some(late));
        assert_eq!(tier.watch(late), Some(Done::State { reads: true, writes: true }));
        assert!(!tier.is_stuck());
    }

    #[test]
    fn a_tier_can_do_what_any_of_its_devices_can() {
        let (mut tier, _reports) = silent(2);
        assert_eq!(tier.digest(0, Done::State { reads: true, writes: false }), None);
        let state = |reads, writes| Some(Done::State { reads, writes });
        assert_eq!(tier.digest(1, Done::State { reads: true, writes: false }), state(true, false));
        assert_eq!(tier.digest(1, Done::State { reads: false, writes: false }), None);
        assert_eq!(tier.digest(0, Done::State { reads: false, writes: false }), state(false, false));
    }

    #[test]
    fn names_are_spread_and_keep_their_device() {
        let name = |i: u64| {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&i.to_le_bytes());
            let (namespace, group) = (NamespaceDigest([0; 32]), GroupId(0));
            StoredName { namespace, group, hash: BlockHash(hash), shard: ShardId(0) }
        };
        let mut counts = [0; 3];
        for i in 0..3000 {
            let device = device_of(&name(i), 3);
            assert_eq!(device, device_of(&name(i), 3));
            counts[device] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert_eq!(device_of(&name(7), 1), 0);
    }
}
