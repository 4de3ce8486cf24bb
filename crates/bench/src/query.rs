//! A query as an engine sees it: over the socket, against an echo of its bytes.

use crate::cache::{Cache, GROUP, chains};
use crate::echo::Echo;
use crate::report::{Row, Target};
use crate::rounds::{Measured, alternate, median};
use anyhow::Result;
use orbitkv_client::Hash;
use orbitkv_wire::{Header, Part, QueryRule, ToClient, ToManager};
use std::time::{Duration, Instant};

pub(crate) const HASHES: usize = 128;
/// Questions in one round, at least.
const QUESTIONS: usize = 1_000;
/// A prompt of 16 Ki tokens, and what its answer may take beside the bytes' own way.
const LARGE_HASHES: usize = 1_024;
const LARGE_US: f64 = 60.0;

/// Microseconds that each of a round's calls takes, for at least `time`. What they return is dropped off the
/// clock.
pub(crate) fn call_us<T>(time: Duration, mut call: impl FnMut() -> Result<T>) -> Result<Vec<f64>> {
    let mut micros = Vec::with_capacity(QUESTIONS);
    let begun = Instant::now();
    while micros.len() < QUESTIONS || begun.elapsed() < time {
        let start = Instant::now();
        let answer = call()?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
        drop(answer);
    }
    Ok(micros)
}

/// The median of a round.
fn median_us<T>(call: impl FnMut() -> Result<T>) -> Result<f64> {
    Ok(median(call_us(Duration::ZERO, call)?))
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

/// Microseconds of a query of that many hashes, and of an echo of the same bytes.
fn against_echo(cache: &Cache, hashes: usize) -> Result<(Measured, Measured, Measured)> {
    let hashes = chains(hashes);
    let (request_bytes, reply_bytes) = frame_bytes(&hashes)?;
    let mut echo = Echo::start(cache.dir.path(), request_bytes, reply_bytes)?;
    let mut beyond = Vec::new();
    let asked = std::cell::Cell::new(0.0);
    let (ours, limit) = alternate(
        || {
            asked.set(median_us(|| cache.engine.ask(&hashes))?);
            Ok(asked.get())
        },
        || {
            let echoed = echo.beside(|echo| median_us(|| echo.ask()))?;
            beyond.push(asked.get() - echoed);
            Ok(echoed)
        },
    )?;
    // The first round warmed up.
    Ok((ours, limit, Measured::of(beyond.split_off(1))))
}

pub(crate) fn rows(cache: &Cache) -> Result<Vec<Row>> {
    let (ours, limit, _) = against_echo(cache, HASHES)?;
    let (_, _, beyond) = against_echo(cache, LARGE_HASHES)?;
    Ok(vec![
        Row {
            name: "query of 128 hashes against an echo",
            ours,
            limit: limit.median,
            unit: "µs",
            target: Target::AtMost(1.5),
        },
        Row {
            name: "query of 1,024 hashes, beyond an echo",
            ours: beyond,
            limit: LARGE_US,
            unit: "µs",
            target: Target::AtMost(1.0),
        },
    ])
}
