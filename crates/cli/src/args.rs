//! The command line.

use clap::{Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where a cache manager serves HTTP when nobody says otherwise.
pub(crate) const DEFAULT_HTTP: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9464);

/// KV cache for LLM serving engines.
#[derive(Debug, Parser)]
#[command(name = "orbitkv", version, about, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a serving engine with the cache: finds or starts the cache manager, adds the engine's flags.
    Run(RunArgs),
    /// Show what the cache manager holds and does.
    Status(StatusArgs),
    /// Check this machine and a running cache; explains a hit rate of zero.
    Doctor(DoctorArgs),
    /// Check a cache directory on an SSD while no manager uses it, and list what is in it.
    VerifySsd(VerifySsdArgs),
    /// Becomes a program that is asked to stop when its parent dies.
    #[command(hide = true)]
    ExecWithParent(ExecArgs),
}

/// Which manager is meant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Place {
    /// Unix socket of the manager. Default: $XDG_RUNTIME_DIR/orbitkv/manager.sock, or
    /// /tmp/orbitkv-<uid>/manager.sock.
    #[arg(long, value_name = "PATH", env = "ORBITKV_SOCKET")]
    pub(crate) socket: Option<PathBuf>,

    /// Address of the manager's /status and /metrics. Default: 127.0.0.1:9464, or a free port if a
    /// manager is started while that one is taken.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) http_addr: Option<SocketAddr>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) place: Place,

    /// Memory of a manager that is started: a size (4gb, 512mib) or a share of the available memory.
    /// Default: 25%.
    #[arg(long, value_name = "SIZE")]
    pub(crate) pool_size: Option<String>,

    /// TOML file with the values of a manager that is started, as `orbitkv-cache-manager --config` reads it. Flags
    /// here win over it.
    #[arg(long, value_name = "FILE", conflicts_with = "ssd")]
    pub(crate) config: Option<PathBuf>,

    /// Keep pages on an SSD too, where they outlive engine and manager: in DIR, or in the user's cache directory.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    pub(crate) ssd: Option<Option<PathBuf>>,

    /// Most that may take there. Default: a quarter of what is free, at most 64 GiB.
    #[arg(long, value_name = "SIZE", requires = "ssd")]
    pub(crate) ssd_capacity: Option<String>,

    /// How vLLM loads hits: inside the forward pass, beside it, or whichever delays less.
    #[arg(long, value_enum)]
    pub(crate) load_mode: Option<LoadMode>,

    /// Leave a manager that is started here running when the engine ends.
    #[arg(long)]
    pub(crate) keep_manager: bool,

    /// Serve without the cache when the manager cannot be started, instead of refusing.
    #[arg(long)]
    pub(crate) best_effort: bool,

    /// The engine: `vllm serve MODEL …`, `sglang serve MODEL …`, `python -m sglang.launch_server …` or
    /// `python -m vllm.entrypoints.openai.api_server …`.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) engine: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub(crate) enum LoadMode {
    Auto,
    Sync,
    Async,
}

impl LoadMode {
    /// The word the adapter knows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sync => "sync",
            Self::Async => "async",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) place: Place,

    /// Everything the manager reports, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) place: Place,

    /// The Python that runs the engine.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    pub(crate) python: PathBuf,

    /// The cache directory to look at. Default: the one of `orbitkv run --ssd`.
    #[arg(long, value_name = "DIR")]
    pub(crate) ssd: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct VerifySsdArgs {
    /// The cache directory. It is read only; exit code 0: clean, 1: damaged, 2: cannot be checked.
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,

    /// Everything that was found, as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExecArgs {
    /// Process id of the parent.
    pub(crate) parent_pid: u32,

    /// The program, an absolute path, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_args(line: &[&str]) -> RunArgs {
        match Args::try_parse_from(["orbitkv", "run"].iter().chain(line)).unwrap().command {
            Command::Run(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn options_end_at_the_program_with_and_without_dashes() {
        for line in [
            &["--pool-size", "1gb", "vllm", "serve", "m", "--port", "1"][..],
            &["--pool-size", "1gb", "--", "vllm", "serve", "m", "--port", "1"][..],
        ] {
            let args = run_args(line);
            assert_eq!(args.engine, ["vllm", "serve", "m", "--port", "1"]);
            assert_eq!(args.pool_size.as_deref(), Some("1gb"));
        }
    }

    #[test]
    fn the_ssd_takes_a_directory_only_after_an_equals_sign() {
        let args = run_args(&["--ssd", "vllm", "serve", "m"]);
        assert_eq!((args.ssd, args.engine.len()), (Some(None), 3));
        let args = run_args(&["--ssd=/fast", "--ssd-capacity", "9gb", "vllm", "serve", "m"]);
        assert_eq!((args.ssd, args.ssd_capacity), (Some(Some("/fast".into())), Some("9gb".to_owned())));
        assert_eq!(run_args(&["vllm", "serve", "m"]).ssd, None);
    }

    #[test]
    fn where_pages_go_is_said_by_a_file_or_by_a_flag() {
        let args = run_args(&["--config", "m.toml", "--pool-size", "1gb", "vllm", "serve", "m"]);
        assert_eq!(args.config, Some("m.toml".into()));
        let line = ["orbitkv", "run", "--config", "m.toml", "--ssd", "vllm", "serve", "m"];
        let text = Args::try_parse_from(line).unwrap_err().to_string();
        assert!(text.contains("--config") && text.contains("--ssd"), "{text}");
    }

    #[test]
    fn a_flag_of_the_engine_with_the_name_of_ours_stays_with_the_engine() {
        let args = run_args(&["vllm", "serve", "m", "--pool-size", "1gb"]);
        assert_eq!(args.pool_size, None);
        assert_eq!(args.engine.len(), 5);
    }
}
