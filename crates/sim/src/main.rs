//! `orbitkv-sim`: runs seeds, replays one, or looks for planted defects.
#![forbid(unsafe_code)]

use clap::Parser;
use orbitkv_core::Plant;
use orbitkv_sim::{
    Failed, Options, PlantRow, Summary, find_plant, missing_marks, run_range, run_seed, silence_panics,
};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Simulates engines, their faults and the cache manager around the ownership core.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 20_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Runs this seed alone.
    #[arg(long, conflicts_with_all = ["seeds", "start"])]
    seed: Option<u64>,
    /// Prints the history of the seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Plants a defect by name, or each in turn, and must find it. Needs `--features plant`.
    #[arg(long, value_name = "NAME|all", value_parser = plants)]
    plant: Option<Plants>,
    /// Events of one seed before its faults stop.
    #[arg(long, default_value_t = Options::default().events)]
    events: u64,
}

/// One planted defect or several.
#[derive(Clone, Debug)]
struct Plants(Vec<Plant>);

/// Guards of the core must all be reached by a run of at least this many seeds.
const COVERAGE_SEEDS: u64 = 2_000;
/// Failed seeds that are shown.
const SHOWN: usize = 10;
/// Pause between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(2);

fn plants(text: &str) -> Result<Plants, String> {
    if !cfg!(feature = "plant") {
        return Err("this build has no planted defects; run it with `--features plant`".into());
    }
    let named: Vec<Plant> = Plant::ALL.into_iter().filter(|p| text == "all" || p.name() == text).collect();
    if named.is_empty() {
        let names: Vec<_> = Plant::ALL.iter().map(|p| p.name()).collect();
        return Err(format!("no such defect; use all, or one of {}", names.join(", ")));
    }
    Ok(Plants(named))
}

fn main() -> ExitCode {
    let args = Args::parse();
    silence_panics();
    let result = match (args.seed, &args.plant) {
        (Some(seed), _) => replay(&args, seed),
        (None, Some(Plants(plants))) => find_all(&args, plants),
        (None, None) => run_all(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        // A closed pipe is no failure of the core, but nobody has seen the result either.
        Ok(false) | Err(_) => ExitCode::FAILURE,
    }
}

fn options(args: &Args, plant: Option<Plant>) -> Options {
    Options { events: args.events, plant, trace: args.trace }
}

/// The command that replays a seed.
fn command(args: &Args, seed: u64, plant: Option<Plant>) -> String {
    let (features, planted) = match plant {
        Some(plant) => (" --features plant", format!(" --plant {}", plant.name())),
        None => ("", String::new()),
    };
    let default = Options::default().events;
    let events = if args.events == default { String::new() } else { format!(" --events {}", args.events) };
    format!("cargo run --release -q -p orbitkv-sim{features} -- --seed {seed} --trace{planted}{events}")
}

fn replay(args: &Args, seed: u64) -> io::Result<bool> {
    let plant = args.plant.as_ref().and_then(|Plants(plants)| plants.first().copied());
    let outcome = run_seed(seed, &options(args, plant));
    let mut out = io::stdout().lock();
    for line in &outcome.trace {
        writeln!(out, "{line}")?;
    }
    let (events, compared) = (outcome.events, outcome.compared);
    match &outcome.failure {
        Some(failure) => writeln!(out, "seed {seed} failed at event {events}: {failure}")?,
        None => writeln!(out, "seed {seed}: {events} events, {compared} restored shards compared")?,
    }
    last_line(&mut out, u64::from(outcome.failure.is_none()), u64::from(outcome.failure.is_some()))?;
    Ok(outcome.failure.is_none())
}

fn run_all(args: &Args) -> io::Result<bool> {
    let begun = Instant::now();
    let shown = Mutex::new(Instant::now());
    let terminal = io::stderr().is_terminal();
    let progress = |done: u64| {
        if let (true, Ok(mut shown)) = (terminal, shown.lock())
            && shown.elapsed() >= PROGRESS
        {
            *shown = Instant::now();
            let _ = writeln!(io::stderr(), "{done} of {} seeds", args.seeds);
        }
    };
    let summary = run_range(args.start, args.seeds, &options(args, None), &progress);
    let mut out = io::stdout().lock();
    report(&mut out, args, &summary, begun.elapsed())?;
    let missing = missing_marks(&summary);
    let uncovered = args.seeds >= COVERAGE_SEEDS && !missing.is_empty();
    if uncovered {
        writeln!(out, "never reached by any seed: {missing:?}")?;
    }
    // Coverage is one more thing that can fail.
    let failed = summary.failed.len() as u64 + u64::from(uncovered);
    last_line(&mut out, summary.seeds - summary.failed.len() as u64, failed)?;
    Ok(failed == 0)
}

fn report(out: &mut impl Write, args: &Args, summary: &Summary, took: Duration) -> io::Result<()> {
    for Failed { seed, event, failure } in summary.failed.iter().take(SHOWN) {
        writeln!(out, "seed {seed} failed at event {event}: {failure}")?;
        writeln!(out, "  {}", command(args, *seed, None))?;
    }
    if summary.failed.len() > SHOWN {
        writeln!(out, "and {} more", summary.failed.len() - SHOWN)?;
    }
    let seconds = took.as_secs_f64().max(1e-9);
    let rate = |count: u64| count as f64 / seconds;
    writeln!(
        out,
        "{} seeds in {seconds:.1} s ({:.0}/s), {} events ({:.0}/s), {} restored shards compared, {} of {} marks",
        summary.seeds,
        rate(summary.seeds),
        summary.events,
        rate(summary.events),
        summary.compared,
        summary.marks.len(),
        orbitkv_core::Mark::ALL.len(),
    )
}

fn find_all(args: &Args, plants: &[Plant]) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    writeln!(out, "{:<24} {:>5} {:>6}  {:<10} {:>8}", "defect", "seed", "event", "found by", "time")?;
    let mut missed = 0;
    for &plant in plants {
        let PlantRow { found, took, .. } = find_plant(plant, &options(args, None));
        let name = plant.name();
        let ms = took.as_secs_f64() * 1e3;
        match found {
            Some(Failed { seed, event, failure }) => {
                let by = failure.checker.to_string();
                writeln!(out, "{name:<24} {seed:>5} {event:>6}  {by:<10} {ms:>5.1} ms")?;
                writeln!(out, "  {}", failure.words)?;
                writeln!(out, "  {}", command(args, seed, Some(plant)))?;
            }
            None => {
                missed += 1;
                writeln!(out, "{name:<24} {:>5} {:>6}  {:<10} {ms:>5.1} ms", "-", "-", "nothing")?;
            }
        }
    }
    last_line(&mut out, plants.len() as u64 - missed, missed)?;
    Ok(missed == 0)
}

/// The line that scripts read.
fn last_line(out: &mut impl Write, passed: u64, failed: u64) -> io::Result<()> {
    writeln!(out, "{passed} passed, {failed} failed")
}
