//! What the configuration means on this host.

use crate::Amount;
use crate::args::Args;
use crate::configuration::{Configuration, flag};
use crate::tier::TierSettings;
use bytesize::ByteSize;
use orbitkv_core::{Config, ConfigError};
use orbitkv_shm::AvailableMemory;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Least pool: room for some pages of the smallest models and of tests.
const MIN_POOL_BYTES: u64 = 1 << 20;
/// Memory that is left to the host, or the cgroup, whatever the pool is.
pub(crate) const SPARE_BYTES: u64 = 64 << 20;
/// Granularity of segments: a page of memory.
const PAGE_BYTES: u64 = orbitkv_shm::PAGE_BYTES as u64;

/// A value that cannot work here.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// More memory than there is.
    #[error(
        "{name} is {pool_bytes} bytes ({}), but only {usable_bytes} bytes ({}) of memory are available{limit}, \
         and {SPARE_BYTES} of them stay free; choose at most --pool-size {fix_mib}mib, or free memory",
        ByteSize(*pool_bytes),
        ByteSize(*usable_bytes)
    )]
    PoolTooLarge {
        /// Flag, or key and line.
        name: String,
        /// What was asked for.
        pool_bytes: u64,
        /// What there is.
        usable_bytes: u64,
        /// What limits it.
        limit: &'static str,
        /// A size that works, in MiB.
        fix_mib: u64,
    },
    /// Too little to be of use.
    #[error("{name} is {pool_bytes} bytes; it must be at least {MIN_POOL_BYTES} (1mib)")]
    PoolTooSmall {
        /// Flag, or key and line.
        name: String,
        /// What was asked for.
        pool_bytes: u64,
    },
    /// Not even the least pool fits.
    #[error(
        "only {usable_bytes} bytes of memory are available{limit}; the least pool ({MIN_POOL_BYTES} bytes) and \
         {SPARE_BYTES} bytes that stay free do not fit: free memory, or raise the limit"
    )]
    NoMemory {
        /// What there is.
        usable_bytes: u64,
        /// What limits it.
        limit: &'static str,
    },
    /// A part larger than its whole.
    #[error("{name} is {got} bytes, more than {whole} of {max} bytes; lower it to at most {max}")]
    TooLarge {
        /// Flag, or key and line.
        name: String,
        /// Its value.
        got: u64,
        /// What it is a part of.
        whole: &'static str,
        /// Bytes of that.
        max: u64,
    },
    /// A segment that memory cannot be cut into.
    #[error("{name} is {got} bytes; it must be a multiple of {PAGE_BYTES}, at least 65536")]
    Segment {
        /// Flag, or key and line.
        name: String,
        /// What was asked for.
        got: u64,
    },
    /// The core's own check.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Turns the memory values into limits of the core.
///
/// # Errors
/// The first value that cannot work on this host, with one that would.
pub fn config(configuration: &Configuration, memory: AvailableMemory) -> Result<Config, SettingsError> {
    let args = &configuration.args;
    let wanted_bytes = pool_bytes(configuration, memory)?;
    let mut config = Config::for_pool(wanted_bytes);
    // Segments are files of whole memory pages.
    config.segment_bytes = config.segment_bytes.next_multiple_of(PAGE_BYTES);
    if let Some(amount) = args.segment_size {
        config.segment_bytes = segment_bytes(configuration, amount, wanted_bytes)?;
    }
    if let Amount::Percent(_) = args.pool_size {
        // What a share leaves over could hold no segment. Never zero: a segment is at most the pool.
        config.pool_bytes = wanted_bytes / config.segment_bytes * config.segment_bytes;
    }
    let pool_bytes = config.pool_bytes;
    config.query_budget_bytes =
        part(configuration, "query_budget", args.query_budget, pool_bytes, ("the pool", pool_bytes))?;
    let whole = ("the query budget", config.query_budget_bytes);
    config.query_instance_budget_bytes = match args.query_instance_budget {
        None => config.query_budget_bytes,
        Some(amount) => part(configuration, "query_instance_budget", amount, pool_bytes, whole)?,
    };
    config.read_batch_bytes = args.query_read_batch.of(pool_bytes);
    config.read_batches = args.query_read_max_batches;
    config.read_timeout_ms = u64::from(args.query_read_timeout_ms);
    config.tier = tier(args, &config).bytes > 0;
    config.check()?;
    Ok(config)
}

