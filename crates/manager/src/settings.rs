//! What the command line means on this host.

use crate::{Amount, Args};
use orbitkv_core::{Config, ConfigError};
use orbitkv_shm::AvailableMemory;
use thiserror::Error;

/// Least pool: room for some pages of the smallest models and of tests.
const MIN_POOL_BYTES: u64 = 1 << 20;
/// Granularity of segments: a page of memory.
const PAGE_BYTES: u64 = orbitkv_shm::PAGE_BYTES as u64;

/// A value that cannot work here.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// More memory than there is.
    #[error(
        "--pool-size is {pool_bytes} bytes ({pool}), but only {usable_bytes} bytes ({usable}) of memory are \
         available{limit}; choose at most --pool-size {fix}, or free memory"
    )]
    PoolTooLarge {
        /// What was asked for.
        pool_bytes: u64,
        /// The same for people.
        pool: String,
        /// What there is.
        usable_bytes: u64,
        /// The same for people.
        usable: String,
        /// What limits it.
        limit: &'static str,
        /// A size that works.
        fix: String,
    },
    /// Too little to be of use.
    #[error("--pool-size is {pool_bytes} bytes; it must be at least {MIN_POOL_BYTES} (1mib)")]
    PoolTooSmall {
        /// What was asked for.
        pool_bytes: u64,
    },
    /// A part larger than its whole.
    #[error("{flag} is {got} bytes, more than {whole} of {max} bytes; lower it to at most {max}")]
    TooLarge {
        /// Which flag.
        flag: &'static str,
        /// Its value.
        got: u64,
        /// What it is a part of.
        whole: &'static str,
        /// Bytes of that.
        max: u64,
    },
    /// A segment that memory cannot be cut into.
    #[error("--segment-size is {got} bytes; it must be a multiple of {PAGE_BYTES}, at least 65536")]
    Segment {
        /// What was asked for.
        got: u64,
    },
    /// The core's own check.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Turns the memory flags into limits of the core.
///
/// # Errors
/// The first flag that cannot work on this host, with a value that would.
pub fn config(args: &Args, memory: AvailableMemory) -> Result<Config, SettingsError> {
    let usable_bytes = memory.usable_bytes();
    let pool_bytes = args.pool_size.of(usable_bytes) / PAGE_BYTES * PAGE_BYTES;
    if pool_bytes > usable_bytes {
        return Err(too_large(pool_bytes, memory));
    }
    if pool_bytes < MIN_POOL_BYTES {
        return Err(SettingsError::PoolTooSmall { pool_bytes: args.pool_size.of(usable_bytes) });
    }
    let mut config = Config::for_pool(pool_bytes);
    config.query_budget_bytes =
        part("--query-budget", args.query_budget, "the pool", pool_bytes, pool_bytes)?;
    config.query_instance_budget_bytes = match args.query_instance_budget {
        None => config.query_budget_bytes,
        Some(amount) => part(
            "--query-instance-budget",
            amount,
            "the query budget",
            pool_bytes,
            config.query_budget_bytes,
        )?,
    };
    // Segments are files of whole memory pages.
    config.segment_bytes = config.segment_bytes.next_multiple_of(PAGE_BYTES);
    if let Some(amount) = args.segment_size {
        let bytes = part("--segment-size", amount, "the pool", pool_bytes, pool_bytes)?;
        if bytes < 64 << 10 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(SettingsError::Segment { got: bytes });
        }
        config.segment_bytes = bytes;
    }
    config.check()?;
    Ok(config)
}

/// A share is one of the pool, whatever the limit is.
fn part(
    flag: &'static str,
    amount: Amount,
    whole: &'static str,
    pool_bytes: u64,
    max: u64,
) -> Result<u64, SettingsError> {
    let got = amount.of(pool_bytes);
    if got > max { Err(SettingsError::TooLarge { flag, got, whole, max }) } else { Ok(got) }
}

fn too_large(pool_bytes: u64, memory: AvailableMemory) -> SettingsError {
    let usable_bytes = memory.usable_bytes();
    let by_cgroup = memory.cgroup_bytes.is_some_and(|cgroup| cgroup < memory.host_bytes);
    SettingsError::PoolTooLarge {
        pool_bytes,
        pool: bytesize::ByteSize(pool_bytes).to_string(),
        usable_bytes,
        usable: bytesize::ByteSize(usable_bytes).to_string(),
        limit: if by_cgroup { " (limited by the memory cgroup)" } else { "" },
        fix: format!("{}mib", (usable_bytes / 4 * 3) >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    const MEMORY: AvailableMemory = AvailableMemory { host_bytes: 16 << 30, cgroup_bytes: Some(8 << 30) };

    fn config_of(flags: &[&str]) -> Result<Config, SettingsError> {
        let args = std::iter::once("manager").chain(flags.iter().copied());
        config(&Args::try_parse_from(args).unwrap(), MEMORY)
    }

    #[test]
    fn a_quarter_of_the_smaller_memory_by_default() {
        let config = config_of(&[]).unwrap();
        assert_eq!(config.pool_bytes, 2 << 30);
        assert_eq!(config.query_budget_bytes, 3 << 29);
        assert_eq!(config.query_instance_budget_bytes, 3 << 29);
    }

    #[test]
    fn the_instance_budget_follows_the_query_budget() {
        let config = config_of(&["--query-budget", "100mib"]).unwrap();
        assert_eq!(config.query_instance_budget_bytes, 100 << 20);
    }

    #[test]
    fn a_pool_beyond_memory_is_refused_with_both_numbers() {
        let text = config_of(&["--pool-size", "9gib"]).unwrap_err().to_string();
        for part in ["9663676416", "8589934592", "cgroup", "--pool-size 6144mib"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }

    #[test]
    fn parts_larger_than_their_whole_are_refused_by_flag() {
        let pool = ["--pool-size", "64mib"];
        for (flag, value) in [("--query-budget", "65mib"), ("--segment-size", "1gib")] {
            let error = config_of(&[pool[0], pool[1], flag, value]).unwrap_err();
            assert!(matches!(error, SettingsError::TooLarge { flag: f, .. } if f == flag), "{error}");
        }
        let flags = [pool[0], pool[1], "--query-budget", "10%", "--query-instance-budget", "11%"];
        assert!(config_of(&flags).unwrap_err().to_string().contains("--query-instance-budget"));
    }

    #[test]
    fn too_small_pools_and_odd_segments_are_refused() {
        assert!(matches!(config_of(&["--pool-size", "1kb"]), Err(SettingsError::PoolTooSmall { .. })));
        let odd = config_of(&["--segment-size", "100001"]);
        assert_eq!(odd, Err(SettingsError::Segment { got: 100_001 }));
    }

    #[test]
    fn segments_of_small_pools_are_whole_memory_pages() {
        let config = config_of(&["--pool-size", "1mib"]).unwrap();
        assert!(config.segment_bytes.is_multiple_of(4096), "{}", config.segment_bytes);
    }
}
