//! Polls of a step: what an engine asks of its own process, for every request that waits.

use crate::cache::{BUDGET_PAGES, Cache, GROUP, chains};
use crate::child::{LONG, until};
use crate::report::{Row, Target};
use crate::rounds::{Measured, median_of_five};
use anyhow::{Result, ensure};
use orbitkv_client::{Query, QueryState};
use std::hint::black_box;
use std::time::Instant;

/// As many as a session may have open.
const QUERIES: usize = 128;
const HASHES: usize = 16;
/// What the polls of all of them may take in a step.
const STEP_US: f64 = 10.0;
/// Steps in one round.
const STEPS: usize = 20_000;

/// Microseconds of a poll of each, all of which are and stay in `state`.
fn step_us(queries: &[Query], state: QueryState) -> Result<Measured> {
    let alike = || queries.iter().all(|query| query.poll() == state);
    ensure!(alike(), "not every query is {state:?}");
    let micros = median_of_five(|| {
        let start = Instant::now();
        for _ in 0..STEPS {
            for query in black_box(queries) {
                black_box(query.poll());
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / STEPS as f64)
    })?;
    ensure!(alike(), "not every query stayed {state:?}");
    Ok(micros)
}

pub(crate) fn rows(cache: &Cache) -> Result<Vec<Row>> {
    // Another engine owns the whole budget, so that nothing is answered until it lets go.
    let other = cache.another_engine()?;
    let all = other.ask(&chains(BUDGET_PAGES))?;
    let hashes = chains(HASHES);
    let ask = |_| cache.engine.scheduler.query(GROUP, &hashes, 0);
    let queries: Vec<Query> = (0..QUERIES).map(ask).collect::<Result<_, _>>()?;
    let pending = step_us(&queries, QueryState::Pending)?;
    drop(all);
    until("every query is answered", || {
        Ok(queries.iter().all(|query| query.wait(LONG) == QueryState::Ready))
    })?;
    let ready = step_us(&queries, QueryState::Ready)?;
    let one = ready.times(1.0 / QUERIES as f64);
    let target = Target::AtMost(1.0);
    let row = |name, ours, limit| Row { name, ours, limit, unit: "µs", target };
    Ok(vec![
        row("local poll", one, 0.2),
        row("local poll of 128 queries, none answered", pending, STEP_US),
        row("local poll of 128 queries, all ready", ready, STEP_US),
    ])
}
