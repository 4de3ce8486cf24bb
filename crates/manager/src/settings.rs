//! What the configuration means on this host.

use crate::Amount;
use crate::args::{Args, SsdIo, SsdWritePolicy};
use crate::configuration::{Configuration, flag};
use crate::ssd::{Capacity, MAX_DIRECTORIES, SsdSettings};
use crate::tier::MemoryTierSettings;
use bytesize::ByteSize;
use orbitkv_core::{Config, ConfigError, WritePolicy};
use orbitkv_shm::AvailableMemory;
use orbitkv_uring::DiskEngine;
use std::collections::BTreeSet;
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
    /// Directories without a cap.
    #[error(
        "{name} is given without --ssd-cache-capacity: say how many bytes the SSD cache may take, for example \
         --ssd-cache-capacity 64gb"
    )]
    NoCapacity {
        /// Flag, or key and line.
        name: String,
    },
    /// A cap of nothing.
    #[error("{name} is given without --ssd-cache-path: name a directory on an SSD, or leave it out")]
    NoDirectory {
        /// Flag, or key and line.
        name: String,
    },
    /// Two owners of one directory.
    #[error("{name} names {path} twice: name each directory once")]
    SameDirectory {
        /// Flag, or key and line.
        name: String,
        /// Which.
        path: PathBuf,
    },
    /// More than extents can tell apart.
    #[error("{name} names {count} directories; at most {MAX_DIRECTORIES} can be used")]
    TooManyDirectories {
        /// Flag, or key and line.
        name: String,
        /// How many.
        count: usize,
    },
    /// One thing stands behind the pool.
    #[error(
        "--memory-tier-size and --ssd-cache-path are given: choose one, the memory tier is for tests alone"
    )]
    TwoTiers,
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
    let memory_tier = memory_tier(args, &config).bytes > 0;
    config.tier = memory_tier;
    if ssd(configuration)?.is_some() {
        if memory_tier {
            return Err(SettingsError::TwoTiers);
        }
        config.tier = true;
        config.tier_policy = match args.ssd_write_policy {
            SsdWritePolicy::All => WritePolicy::All,
            SsdWritePolicy::Reuse => WritePolicy::Reuse,
        };
    }
    config.check()?;
    Ok(config)
}

/// The SSD cache, if there is one.
///
/// # Errors
/// Values that do not go together.
pub(crate) fn ssd(configuration: &Configuration) -> Result<Option<SsdSettings>, SettingsError> {
    let args = &configuration.args;
    let paths = args.ssd_cache_path.clone();
    let name = || configuration.name("ssd_cache_path");
    let capacity = match (args.ssd_cache_capacity, paths.len()) {
        (None, 0) => match args.ssd_write_budget {
            None => return Ok(None),
            Some(_) => {
                return Err(SettingsError::NoDirectory { name: configuration.name("ssd_write_budget") });
            }
        },
        (Some(_), 0) => {
            return Err(SettingsError::NoDirectory { name: configuration.name("ssd_cache_capacity") });
        }
        (None, _) => return Err(SettingsError::NoCapacity { name: name() }),
        (_, count) if count > MAX_DIRECTORIES => {
            return Err(SettingsError::TooManyDirectories { name: name(), count });
        }
        (Some(Amount::Bytes(bytes)), count) => Capacity::Each(bytes / count as u64),
        (Some(Amount::Percent(percent)), _) => Capacity::Percent(percent),
    };
    // Those that exist, whatever they are called; others would be made under the name that is given.
    let known = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let mut seen = BTreeSet::new();
    if let Some(path) = paths.iter().find(|path| !seen.insert(known(path))) {
        return Err(SettingsError::SameDirectory { name: name(), path: path.clone() });
    }
    // A share of nothing that is known here: refused as too small by the store.
    let segment_bytes = args.ssd_segment_size.map(|amount| amount.of(0));
    let engine = match args.ssd_io {
        SsdIo::Auto => DiskEngine::Auto,
        SsdIo::IoUring => DiskEngine::IoUring,
        SsdIo::Threads => DiskEngine::Threads,
    };
    Ok(Some(SsdSettings { paths, capacity, min_free: args.ssd_min_free, engine, segment_bytes }))
}

/// The memory tier, if there is one.
pub(crate) fn memory_tier(args: &Args, config: &Config) -> MemoryTierSettings {
    MemoryTierSettings {
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