/// The memory tier, if there is one.
pub(crate) fn tier(args: &Args, config: &Config) -> TierSettings {
    TierSettings {
        bytes: args.memory_tier_size.of(config.pool_bytes),
        delay: Duration::from_millis(u64::from(args.memory_tier_delay_ms)),
        depth: args.memory_tier_depth,
    }
}

/// Where engines connect, and what that was derived from if nobody said it.
pub(crate) fn socket(args: &Args) -> (PathBuf, Option<&'static str>) {
    if let Some(path) = &args.socket {
        return (path.clone(), None);
    }
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR");
    let uid = rustix::process::geteuid().as_raw();
    let path = orbitkv_wire::default_socket(runtime_dir.as_deref(), uid);
    let without = orbitkv_wire::default_socket(None, uid);
    let from = if path == without { "the user id, without XDG_RUNTIME_DIR" } else { "XDG_RUNTIME_DIR" };
    (path, Some(from))
}

/// Bytes of the pool: at most what is available less what stays free. A share is cut to that, a size
/// beyond it is refused, because somebody counts on it.
fn pool_bytes(configuration: &Configuration, memory: AvailableMemory) -> Result<u64, SettingsError> {
    let amount = configuration.args.pool_size;
    let usable_bytes = memory.usable_bytes();
    let max_bytes = usable_bytes.saturating_sub(SPARE_BYTES);
    if max_bytes < MIN_POOL_BYTES {
        return Err(SettingsError::NoMemory { usable_bytes, limit: limit(memory) });
    }
    let wanted_bytes = match amount {
        Amount::Bytes(bytes) if bytes > max_bytes => return Err(too_large(configuration, bytes, memory)),
        Amount::Bytes(bytes) => bytes,
        Amount::Percent(_) => amount.of(usable_bytes).min(max_bytes),
    };
    if wanted_bytes < MIN_POOL_BYTES {
        let name = configuration.name("pool_size");
        return Err(SettingsError::PoolTooSmall { name, pool_bytes: wanted_bytes });
    }
    Ok(wanted_bytes / PAGE_BYTES * PAGE_BYTES)
}

fn segment_bytes(
    configuration: &Configuration,
    amount: Amount,
    pool_bytes: u64,
) -> Result<u64, SettingsError> {
    let got = part(configuration, "segment_size", amount, pool_bytes, ("the pool", pool_bytes))?;
    if got < 64 << 10 || !got.is_multiple_of(PAGE_BYTES) {
        return Err(SettingsError::Segment { name: configuration.name("segment_size"), got });
    }
    Ok(got)
}

/// Bytes of a value that is limited by `whole`. A share is one of the pool, whatever the limit is.
fn part(
    configuration: &Configuration,
    key: &str,
    amount: Amount,
    pool_bytes: u64,
    (whole, max): (&'static str, u64),
) -> Result<u64, SettingsError> {
    let got = amount.of(pool_bytes);
    if got <= max {
        return Ok(got);
    }
    Err(SettingsError::TooLarge { name: configuration.name(key), got, whole, max })
}

fn too_large(configuration: &Configuration, pool_bytes: u64, memory: AvailableMemory) -> SettingsError {
    let usable_bytes = memory.usable_bytes();
    let fix_bytes = (usable_bytes / 4 * 3).min(usable_bytes.saturating_sub(SPARE_BYTES));
    SettingsError::PoolTooLarge {
        name: match configuration.name("pool_size") {
            name if name == flag("pool_size") => name,
            // The fix is a flag: say that this is the same value.
            name => format!("--pool-size, as {name},"),
        },
        pool_bytes,
        usable_bytes,
        limit: limit(memory),
        fix_mib: fix_bytes >> 20,
    }
}

fn limit(memory: AvailableMemory) -> &'static str {
    let by_cgroup = memory.cgroup_bytes.is_some_and(|cgroup| cgroup < memory.host_bytes);
    if by_cgroup { " (limited by the memory cgroup)" } else { "" }
}

#[cfg(test)]
mod tests;
