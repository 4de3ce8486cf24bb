//! A query as an engine sees it: over the socket, and when it is polled.

use crate::cache::{Cache, GROUP, chain};
use crate::child::LONG;
use crate::echo::Echo;
use crate::report::{Row, Target};
use crate::rounds::{alternate, median, median_of_five};
use anyhow::{Result, ensure};
use orbitkv_client::{Hash, Query, QueryState};
use orbitkv_wire::{Header, Part, QueryRule, ToClient, ToManager};
use std::hint::black_box;
use std::time::Instant;

const HASHES: usize = 128;
/// Questions in one round.
const QUESTIONS: usize = 1_000;
const POLLS: u32 = 2_000_000;

/// Asks, and waits for the lease of all pages.
fn ask(cache: &Cache, hashes: &[Hash]) -> Result<Query> {
    let query = cache.scheduler.query(GROUP, hashes, 0)?;
    let state = query.wait(LONG);
    ensure!(
        state == QueryState::Ready && query.pages() == hashes.len(),
        "{} of {} pages answered, {state:?}, {:?}",
        query.pages(),
        hashes.len(),
        query.miss_reason()
    );
    Ok(query)
}

/// Median of the microseconds that one call takes. What it returns is dropped off the clock.
fn median_us<T>(mut call: impl FnMut() -> Result<T>) -> Result<f64> {
    let mut micros = Vec::with_capacity(QUESTIONS);
    for _ in 0..QUESTIONS {
        let start = Instant::now();
        let answer = call()?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
        drop(answer);
    }
    Ok(median(micros))
}

/// Bytes of the frames of such a query and its answer.
fn frame_bytes(hashes: &[Hash]) -> Result<(usize, usize)> {
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    ToManager::Query { group: GROUP, deadline_ms: 0, rule: QueryRule::default(), hashes }
        .encode(&mut request);
    let parts = vec![Part::default(); hashes.len()];
    ToClient::Ready { pages: u32::try_from(parts.len())?, shards: 1, parts: &parts }.encode(&mut reply);
    Ok((size_of::<Header>() + request.len(), size_of::<Header>() + reply.len()))
}

pub(crate) fn rows(cache: &Cache) -> Result<Vec<Row>> {
    let mut hashes = chain(0);
    hashes.truncate(HASHES);
    let (request_bytes, reply_bytes) = frame_bytes(&hashes)?;
    let mut echo = Echo::start(cache.dir.path(), request_bytes, reply_bytes)?;
    let (ours, limit) =
        alternate(|| median_us(|| ask(cache, &hashes)), || echo.beside(|echo| median_us(|| echo.ask())))?;
    let query = ask(cache, &hashes)?;
    let poll_us = median_of_five(|| {
        let start = Instant::now();
        for _ in 0..POLLS {
            black_box(black_box(&query).poll());
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(POLLS))
    })?;
    let echo_name = "query of 128 hashes against an echo";
    Ok(vec![
        Row { name: echo_name, ours, limit, unit: "µs", target: Target::AtMost(1.5) },
        Row { name: "local poll", ours: poll_us, limit: 0.2, unit: "µs", target: Target::AtMost(1.0) },
    ])
}
