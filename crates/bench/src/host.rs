//! What a manager with pages and clients takes from its host.

use crate::cache::{CHAIN_PAGES, CHAINS, Cache, POOL_BYTES};
use crate::report::{Row, Target};
use anyhow::{Context, Result};
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// CPU time is counted in ticks of 10 ms, so a shorter look could not see 1 %.
const IDLE: Duration = Duration::from_secs(5);
/// Before it: what the last requests started has ended.
const SETTLE: Duration = Duration::from_millis(500);
const FIXED_BYTES: u64 = 64 << 20;
const BYTES_A_PAGE: u64 = 128;

/// Seconds of CPU that a process has used, in all its threads.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
    // The name in parentheses may hold spaces; user and system time are the 12th and 13th field after it.
    let (_, fields) = stat.rsplit_once(')').with_context(|| format!("{path}: no name"))?;
    let mut times = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let mut next = || times.next().with_context(|| format!("{path}: too short"));
    let ticks = next()?? + next()??;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// A value of `/proc/PID/status` that is given in KiB, in bytes.
fn status_bytes(status: &str, name: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = line.and_then(|rest| rest.split_whitespace().next()).with_context(|| name.to_owned())?;
    Ok(number.parse::<u64>()? << 10)
}

/// Bytes that the manager keeps from others. Pool memory counts in full, mapped or not.
fn memory_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).context(path)?;
    let of = |name| status_bytes(&status, name);
    Ok(of("RssAnon")? + of("RssFile")? + of("RssShmem")?.max(POOL_BYTES))
}

pub(crate) fn rows(cache: &Cache) -> Result<Vec<Row>> {
    let pid = cache.manager.id();
    sleep(SETTLE);
    let (start, before) = (Instant::now(), cpu_seconds(pid)?);
    sleep(IDLE);
    let idle_percent = (cpu_seconds(pid)? - before) / start.elapsed().as_secs_f64() * 100.0;
    let most = POOL_BYTES + FIXED_BYTES + BYTES_A_PAGE * (CHAINS * CHAIN_PAGES) as u64;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let target = Target::AtMost(1.0);
    Ok(vec![
        Row { name: "manager, idle", ours: idle_percent.into(), limit: 1.0, unit: "% of core", target },
        Row {
            name: "manager, memory with a full pool",
            ours: mib(memory_bytes(pid)?).into(),
            limit: mib(most),
            unit: "MiB",
            target,
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_process_is_read_in_bytes() {
        let status = "Name:\tx\nRssAnon:\t    1024 kB\nRssShmem:\t       8 kB\n";
        assert_eq!(status_bytes(status, "RssAnon").unwrap(), 1 << 20);
        assert!(status_bytes(status, "RssFile").is_err());
    }

    #[test]
    fn a_process_that_works_is_seen_to_work() {
        let pid = std::process::id();
        let before = cpu_seconds(pid).unwrap();
        let mut sum = 0_u64;
        while cpu_seconds(pid).unwrap() <= before {
            sum = std::hint::black_box((0..100_000).fold(sum, u64::wrapping_add));
        }
    }
}
