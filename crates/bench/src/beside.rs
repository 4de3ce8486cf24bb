//! What a query takes while another engine of the host saves. The last of the rows that need pages: it
//! evicts them.

use crate::cache::{CHAINS, Cache, Engine, chain, chains};
use crate::query::{HASHES, call_us};
use crate::report::{Row, Target};
use crate::rounds::{Measured, alternate, percentile};
use anyhow::{Result, bail, ensure};
use std::io::{Write, stdout};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// A round: long enough for many of them.
const BESIDE: Duration = Duration::from_millis(500);
const LEAST_CHAINS: usize = 10;
/// Who asks, the manager, who saves, and the thread that copies and sums.
const BUSY_THREADS: usize = 4;

/// A thread that saves new chains while it is told to.
struct Saver<'a> {
    engine: &'a Engine,
    saves: AtomicBool,
    ends: AtomicBool,
    saved: AtomicUsize,
}

impl Saver<'_> {
    fn run(&self) -> Result<()> {
        while !self.ends.load(Ordering::Acquire) {
            if self.saves.load(Ordering::Acquire) {
                // Behind all chains that exist: each is new, and evicts.
                self.engine.write(&chain(CHAINS + self.saved.load(Ordering::Relaxed)))?;
                self.saved.fetch_add(1, Ordering::Release);
            } else {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Runs `round` while chains are being saved.
    fn beside(&self, round: impl FnOnce() -> Result<f64>) -> Result<f64> {
        let before = self.saved.load(Ordering::Acquire);
        self.saves.store(true, Ordering::Release);
        let done = round();
        self.saves.store(false, Ordering::Release);
        let chains = self.saved.load(Ordering::Acquire) - before;
        ensure!(chains >= LEAST_CHAINS, "only {chains} chains were saved beside the queries");
        done
    }
}

/// The 99th percentile of a query's microseconds while another engine saves, and while none does.
fn beside_saves(cache: &Cache) -> Result<(Measured, Measured)> {
    let (hashes, engine) = (chains(HASHES), cache.another_engine()?);
    let p99_us = || Ok(percentile(call_us(BESIDE, || cache.engine.ask(&hashes))?, 99));
    let (saves, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let saver = Saver { engine: &engine, saves, ends, saved: AtomicUsize::new(0) };
    thread::scope(|scope| {
        let thread = scope.spawn(|| saver.run());
        let measured = alternate(|| saver.beside(p99_us), p99_us);
        saver.ends.store(true, Ordering::Release);
        match thread.join() {
            Ok(saved) => saved.and(measured),
            Err(_) => bail!("the saving thread panicked"),
        }
    })
}

pub(crate) fn rows(cache: &Cache) -> Result<Vec<Row>> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if cores < BUSY_THREADS {
        writeln!(
            stdout(),
            "query p99 beside saves: {BUSY_THREADS} threads are busy on {cores} cores, so it is the wait for one of them"
        )?;
    }
    let (saving, idle) = beside_saves(cache)?;
    Ok(vec![Row {
        name: "query p99 beside saves, against idle",
        ours: saving,
        limit: idle.median,
        unit: "µs",
        target: Target::AtMost(2.0),
    }])
}
