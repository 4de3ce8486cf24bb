//! What registering memory in the background costs the calls of others: how long steps of small copies take while the
//! engine registers a segment, and while it takes that back, by how much one call of the driver registers.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use orbitkv_copy::CopyDirection::Restore;
use orbitkv_copy::{CudaCopy, CudaCopyConfig, CudaDriver, CudaHandle};
use orbitkv_shm::Segment;
use serde_json::{Value, json};

use crate::bench::{Baseline, KIB};
use crate::samples::{Samples, round};
use crate::{Failure, Settings};

const MIB: usize = 1024 * KIB;
const CHUNKS: [usize; 4] = [4 * MIB, 16 * MIB, 64 * MIB, 128 * MIB];
/// Registered in each round: as large as the pool's segments are.
const BYTES: usize = 256 * MIB;
const ROUNDS: usize = 9;
/// Small copies that a step makes and waits for, one after the other.
const STEP_COPIES: usize = 40;
/// Longer than registering takes.
const LIMIT: Duration = Duration::from_secs(30);

/// Steps beside one kind of work, and how long that took.
#[derive(Default)]
struct Seen {
    steps: Samples,
    work: Samples,
}

/// One row for each chunk: steps alone, beside registering, beside taking back.
pub(crate) fn measure(driver: &Arc<CudaDriver>, settings: &Settings) -> Result<Vec<Value>, Failure> {
    let small = Baseline::new(driver, settings.device, 4 * KIB)?;
    let mut rows = Vec::new();
    println!("steps of {STEP_COPIES} small copies, ms (99 %), beside registration by calls of so much");
    println!("calls of  alone          beside registering  beside taking back  ms/GiB");
    for chunk_bytes in CHUNKS {
        if settings.is_late() {
            break;
        }
        let config =
            CudaCopyConfig { register_chunk_bytes: chunk_bytes, ..CudaCopyConfig::new(settings.device) };
        let engine = CudaCopy::new(driver, config)?;
        let (mut alone, mut registering, mut undoing) =
            (Samples::default(), Seen::default(), Seen::default());
        for _ in 0..ROUNDS {
            let segment = Segment::create("measured", BYTES)?;
            segment.populate(8)?;
            for _ in 0..10 {
                alone.push(step(&small)?);
            }
            register(&engine.handle(), &segment, &small, &mut registering)?;
            unregister(&engine.handle(), &segment, &small, &mut undoing)?;
        }
        report(&mut rows, chunk_bytes, &alone, &registering, &undoing);
    }
    Ok(rows)
}

fn step(small: &Baseline) -> Result<Duration, Failure> {
    let start = Instant::now();
    for _ in 0..STEP_COPIES {
        small.time(Restore)?;
    }
    Ok(start.elapsed())
}

fn register(
    handle: &CudaHandle,
    segment: &Segment,
    small: &Baseline,
    seen: &mut Seen,
) -> Result<(), Failure> {
    let start = Instant::now();
    handle.register(segment.region());
    while handle.registration().pending_bytes > 0 && start.elapsed() < LIMIT {
        seen.steps.push(step(small)?);
    }
    seen.work.push(start.elapsed());
    let registration = handle.registration();
    if registration.pending_bytes > 0 {
        return Err(format!("{} bytes were not registered in {LIMIT:?}", registration.pending_bytes).into());
    }
    registration.failure.map_or(Ok(()), |error| Err(error.into()))
}

fn unregister(
    handle: &CudaHandle,
    segment: &Segment,
    small: &Baseline,
    seen: &mut Seen,
) -> Result<(), Failure> {
    let start = Instant::now();
    let (steps, ended) = thread::scope(|scope| {
        let undoing = scope.spawn(|| {
            handle.unregister(segment.region());
            Instant::now()
        });
        let mut steps = Vec::new();
        while !undoing.is_finished() {
            steps.push(step(small)?);
        }
        let ended = undoing.join().map_err(|_| "the thread that takes back panicked")?;
        Ok::<_, Failure>((steps, ended))
    })?;
    seen.steps.extend(steps);
    seen.work.push(ended.duration_since(start));
    Ok(())
}

fn report(rows: &mut Vec<Value>, chunk_bytes: usize, alone: &Samples, registering: &Seen, undoing: &Seen) {
    let millis = |steps: &Samples, share| round(steps.at_share(share).as_secs_f64() * 1e3);
    let text = |steps: &Samples| format!("{:.2} ({:.2})", millis(steps, 0.5), millis(steps, 0.99));
    let row = |steps: &Samples| {
        let [median, p99, max] = [0.5, 0.99, 1.0].map(|share| millis(steps, share));
        json!({ "median": median, "p99": p99, "max": max, "n": steps.len() })
    };
    let per_gib = registering.work.millis_per_gib(BYTES);
    println!(
        "{:>4} MiB  {:<13}  {:<18}  {:<18}  {}",
        chunk_bytes / MIB,
        text(alone),
        text(&registering.steps),
        text(&undoing.steps),
        per_gib["median"],
    );
    rows.push(json!({
        "chunk_bytes": chunk_bytes,
        "bytes": BYTES,
        "step_copies": STEP_COPIES,
        "step_ms_alone": row(alone),
        "step_ms_beside_registering": row(&registering.steps),
        "step_ms_beside_unregistering": row(&undoing.steps),
        "register_ms_per_gib": per_gib,
        "unregister_ms_per_gib": undoing.work.millis_per_gib(BYTES),
    }));
}
