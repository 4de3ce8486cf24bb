//! Restores and saves by fragment size and method, each round beside one plain copy of as many bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use orbitkv_copy::CopyDirection::{Restore, Save};
use orbitkv_copy::{
    CopyDirection, CopyEngine, CopyId, CopyJob, CopyMethod, CudaCopy, CudaCopyConfig, CudaDriver, CudaProbe,
    KvLayout, KvRegion, PagePair, ProbeMemory, Progress, WaitOutcome,
};
use orbitkv_shm::Segment;
use serde_json::{Value, json};

use crate::samples::{Samples, text};
use crate::{Failure, Settings};

pub(crate) const KIB: usize = 1 << 10;
/// Sizes measured unless told otherwise, in KiB.
pub(crate) const FRAGMENTS_KIB: [usize; 7] = [4, 16, 32, 64, 256, 1024, 4096];
/// Larger fragments are nothing for the kernel.
const KERNEL_MAX_BYTES: usize = 256 * KIB;
const LAYERS: usize = 32;
/// Longer than any copy here takes.
const LIMIT: Duration = Duration::from_secs(30);

/// Where pages lie: in the order of their blocks at a constant distance, or anywhere.
const PLACEMENTS: [(&str, bool); 2] = [("scattered", true), ("regular", false)];
/// Methods measured unless told otherwise.
pub(crate) const METHODS: [CopyMethod; 4] =
    [CopyMethod::Plain, CopyMethod::Rows, CopyMethod::Batch, CopyMethod::Kernel];

pub(crate) struct Copies {
    pub(crate) rows: Vec<Value>,
    pub(crate) differing_bytes: u64,
}

/// Registered memory of as many bytes, and its place on the device, for the plain copy.
pub(crate) struct Baseline {
    probe: CudaProbe,
    segment: Segment,
    memory: ProbeMemory,
    bytes: usize,
}

impl Baseline {
    pub(crate) fn new(driver: &Arc<CudaDriver>, device: u32, bytes: usize) -> Result<Baseline, Failure> {
        let probe = CudaProbe::new(driver, device)?;
        let segment = Segment::create("baseline", bytes)?;
        segment.populate(8)?;
        let memory = probe.allocate(bytes)?;
        // SAFETY: unregistered in `drop`, before the segment is unmapped.
        unsafe { probe.register(segment.as_ptr(), bytes) }?;
        Ok(Baseline { probe, segment, memory, bytes })
    }

    pub(crate) fn time(&self, direction: CopyDirection) -> Result<Duration, Failure> {
        let (host, device) = (self.segment.as_ptr(), self.memory.address());
        let start = Instant::now();
        // SAFETY: both live here, nobody else uses them, and the copy has ended when this returns.
        unsafe {
            match direction {
                Restore => self.probe.to_device(host, device, self.bytes)?,
                Save => self.probe.to_host(host, device, self.bytes)?,
            }
        }
        self.probe.finish()?;
        Ok(start.elapsed())
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        // A failure means that the device is lost, and the measurement with it.
        let _ = self.probe.unregister(self.segment.as_ptr());
    }
}

/// An engine, device memory for twice the blocks that are copied, and a pool of one page a block.
pub(crate) struct Rig {
    engine: CudaCopy,
    layout: KvLayout,
    pool: Segment,
    pairs: Vec<(usize, usize)>,
    next_id: u64,
    _memory: ProbeMemory,
}

impl Rig {
    pub(crate) fn new(
        driver: &Arc<CudaDriver>,
        size: (&Settings, usize),
        probe: &CudaProbe,
        shape: (usize, CopyMethod, bool),
    ) -> Result<Rig, Failure> {
        Rig::with_config(driver, size, probe, shape, CudaCopyConfig::new(size.0.device))
    }

