//! A worker whose KV is in the memory of a (fake) CUDA device, and a stream there that stands in for the engine's.
// Each test binary uses a part of this.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::common::{Kv, Manager, Peer, Pool, SCHEDULER, stat, wait_for};
use orbitkv_client::{CudaDevice, Device, Verify, WorkerClient};
use orbitkv_copy::{CudaCopyConfig, CudaDriver, CudaProbe};
use orbitkv_fake_cuda::{Fake, FakeDevice};
use orbitkv_wire::{Kind, ToManager};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Long enough for whatever is not held back.
pub(crate) const BRIEF: Duration = Duration::from_millis(20);

pub(crate) struct World {
    pub(crate) client: WorkerClient,
    pub(crate) peer: Peer,
    pub(crate) pool: Pool,
    pub(crate) compute: CudaProbe,
    pub(crate) fake: FakeDevice,
    pub(crate) manager: Manager,
    /// Last: nothing may touch it when it goes.
    pub(crate) kv: Arc<Kv>,
}

/// A device whose memory is the test's, and a stream on it that stands in for the engine's.
pub(crate) fn device(
    plan: impl FnOnce(CudaCopyConfig, &FakeDevice) -> CudaCopyConfig,
) -> (Device, FakeDevice, CudaProbe) {
    let fake = Fake::load().unwrap();
    let driver = CudaDriver::load_from(fake.path()).unwrap();
    let fake = fake.device();
    fake.take_any_memory();
    let config = CudaCopyConfig { drop_wait_ms: 100, ..CudaCopyConfig::new(fake.ordinal) };
    let compute = CudaProbe::new(&driver, fake.ordinal).unwrap();
    (Device::Cuda(CudaDevice::new(&driver, plan(config, &fake))), fake, compute)
}

pub(crate) fn world(verify: Verify) -> World {
    world_with(verify, |config, _| config)
}

pub(crate) fn world_with(
    verify: Verify,
    plan: impl FnOnce(CudaCopyConfig, &FakeDevice) -> CudaCopyConfig,
) -> World {
    world_planned(verify, plan, |_| {})
}

/// `plan` sees the device before the engine is made, `late` after that and before the pool comes.
pub(crate) fn world_planned(
    verify: Verify,
    plan: impl FnOnce(CudaCopyConfig, &FakeDevice) -> CudaCopyConfig,
    late: impl FnOnce(&FakeDevice),
) -> World {
    let (manager, kv, pool) = (Manager::new(), Arc::new(Kv::new()), Pool::new());
    let (device, fake, compute) = device(plan);
    let mut config = manager.worker_config(&kv, &Kv::new(), false, verify);
    config.device = device;
    let client = WorkerClient::new(config).unwrap();
    let (mut peer, _) = manager.welcome(2);
    assert_eq!(peer.next().to_manager(), ToManager::Attest { passed: false });
    late(&fake);
    peer.send_segment(0, &pool.segment);
    // Before that, copies go by way of a buffer, and those of a layer may have to wait for those of another.
    wait_for("registration, or its failure", || {
        stat(&client.stats(), "registered_bytes") > 0 || client.trouble().is_some()
    });
    World { client, peer, pool, compute, fake, manager, kv }
}

impl World {
    pub(crate) fn stream(&self) -> usize {
        self.compute.stream().0
    }

    /// Holds the compute stream until the gate is dropped.
    pub(crate) fn gate(&self) -> Gate {
        let (release, held) = channel::<()>();
        self.fake.run_on(self.stream(), move || {
            let _ = held.recv();
        });
        Gate(release)
    }

    /// A kernel on the compute stream that writes a block.
    pub(crate) fn compute_fill(&self, block: usize, byte: u8) {
        let kv = Arc::clone(&self.kv);
        self.fake.run_on(self.stream(), move || kv.fill(block, byte));
    }

    /// A kernel on the compute stream that reads one layer of a block.
    pub(crate) fn compute_read(&self, block: usize, layer: usize, seen: &Arc<Mutex<Vec<Vec<u8>>>>) {
        let (kv, seen) = (Arc::clone(&self.kv), Arc::clone(seen));
        let range = Kv::ranges(block).nth(layer).unwrap();
        self.fake.run_on(self.stream(), move || seen.lock().unwrap().push(kv.bytes()[range].to_vec()));
    }

    /// The checksum with which the one page of a save is committed.
    pub(crate) fn committed_crc(&mut self) -> u64 {
        match self.peer.next().to_manager() {
            ToManager::Commit([item]) => item.crc.get(),
            other => panic!("{other:?}"),
        }
    }

    /// The manager hears that the copies of the first operation have ended.
    pub(crate) fn copy_done(&mut self) {
        self.copy_done_of(1);
    }

    pub(crate) fn copy_done_of(&mut self, operation: u64) {
        let done = ToManager::CopyDone { session: SCHEDULER, operation, revision: 1 };
        assert_eq!(self.peer.next().to_manager(), done);
    }

    /// The next frame within a time in which anything that can come would.
    pub(crate) fn sent_soon(&mut self) -> Option<Kind> {
        self.peer.next_within(5 * BRIEF).map(|frame| frame.kind)
    }
}

/// Holds a stream while it lives.
pub(crate) struct Gate(#[allow(dead_code)] Sender<()>);
