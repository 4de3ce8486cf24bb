//! A tier of directories whose threads say what a test says.

use super::device::Device;
use super::route::{choose, device_of};
use super::{Done, Job, Order, Place, Tier, handle, pair};
use crate::ssd::{Report, SsdStatus, WriteBudget};
use orbitkv_core::{
    BlockHash, ExtentId, GroupId, NamespaceDigest, OperationId, Revision, SegmentId, SessionId, ShardId,
    SlotRef, StoredName, StoredShard, Ticket,
};
use orbitkv_shm::Segment;
use std::sync::Arc;
use std::time::{Duration, Instant};

struct World {
    tier: Tier,
    reports: Vec<Arc<Report>>,
    ends: Vec<handle::Ends>,
    memory: Arc<Segment>,
}

impl World {
    fn new(devices: usize) -> Self {
        let reports: Vec<_> = (0..devices).map(|_| Arc::new(Report::new(SsdStatus::default()))).collect();
        let (handles, ends): (Vec<_>, Vec<_>) = (0..devices).map(|_| pair()).unzip();
        let devices = handles.into_iter().zip(&reports);
        let devices = devices.map(|(handle, report)| Device::new(handle, Some(Arc::clone(report)))).collect();
        let memory = Arc::new(Segment::create("slots", 1 << 16).unwrap());
        Self { tier: Tier::of("ssd", devices, WriteBudget::default()), reports, ends, memory }
    }

    fn told(&mut self) -> Vec<Done> {
        std::iter::from_fn(|| self.tier.next_done()).collect()
    }

    fn watch(&mut self, now: Instant) -> Vec<Done> {
        self.tier.watch(now);
        self.told()
    }

    fn state(&mut self, at: usize, reads: bool, writes: bool) -> Option<Done> {
        self.tier.digest(at, Done::State { reads, writes })
    }

    fn place(&self) -> Place {
        Place { segment: Arc::clone(&self.memory), offset: 4096, bytes: 4096 }
    }

    fn read(&mut self, slot: SlotRef, device: u64) {
        let ticket = Ticket { session: SessionId(1), operation: OperationId(1), revision: Revision(0) };
        let (extent, into) = (ExtentId(device << 60 | 7), self.place());
        self.tier.submit(Job::Read { slot, extent, name: name(1), crc: 0, ticket, urgent: true, into });
    }

    fn write(&mut self, number: u32) {
        let (parent, depth, payload_bytes, crc) = (None, 0, 4096, 0);
        let shard = StoredShard { name: name(number.into()), shards: 1, parent, depth, payload_bytes, crc };
        let from = self.place();
        self.tier.submit(Job::Write { slot: slot(number), shard, from });
    }

    /// What a device was ordered to do.
    fn orders(&self, at: usize) -> Vec<Order> {
        self.ends[at].orders().try_iter().collect()
    }
}

fn name(number: u64) -> StoredName {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_le_bytes());
    let (namespace, group) = (NamespaceDigest([0; 32]), GroupId(0));
    StoredName { namespace, group, hash: BlockHash(hash), shard: ShardId(0) }
}

fn slot(index: u32) -> SlotRef {
    SlotRef { segment: SegmentId(1), index, generation: 1 }
}

#[test]
fn a_device_that_does_not_move_takes_nobody_with_it() {
    let mut world = World::new(2);
    // In whole milliseconds of the report, so a little earlier than that.
    let since = Instant::now();
    world.read(slot(0), 0);
    world.read(slot(1), 1);
    world.reports[1].busy(Some(since));
    assert_eq!(world.watch(since + Duration::from_secs(9)), []);
    let late = since + Duration::from_secs(11);
    assert_eq!(world.watch(late), [Done::Overdue { slot: slot(1) }], "and the other one is waited for");
    assert!(world.tier.is_busy(late) && world.watch(late).is_empty(), "it is told once");
    assert_eq!(world.tier.status().iter().filter(|ssd| ssd.state.name() == "stuck").count(), 1);
    // What is asked of it now is a miss at once; what is to be written goes to the other.
    world.orders(1);
    world.read(slot(2), 1);
    assert_eq!(world.told(), [Done::Read { slot: slot(2), good: false }]);
    (10..30).for_each(|number| world.write(number));
    assert_eq!((world.orders(0).len(), world.orders(1).len()), (1 + 20, 0));
    world.reports[1].busy(Some(late));
    assert_eq!(world.watch(late), []);
    world.reports[1].busy(None);
    assert!(!world.tier.is_busy(late));
    world.read(slot(3), 1);
    assert_eq!((world.told(), world.orders(1).len()), (vec![], 1), "it is used again");
}

#[test]
fn a_tier_without_a_device_that_moves_can_do_nothing() {
    let mut world = World::new(1);
    let since = Instant::now();
    world.reports[0].busy(Some(since));
    let late = since + Duration::from_secs(11);
    assert_eq!(world.watch(late), [Done::State { reads: false, writes: false }]);
    world.reports[0].busy(None);
    assert_eq!(world.watch(late), [Done::State { reads: true, writes: true }]);
}

#[test]
fn a_tier_can_do_what_any_of_its_devices_can() {
    let mut world = World::new(2);
    assert_eq!(world.state(0, true, false), None);
    let state = |reads, writes| Some(Done::State { reads, writes });
    assert_eq!(world.state(1, true, false), state(true, false));
    assert_eq!(world.state(1, false, false), None);
    assert_eq!(world.state(0, false, false), state(false, false));
}

#[test]
fn what_a_device_cannot_write_goes_to_the_others() {
    let mut world = World::new(3);
    world.state(1, true, false);
    (0..60).for_each(|number| world.write(number));
    let counts = [0, 1, 2].map(|at| world.orders(at).len());
    assert!(counts[1] == 0 && counts[0] > 15 && counts[2] > 15 && counts[0] + counts[2] == 60, "{counts:?}");
    world.state(0, true, false);
    world.state(2, false, false);
    world.write(99);
    assert_eq!(world.told().last(), Some(&Done::Written { slot: slot(99), extent: None }));
}

#[test]
fn a_slow_device_does_not_collect_the_writes_of_all() {
    let mut world = World::new(2);
    for number in 0..200 {
        world.write(number);
        // The first one writes at once, the second one not at all.
        for order in world.orders(0) {
            if let Order::Do(Job::Write { slot, .. }) = order {
                world.tier.digest(0, Done::Written { slot, extent: None });
            }
        }
    }
    assert!(world.orders(1).len() <= 17);
    assert_eq!(world.tier.writing_bytes(), 17 * 4096);
}

#[test]
fn names_are_spread_and_keep_their_device() {
    let mut counts = [0; 3];
    for i in 0..3000 {
        let device = device_of(&name(i), 3);
        assert_eq!(device, device_of(&name(i), 3));
        counts[device] += 1;
    }
    assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    assert_eq!(device_of(&name(7), 1), 0);
    let world = World::new(3);
    assert!((0..99).all(|i| choose(&world.tier.devices, &name(i)) == Some(device_of(&name(i), 3))));
}

#[test]
fn a_device_whose_thread_has_ended_answers_nothing_and_holds_up_nobody() {
    let mut world = World::new(1);
    world.ends.clear();
    world.read(slot(1), 0);
    world.write(2);
    world.tier.forget(NamespaceDigest([0; 32]));
    let answers = [
        Done::Read { slot: slot(1), good: false },
        Done::Written { slot: slot(2), extent: None },
        Done::Forgotten { number: 1, recorded: false },
    ];
    assert_eq!(world.told(), answers);
    assert_eq!(world.tier.writing_bytes(), 0);
}