    /// A rig whose engine is as `config` says where the rest does not.
    pub(crate) fn with_config(
        driver: &Arc<CudaDriver>,
        (settings, bytes): (&Settings, usize),
        probe: &CudaProbe,
        (fragment, method, scattered): (usize, CopyMethod, bool),
        config: CudaCopyConfig,
    ) -> Result<Rig, Failure> {
        let layers = LAYERS.min(bytes / fragment / 2).max(1);
        let blocks = bytes / fragment / layers;
        let memory = probe.allocate(2 * blocks * layers * fragment)?;
        // Every other block, so that no two copies are neighbours.
        let region = |layer| KvRegion {
            base: memory.address() + layer * 2 * blocks * fragment,
            block_stride_bytes: 2 * fragment,
            block_bytes: fragment,
            num_blocks: blocks,
        };
        // SAFETY: device memory that the rig keeps until after its engine.
        let layout = unsafe { KvLayout::new((0..layers).map(region).collect()) }?;
        let pool = Segment::create("measured", blocks * layout.page_bytes())?;
        pool.populate(8)?;
        // A step through the slots that meets each once, as it shares no factor with their number.
        let stride = (1..).map(|k| blocks / 3 + k).find(|stride| gcd(*stride, blocks) == 1).unwrap_or(1);
        let slot = |block: usize| if scattered { block * stride % blocks } else { block };
        let pairs = (0..blocks).map(|block| (block, slot(block))).collect();
        // Fragments of every size take the method asked for.
        let config = CudaCopyConfig {
            method,
            plain_min_bytes: usize::MAX,
            kernel_ctas: settings.kernel_ctas,
            ..config
        };
        let engine = CudaCopy::new(driver, config)?;
        engine.handle().register(pool.region());
        let registration = engine.handle().wait_registered(LIMIT);
        if let Some(error) = registration.failure {
            return Err(error.into());
        }
        Ok(Rig { engine, layout, pool, pairs, next_id: 0, _memory: memory })
    }

    pub(crate) fn time(&mut self, direction: CopyDirection) -> Result<Duration, Failure> {
        let job = self.job(direction)?;
        let progress = job.progress().clone();
        let start = Instant::now();
        self.engine.submit(job)?;
        wait_for(&progress, usize::MAX)?;
        let took = start.elapsed();
        self.collect(1);
        Ok(took)
    }

    /// Bytes of a job.
    pub(crate) fn job_bytes(&self) -> usize {
        self.layout.page_bytes() * self.pairs.len()
    }

    /// Queues `count` jobs at once, and gives their progress. They copy the same bytes, one job after the other.
    pub(crate) fn submit(
        &mut self,
        direction: CopyDirection,
        count: usize,
    ) -> Result<Vec<Arc<Progress>>, Failure> {
        let jobs = (0..count).map(|_| self.job(direction)).collect::<Result<Vec<_>, _>>()?;
        let progress = jobs.iter().map(|job| job.progress().clone()).collect();
        for job in jobs {
            self.engine.submit(job)?;
        }
        Ok(progress)
    }

    /// Takes back `count` jobs that have ended.
    pub(crate) fn collect(&mut self, count: usize) {
        let mut done = Vec::new();
        while done.len() < count {
            self.engine.poll(&mut done);
        }
    }

    fn job(&mut self, direction: CopyDirection) -> Result<CopyJob, Failure> {
        let page_bytes = self.layout.page_bytes();
        let pair = |(block, slot): &(usize, usize)| PagePair {
            block: *block,
            memory: self.pool.region().clone(),
            offset: slot * page_bytes,
        };
        let pairs: Vec<_> = self.pairs.iter().map(pair).collect();
        self.next_id += 1;
        Ok(CopyJob::between(CopyId(self.next_id), direction, &self.layout, &pairs)?)
    }

    /// Restores a pattern, wipes the pool, saves, and counts the bytes that differ.
    fn differing_bytes(&mut self) -> Result<u64, Failure> {
        let bytes = self.job_bytes();
        let pattern: Vec<u8> = (0..bytes).map(byte).collect();
        self.pool.write_at(0, &pattern)?;
        self.time(Restore)?;
        self.pool.write_at(0, &vec![0; bytes])?;
        let mut found = vec![0; bytes];
        self.pool.read_at(0, &mut found)?;
        if count(&pattern, &found) < (bytes / 2) as u64 {
            return Err("the check of the bytes sees nothing: a wiped pool passes it".into());
        }
        self.time(Save)?;
        self.pool.read_at(0, &mut found)?;
        Ok(count(&pattern, &found))
    }
}

