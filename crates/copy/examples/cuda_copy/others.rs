//! What copies cost the copies of others: how long small ones on another stream take while a large restore or save of
//! the engine is under way in the same direction, by how much the engine copies in a turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use orbitkv_copy::CopyDirection::{Restore, Save};
use orbitkv_copy::{CopyDirection, CopyMethod, CudaCopyConfig, CudaDriver, CudaProbe, Progress};
use serde_json::{Value, json};

use crate::bench::{Baseline, KIB, Rig, wait_for};
use crate::samples::{Samples, text};
use crate::{Failure, Settings};

const MIB: usize = 1024 * KIB;
/// The first is none: the engine then uses one stream from beginning to end.
const TURNS: [usize; 6] = [usize::MAX, 4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 128 * MIB];
const SMALL_KIB: [usize; 3] = [4, 32, 128];
const FRAGMENT: usize = 256 * KIB;
/// A job's layer is 8 MiB then; a shorter turn ends within one.
const JOB_BYTES: usize = 256 * MIB;
/// Queued at once: 2 GiB.
const JOBS: usize = 8;
/// Without turns a round has room for one small copy.
const ROUNDS: usize = 5;
/// Between two small copies: longer than it takes until the end of a job is seen, as a copy after it would count as one
/// beside it, and not in step with the turns.
const PAUSE: Duration = Duration::from_micros(500);

/// What was seen of one kind of small copy.
#[derive(Default)]
struct Seen {
    small: Samples,
    engine: Samples,
}

/// One row a direction, size of the small copies, and `turn_bytes`, which is null where there are no turns.
pub(crate) fn measure(driver: &Arc<CudaDriver>, settings: &Settings) -> Result<Vec<Value>, Failure> {
    let small =
        SMALL_KIB.map(|kib| Baseline::new(driver, settings.device, kib * KIB).map(|small| (kib, small)));
    let small = small.into_iter().collect::<Result<Vec<_>, _>>()?;
    let probe = CudaProbe::new(driver, settings.device)?;
    let mut rows = Vec::new();
    println!("way      turns of  small copy  it takes ms              of them  engine GB/s");
    for turn_bytes in TURNS {
        if settings.is_late() {
            break;
        }
        let size = (settings, settings.bytes.min(JOB_BYTES));
        let shape = (FRAGMENT, CopyMethod::Batch, true);
        let config = CudaCopyConfig::new(settings.device).with_turns(turn_bytes);
        let mut rig = Rig::with_config(driver, size, &probe, shape, config)?;
        for direction in [Restore, Save] {
            // For the caches, and for what the driver puts off until then.
            rig.time(direction)?;
            for (kib, small) in &small {
                if settings.is_late() {
                    continue;
                }
                let seen = beside(&mut rig, small, settings, direction)?;
                report(&mut rows, (direction, *kib, turn_bytes), &seen, JOBS * rig.job_bytes());
            }
        }
    }
    Ok(rows)
}

fn beside(
    rig: &mut Rig,
    small: &Baseline,
    settings: &Settings,
    direction: CopyDirection,
) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    small.time(direction)?;
    for round in 0..ROUNDS {
        if round > 0 && settings.is_late() {
            break;
        }
        let start = Instant::now();
        let jobs = rig.submit(direction, JOBS)?;
        let (took, ended) = until_end(&jobs, || small.time(direction))?;
        rig.collect(JOBS);
        seen.small.extend(took);
        seen.engine.push(ended.duration_since(start));
    }
    Ok(seen)
}

/// Repeats `copy` from the first layer that has been copied until the last, once at least: how long it took each time,
/// the last one beyond the end of the jobs, and when that was.
fn until_end(
    jobs: &[Arc<Progress>],
    copy: impl Fn() -> Result<Duration, Failure>,
) -> Result<(Vec<Duration>, Instant), Failure> {
    let (Some(first), stop) = (jobs.first(), AtomicBool::new(false)) else {
        return Err("there is no job to copy beside".into());
    };
    wait_for(first, 0)?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let waited =
                jobs.iter().try_for_each(|job| wait_for(job, usize::MAX)).map_err(|error| error.to_string());
            let ended = Instant::now();
            stop.store(true, Ordering::Relaxed);
            waited.map(|()| ended)
        });
        let mut took = vec![copy()?];
        loop {
            thread::sleep(PAUSE);
            if stop.load(Ordering::Relaxed) {
                break;
            }
            took.push(copy()?);
        }
        let ended = waiting.join().map_err(|_| "the waiting thread panicked")??;
        Ok((took, ended))
    })
}

fn report(
    rows: &mut Vec<Value>,
    (direction, kib, turn_bytes): (CopyDirection, usize, usize),
    seen: &Seen,
    bytes: usize,
) {
    let (small_ms, engine_gb_s) = (seen.small.millis(), seen.engine.rate(bytes));
    let [median, min, max] = ["median", "min", "max"].map(|name| small_ms[name].as_f64().unwrap_or(f64::NAN));
    let small_text = format!("{median:.3} ({min:.3}..{max:.3})");
    let turns = (turn_bytes < usize::MAX).then_some(turn_bytes);
    println!(
        "{:<7}  {:>8}  {kib:>6} KiB  {:<23}  {:>7}  {}",
        format!("{direction:?}"),
        turns.map_or("none".to_owned(), |bytes| format!("{} MiB", bytes / MIB)),
        small_text,
        seen.small.len(),
        text(&engine_gb_s),
    );
    rows.push(json!({
        "direction": format!("{direction:?}"),
        "small_bytes": kib * KIB,
        "turn_bytes": turns,
        "small_ms": small_ms,
        "small_copies": seen.small.len(),
        "engine_bytes": bytes,
        "engine_gb_s": engine_gb_s,
    }));
}
