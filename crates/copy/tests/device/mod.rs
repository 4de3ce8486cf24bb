//! A fake device with KV in its memory, a pool, and a CUDA engine between them.

// Each test program uses its part of this.
#![allow(dead_code)]

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use orbitkv_copy::{
    CopyDirection, CopyDone, CopyEngine, CopyId, CopyJob, CudaCopy, CudaCopyConfig, CudaDriver, CudaHandle,
    CudaProbe, KvLayout, KvRegion, LayerWait, PagePair, ProbeMemory, Progress,
};
use orbitkv_fake_cuda::{Fake, FakeDevice};
use orbitkv_shm::{Region, Segment};

pub(crate) const LONG: Duration = Duration::from_secs(600);
pub(crate) const BRIEF: Duration = Duration::from_millis(5);

/// Device and pool hold these until something is copied.
pub(crate) const DEVICE_BYTE: u8 = 0xD0;
pub(crate) const POOL_BYTE: u8 = 0x0F;

/// Sizes of a world: layers, blocks of each, bytes of each block, and bytes between blocks.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) blocks: usize,
    pub(crate) block_bytes: usize,
    pub(crate) gap_bytes: usize,
}

pub(crate) const SMALL: Shape = Shape { layers: 3, blocks: 8, block_bytes: 4096, gap_bytes: 512 };

/// As on a host where the kernel is switched off.
pub(crate) fn without_kernel(config: CudaCopyConfig) -> CudaCopyConfig {
    CudaCopyConfig { kernel_below_bytes: 0, kernel_unbatched_below_bytes: 0, ..config }
}

pub(crate) struct DeviceWorld {
    pub(crate) engine: Option<CudaCopy>,
    pub(crate) handle: CudaHandle,
    pub(crate) fake: FakeDevice,
    /// Its stream stands in for the serving engine's.
    pub(crate) compute: CudaProbe,
    pub(crate) memory: ProbeMemory,
    pub(crate) layout: KvLayout,
    pub(crate) segment: Segment,
    shape: Shape,
}

impl DeviceWorld {
    pub(crate) fn new(shape: Shape) -> DeviceWorld {
        DeviceWorld::with(shape, |config, _| config)
    }

    /// `plan` sees the device before the engine does.
    pub(crate) fn with(
        shape: Shape,
        plan: impl FnOnce(CudaCopyConfig, &FakeDevice) -> CudaCopyConfig,
    ) -> DeviceWorld {
        let fake = Fake::load().unwrap();
        DeviceWorld::on(&CudaDriver::load_from(fake.path()).unwrap(), fake.device(), shape, plan)
    }

    pub(crate) fn on(
        driver: &Arc<CudaDriver>,
        fake: FakeDevice,
        shape: Shape,
        plan: impl FnOnce(CudaCopyConfig, &FakeDevice) -> CudaCopyConfig,
    ) -> DeviceWorld {
        let Shape { layers, blocks, block_bytes, gap_bytes } = shape;
        let config = CudaCopyConfig { staging_slot_bytes: 4096, ..CudaCopyConfig::new(fake.ordinal) };
        let engine = CudaCopy::new(driver, plan(config, &fake)).unwrap();
        let compute = CudaProbe::new(driver, fake.ordinal).unwrap();
        let stride = block_bytes + gap_bytes;
        let memory = compute.allocate(layers * blocks * stride).unwrap();
        let region = |layer| KvRegion {
            base: memory.address() + layer * blocks * stride,
            block_stride_bytes: stride,
            block_bytes,
            num_blocks: blocks,
        };
        // SAFETY: device memory that lives as long as the world, or for ever where a test leaks it.
        let layout = unsafe { KvLayout::new((0..layers).map(region).collect()) }.unwrap();
        let bytes = (blocks * layout.page_bytes()).next_multiple_of(4096);
        let segment = Segment::create("pool", bytes).unwrap();
        segment.write_at(0, &vec![POOL_BYTE; bytes]).unwrap();
        let handle = engine.handle();
        let world =
            DeviceWorld { engine: Some(engine), handle, fake, compute, memory, layout, segment, shape };
        world.fill(DEVICE_BYTE);
        world
    }

    pub(crate) fn engine(&mut self) -> &mut CudaCopy {
        self.engine.as_mut().unwrap()
    }

    pub(crate) fn pool(&self) -> &Arc<Region> {
        self.segment.region()
    }

    /// Registers the whole pool.
    pub(crate) fn register(&self) {
        self.handle.register(self.pool());
        let registration = self.handle.wait_registered(LONG);
        assert_eq!(registration.registered_bytes, self.pool().bytes() as u64, "{registration:?}");
    }

