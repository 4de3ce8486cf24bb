//! Many seeds, on every core, with one result whatever the timing.

use crate::failure::{Checker, Failure};
use crate::world::{Options, Outcome, World};
use orbitkv_core::{Mark, Plant};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Every tenth seed runs twice, and both histories must be the same.
const TWICE_EVERY: u64 = 10;
/// Seeds within which a planted defect must be found.
pub(crate) const PLANT_SEEDS: u64 = 100;

/// A seed that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub seed: u64,
    /// At which event; zero if it is not known.
    pub event: u64,
    /// What a checker said.
    pub failure: Failure,
}

/// What a range of seeds came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Seeds that ran.
    pub seeds: u64,
    /// Events of all seeds.
    pub events: u64,
    /// Restored shards compared.
    pub compared: u64,
    /// Failed seeds, in order.
    pub failed: Vec<Failed>,
    /// Guards of the core that were reached by any seed.
    pub marks: BTreeSet<Mark>,
}

/// Called from worker threads with the number of seeds done.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);

/// A planted defect and what became of it.
#[derive(Clone, Debug)]
pub struct PlantRow {
    /// The defect.
    pub plant: Plant,
    /// The first seed that failed, if any did.
    pub found: Option<Failed>,
    /// How long it took.
    pub took: Duration,
}

/// Panics of the core are findings: they are reported by the run, not by the panic hook.
pub fn silence_panics() {
    std::panic::set_hook(Box::new(|_| {}));
}

/// Runs one seed. An assertion of the core is a failure like any other.
#[must_use]
pub fn run_seed(seed: u64, options: &Options) -> Outcome {
    // The world outlives a panic in its run, so that its event number and history can be told.
    let mut world = match World::new(seed, options) {
        Ok(world) => world,
        Err(failure) => return Outcome { failure: Some(failure), ..Outcome::default() },
    };
    let result = catch_unwind(AssertUnwindSafe(|| world.run(options)));
    let result = result.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Failure { checker: Checker::Panic, words: words.unwrap_or_else(|| "panic".into()) })
    });
    world.outcome(result)
}

fn run_twice(seed: u64, options: &Options) -> Outcome {
    let mut first = run_seed(seed, options);
    if seed.is_multiple_of(TWICE_EVERY) && first.failure.is_none() {
        let second = run_seed(seed, options);
        if (second.history, second.events) != (first.history, first.events) {
            let words = format!("histories {:016x} and {:016x}", first.history, second.history);
            first.failure = Some(Failure { checker: Checker::Determinism, words });
        }
    }
    first
}

/// Runs the seeds from `start` on as many threads as there are cores. The summary does not depend on
/// which thread ran what.
#[must_use]
pub fn run_range(start: u64, seeds: u64, options: &Options, progress: Progress<'_>) -> Summary {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(0);
    let all = Mutex::new(Summary { seeds, ..Summary::default() });
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= seeds {
                        break;
                    }
                    let outcome = run_twice(start + at, options);
                    if let Ok(mut all) = all.lock() {
                        all.add(start + at, outcome);
                    }
                    progress(at + 1);
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_default();
    all.failed.sort_by_key(|failed| failed.seed);
    all
}

impl Summary {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.events += outcome.events;
        self.compared += outcome.compared;
        self.marks.extend(outcome.marks);
        if let Some(failure) = outcome.failure {
            self.failed.push(Failed { seed, event: outcome.events, failure });
        }
    }
}

/// Guards of the core that a run never reached.
#[must_use]
pub fn missing_marks(summary: &Summary) -> Vec<Mark> {
    Mark::ALL.iter().copied().filter(|mark| !summary.marks.contains(mark)).collect()
}

/// Looks for a planted defect, seed by seed.
#[must_use]
pub fn find_plant(plant: Plant, options: &Options) -> PlantRow {
    let options = Options { plant: Some(plant), ..*options };
    let begun = Instant::now();
    let found = (0..PLANT_SEEDS).find_map(|seed| {
        let outcome = run_seed(seed, &options);
        outcome.failure.map(|failure| Failed { seed, event: outcome.events, failure })
    });
    PlantRow { plant, found, took: begun.elapsed() }
}