/// Waits until a job's layer is copied; one past the last waits for the last.
pub(crate) fn wait_for(progress: &Progress, layer: usize) -> Result<(), Failure> {
    match progress.wait_step(layer, LIMIT) {
        WaitOutcome::Ready => Ok(()),
        waited => Err(format!("a copy ended as {waited:?}").into()),
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A byte that depends on every bit of its place.
fn byte(at: usize) -> u8 {
    ((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn count(a: &[u8], b: &[u8]) -> u64 {
    a.iter().zip(b).filter(|(a, b)| a != b).count() as u64
}

pub(crate) fn measure(driver: &Arc<CudaDriver>, settings: &Settings) -> Result<Copies, Failure> {
    let baseline = Baseline::new(driver, settings.device, settings.bytes)?;
    let mut copies = Copies { rows: Vec::new(), differing_bytes: 0 };
    println!("fragment  placement  method  way      engine GB/s           plain copy GB/s       share");
    for fragment in settings.fragments_kib.iter().map(|kib| kib * KIB) {
        for (placement, scattered) in PLACEMENTS {
            for &method in &settings.methods {
                // Rows need constant distances.
                let unfit = match method {
                    CopyMethod::Rows => scattered,
                    CopyMethod::Kernel => fragment > KERNEL_MAX_BYTES,
                    _ => false,
                };
                if settings.is_late() || unfit {
                    continue;
                }
                let mut rig = Rig::new(
                    driver,
                    (settings, settings.bytes),
                    &baseline.probe,
                    (fragment, method, scattered),
                )?;
                copies.differing_bytes += rig.differing_bytes()?;
                for direction in [Restore, Save] {
                    let row = compare(&mut rig, &baseline, settings, direction)?;
                    println!(
                        "{:>4} KiB  {placement:<9}  {:<6}  {:<7}  {:<20}  {:<20}  {:.2}",
                        fragment / KIB,
                        format!("{method:?}"),
                        format!("{direction:?}"),
                        text(&row["engine_gb_s"]),
                        text(&row["plain_gb_s"]),
                        row["share"].as_f64().unwrap_or(f64::NAN),
                    );
                    copies.rows.push(json!({
                        "fragment_bytes": fragment,
                        "placement": placement,
                        "method": format!("{method:?}"),
                        "batch_refusal": rig.engine.handle().batch_refusal().map(|why| why.to_string()),
                        "kernel_refusal": rig.engine.handle().kernel_refusal().map(|why| why.to_string()),
                        "direction": format!("{direction:?}"),
                        "measured": row,
                    }));
                }
            }
        }
    }
    Ok(copies)
}

/// Engine and plain copy in turn.
fn compare(
    rig: &mut Rig,
    baseline: &Baseline,
    settings: &Settings,
    direction: CopyDirection,
) -> Result<Value, Failure> {
    let (mut engine, mut plain) = (Samples::default(), Samples::default());
    // The first of each is for the caches.
    for round in 0..=settings.rounds {
        let (ours, theirs) = (rig.time(direction)?, baseline.time(direction)?);
        if round > 0 {
            engine.push(ours);
            plain.push(theirs);
        }
    }
    let (ours, theirs) = (engine.rate(baseline.bytes), plain.rate(baseline.bytes));
    let share = ours["median"].as_f64().unwrap_or(f64::NAN) / theirs["median"].as_f64().unwrap_or(f64::NAN);
    Ok(json!({ "engine_gb_s": ours, "plain_gb_s": theirs, "share": (share * 1000.0).round() / 1000.0 }))
}

/// One fragment of 64 KiB: from submission to the end seen by a waiter, beside a copy that is synchronised with.
pub(crate) fn latency(driver: &Arc<CudaDriver>, settings: &Settings) -> Result<Value, Failure> {
    let fragment = 64 * KIB;
    let baseline = Baseline::new(driver, settings.device, fragment)?;
    let shape = (fragment, CopyMethod::Plain, false);
    let mut rig = Rig::new(driver, (settings, 2 * fragment), &baseline.probe, shape)?;
    rig.pairs.truncate(1);
    let mut rows = Vec::new();
    for direction in [Restore, Save] {
        let (mut engine, mut plain) = (Samples::default(), Samples::default());
        for _ in 0..200 {
            if settings.is_late() && !engine.is_empty() {
                break;
            }
            engine.push(rig.time(direction)?);
            plain.push(baseline.time(direction)?);
        }
        let (ours, theirs) = (engine.micros(), plain.micros());
        println!(
            "latency of 64 KiB, {direction:?}: engine {} us, plain copy {} us",
            text(&ours),
            text(&theirs)
        );
        rows.push(json!({ "direction": format!("{direction:?}"), "engine_us": ours, "plain_us": theirs }));
    }
    Ok(rows.into())
}
