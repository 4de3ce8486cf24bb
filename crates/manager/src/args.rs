//! The command line.

use crate::{Amount, AmountOrNone, Rate, RateOrNone};
use clap::{Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// OrbitKV cache manager: owns the KV pages of one host and lends them to its serving engines.
#[derive(Debug, Parser)]
#[command(name = "orbitkv-cache-manager", version, about, max_term_width = 100)]
// Flags in front of a command would be read for nothing: they belong behind it.
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) args: Args,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Look at the configuration; nothing is started.
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every value that the manager would use with these flags, its unit and where it comes from.
    Show(ShowArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) args: Args,

    /// As JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Every value of the manager. Each flag but `--config` is a key of the configuration file as well.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// TOML file with values for these flags; a key is the flag's name with _ for -. A flag, and a
    /// variable of the environment, wins over the file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Memory for cached pages: a size (4gb, 512mib) or a share of the memory available now, cgroup
    /// limits included (25%). 64 MiB of that memory always stay free.
    #[arg(long, value_name = "SIZE", default_value = "25%")]
    pub pool_size: Amount,

    /// Unix socket for engines. Default: $XDG_RUNTIME_DIR/orbitkv/manager.sock, or
    /// /tmp/orbitkv-<uid>/manager.sock.
    #[arg(long, value_name = "PATH", env = "ORBITKV_SOCKET")]
    pub socket: Option<PathBuf>,

    /// Address of /health, /status and /metrics; port 0 takes a free one, "off" none.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9464")]
    pub http_addr: HttpAddress,

    /// Most bytes that the queries of all engines own at once: a size or a share of the pool.
    #[arg(long, value_name = "SIZE", default_value = "75%")]
    pub query_budget: Amount,

    /// Most bytes that the queries of one engine own at once: a size or a share of the pool. Default:
    /// the query budget.
    #[arg(long, value_name = "SIZE")]
    pub query_instance_budget: Option<Amount>,

    /// Most bytes of the reads that one query has under way: a size, or 0 for all of the query.
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub query_read_batch: AmountOrNone,

    /// Batches of reads of one query; then it is answered with what has been read. 0 for no limit.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub query_read_max_batches: u32,

    /// A query is answered this long after it came, with what has been read. 0 for no limit but its own.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    pub query_read_timeout_ms: u32,

    /// Directory on an SSD for pages that leave memory; they outlive the manager. It is made if missing, and
    /// belongs to one manager at a time. Given several times: one thread each, and pages are spread over them.
    /// Default: none.
    #[arg(long, value_name = "DIR")]
    pub ssd_cache_path: Vec<PathBuf>,

    /// Most bytes that all of them take, in equal parts: a size, never exceeded on the file system; or a share
    /// of each one's file system. Needed with --ssd-cache-path.
    #[arg(long, value_name = "SIZE")]
    pub ssd_cache_capacity: Option<Amount>,

    /// What stays free for others on each file system: a size, or a share of it; 0 for nothing. The cache
    /// shrinks when others leave less.
    #[arg(long, value_name = "SIZE", default_value = "5%")]
    pub ssd_min_free: AmountOrNone,

    /// Which pages are written there: all that engines save, or those that were used again, which wears the
    /// SSD less.
    #[arg(long, value_enum, default_value_t = SsdWritePolicy::All)]
    pub ssd_write_policy: SsdWritePolicy,

    /// Most bytes that are written there, to all directories together: a size and a time, such as 1tb/day. Pages
    /// over it are not written. Default: no limit.
    #[arg(long, value_name = "SIZE/day")]
    pub ssd_write_budget: Option<Rate>,

    /// What brings pages to the kernel: io_uring where it is allowed and threads elsewhere, or one of them.
    #[arg(long, value_enum, default_value_t = SsdIo::Auto)]
    pub ssd_io: SsdIo,

    /// Bytes of one segment file. Default: a 64th of a directory's capacity, from 64 MiB to 1 GiB.
    #[arg(long, value_name = "SIZE", hide = true)]
    pub ssd_segment_size: Option<Amount>,

    /// Payload of the memory tier, which stands behind the pool as a disk would: for tests and benchmarks.
    /// 0 for none.
    #[arg(long, value_name = "SIZE", default_value = "0", hide = true)]
    pub memory_tier_size: AmountOrNone,

    /// Time that each read and write of the memory tier takes.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 50, hide = true)]
    pub memory_tier_delay_ms: u32,

    /// Reads and writes of the memory tier that are under way at once; others wait for their turn. 0 for no
    /// limit.
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide = true)]
    pub memory_tier_depth: u32,

    /// Most bytes of pages in memory that are read again and compared with their checksums, in the background: a
    /// size and a time, or 0 for none. A page that has changed is never handed out again.
    #[arg(long, value_name = "SIZE/s", default_value = "64mib/s")]
    pub scrub_rate: RateOrNone,

    /// Bytes of one memory segment. Default: an eighth of the pool, 64 MiB at most.
    #[arg(long, value_name = "SIZE", hide = true)]
    pub segment_size: Option<Amount>,

    /// File that is written when engines can connect: JSON with pid, socket and http.
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,

    /// Format of the log on standard error.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Least level that is logged.
    #[arg(long, value_enum, default_value_t = LogLevel::Info)]
    pub log_level: LogLevel,
}

/// Where HTTP is served, if at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpAddress {
    /// Nowhere.
    Off,
    /// There.
    At(std::net::SocketAddr),
}

impl std::str::FromStr for HttpAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse()
            .map(Self::At)
            .map_err(|_| format!("{text:?} is not an address: write IP:PORT, such as 127.0.0.1:9464, or off"))
    }
}

impl std::fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// Which pages go to the SSD cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SsdWritePolicy {
    /// Every page that is saved, at once.
    All,
    /// A page that a request got from memory.
    Reuse,
}

/// What brings pages of the SSD cache to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SsdIo {
    /// io_uring where the kernel allows it, threads elsewhere.
    Auto,
    /// io_uring, or no start.
    #[value(name = "io_uring")]
    IoUring,
    /// pread and pwrite on threads.
    Threads,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
    }

    #[test]
    fn the_documented_defaults() {
        let args = CommandLine::try_parse_from(["orbitkv-cache-manager"]).unwrap().args;
        assert_eq!((args.pool_size, args.query_budget), (Amount::Percent(25), Amount::Percent(75)));
        assert_eq!(args.http_addr, HttpAddress::At(([127, 0, 0, 1], 9464).into()));
    }

    #[test]
    fn http_can_be_off() {
        assert_eq!("off".parse(), Ok(HttpAddress::Off));
        assert!("localhost".parse::<HttpAddress>().unwrap_err().contains("localhost"));
    }
}
