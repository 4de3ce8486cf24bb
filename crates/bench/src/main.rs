//! `make bench`: what OrbitKV promises about speed and memory, each figure beside its limit.
//!
//! Where the limit is a measurement too (an echo, a plain copy), both sides run in turn, so that a busy
//! host slows both; five rounds, and the median of each counts. A figure that misses its target is printed
//! as `short` and changes nothing about the exit status: hosts differ, and nobody should be taught to
//! ignore a red build.
//!
//! `orbitkv-bench PART` measures one part of the table only (`make bench PART=ssd`).
//!
//! The program is its own manager and its own echo server: `orbitkv-bench manager …` and
//! `orbitkv-bench echo …` are the processes on the other end.

#![deny(unsafe_code)]

mod beside;
mod cache;
mod child;
mod copies;
mod core;
mod echo;
mod host;
#[allow(unsafe_code, reason = "buffers are handed to copies by address")]
mod memory;
mod mix;
mod poll;
mod query;
mod report;
mod rounds;
mod ssd;

use anyhow::{Context, Result};
use report::Row;
use std::ffi::OsString;
use std::path::Path;

/// As in the manager, whose core is measured here.
#[global_allocator]
static HEAP: orbitkv_shm::Heap = orbitkv_shm::Heap;

/// Where the rows go, beside the table on standard output.
const SUMMARY: &str = "out/bench/summary.json";

fn main() -> Result<()> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|name| name.to_str()) {
        // The name of the mode takes the place of the program's name.
        Some("manager") => Ok(orbitkv_manager::run(&orbitkv_manager::Invocation::parse(&args)?)?),
        Some("echo") => echo::serve(&args[1..]),
        only => report::publish(&measure(only)?, Path::new(SUMMARY)),
    }
}

/// A part of the table by its name.
type Part = (&'static str, fn() -> Result<Vec<Row>>);

/// In the order of the table.
const PARTS: [Part; 4] =
    [("core", core::rows), ("copies", copies::rows), ("ssd", ssd::rows), ("queries", query_rows)];

/// Every row, or those of one part.
fn measure(only: Option<&str>) -> Result<Vec<Row>> {
    if let Some(name) = only.filter(|name| PARTS.iter().all(|(part, _)| part != name)) {
        anyhow::bail!("no part is called {name:?}: they are {:?}", PARTS.map(|(part, _)| part));
    }
    let mut rows = Vec::new();
    for (part, measure) in PARTS.iter().filter(|(part, _)| only.is_none_or(|only| only == *part)) {
        rows.extend(measure().with_context(|| format!("measuring {part:?}"))?);
    }
    Ok(rows)
}

fn query_rows() -> Result<Vec<Row>> {
    let cache = cache::Cache::start().context("a manager with pages")?;
    let mut rows = query::rows(&cache).context("queries")?;
    rows.extend(poll::rows(&cache).context("polls")?);
    rows.extend(beside::rows(&cache).context("queries beside saves")?);
    rows.extend(host::rows(&cache).context("the manager's own use of the host")?);
    Ok(rows)
}