    pub(crate) fn device_bytes(&self) -> usize {
        self.shape.layers * self.shape.blocks * (self.shape.block_bytes + self.shape.gap_bytes)
    }

    /// Writes all device memory, at once.
    pub(crate) fn fill(&self, byte: u8) {
        fill(self.memory.address(), self.device_bytes(), byte);
    }

    /// Whether every byte of the blocks of `layer` named is `byte`.
    pub(crate) fn layer_is(&self, layer: usize, blocks: &[usize], byte: u8) -> bool {
        let region = self.layout.regions()[layer];
        blocks.iter().all(|block| {
            let start = region.base + block * region.block_stride_bytes;
            read(start, region.block_bytes).iter().all(|found| *found == byte)
        })
    }

    pub(crate) fn device_is(&self, blocks: &[usize], byte: u8) -> bool {
        (0..self.shape.layers).all(|layer| self.layer_is(layer, blocks, byte))
    }

    pub(crate) fn pages_are(&self, slots: &[usize], byte: u8) -> bool {
        let mut page = vec![0; self.layout.page_bytes()];
        slots.iter().all(|slot| {
            self.pool().read_at(slot * page.len(), &mut page).unwrap();
            page.iter().all(|found| *found == byte)
        })
    }

    pub(crate) fn pool_is_untouched(&self) -> bool {
        let mut bytes = vec![0; self.pool().bytes()];
        self.pool().read_at(0, &mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == POOL_BYTE)
    }

    /// A job between each block and the page of the same number.
    pub(crate) fn job(&self, id: u64, direction: CopyDirection, blocks: &[usize]) -> CopyJob {
        let page_bytes = self.layout.page_bytes();
        let pair = |block: &usize| PagePair {
            block: *block,
            memory: self.pool().clone(),
            offset: block * page_bytes,
        };
        let pairs: Vec<_> = blocks.iter().map(pair).collect();
        CopyJob::between(CopyId(id), direction, &self.layout, &pairs).unwrap()
    }

    pub(crate) fn submit(&mut self, job: CopyJob) -> Arc<Progress> {
        let progress = job.progress().clone();
        self.engine().submit(job).unwrap();
        progress
    }

    /// Submits, and waits until all of it is queued on the device. The compute stream comes after it.
    pub(crate) fn submit_and_queue(&mut self, mut job: CopyJob) -> Arc<Progress> {
        let layers = self.handle.layer_events(&mut job).unwrap();
        let progress = self.submit(job);
        let waited = layers.wait_on(usize::MAX, self.compute.stream(), LONG).unwrap();
        assert!(matches!(waited, LayerWait::Ordered | LayerWait::Complete), "{waited:?}");
        progress
    }

    /// Polls until `count` jobs are reported.
    pub(crate) fn drain(&mut self, count: usize) -> Vec<CopyDone> {
        let (mut done, start) = (Vec::new(), Instant::now());
        while done.len() < count {
            assert!(start.elapsed() < LONG, "only {} of {count} jobs have ended", done.len());
            std::thread::sleep(Duration::from_micros(200));
            self.engine().poll(&mut done);
        }
        done
    }

    /// What is reported within a time in which everything that can be would be.
    pub(crate) fn reported_soon(&mut self) -> Vec<CopyDone> {
        std::thread::sleep(20 * BRIEF);
        let mut done = Vec::new();
        self.engine().poll(&mut done);
        done
    }

    /// Holds the compute stream until the gate is dropped.
    pub(crate) fn gate(&self) -> Gate {
        let (release, held) = mpsc::channel::<()>();
        self.fake.run_on(self.compute.stream().0, move || {
            let _ = held.recv();
        });
        Gate(release)
    }

    /// Puts a kernel on the compute stream that writes all device memory.
    pub(crate) fn compute_fill(&self, byte: u8) {
        let (start, bytes) = (self.memory.address(), self.device_bytes());
        self.fake.run_on(self.compute.stream().0, move || fill(start, bytes, byte));
    }
}

/// Holds a stream while it lives.
pub(crate) struct Gate(mpsc::Sender<()>);

fn fill(start: usize, bytes: usize, byte: u8) {
    // SAFETY: memory of the fake device, which is host memory; tests order their accesses, or mean the race and look
    // only afterwards.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(start).write_bytes(byte, bytes) };
}

pub(crate) fn read(start: usize, bytes: usize) -> Vec<u8> {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(start), bytes) }.to_vec()
}
