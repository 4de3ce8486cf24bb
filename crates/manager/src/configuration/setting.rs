//! Every key of the configuration file.

use crate::args::Args;
use clap::ValueEnum;
use std::str::FromStr;

/// A flag that can be set in the file.
pub(crate) struct Setting {
    /// Name in the file; the flag has `-` for `_`.
    pub(crate) key: &'static str,
    /// Unit of its value in `config show`; empty without one.
    pub(crate) unit: &'static str,
    /// Variable of the environment that sets it too.
    pub(crate) environment: Option<&'static str>,
    /// Whether a TOML integer is a value; strings are always.
    pub(crate) takes_integer: bool,
    /// Whether an array of strings is one, and the flag may be repeated.
    pub(crate) takes_list: bool,
    /// What to write, for an error.
    pub(crate) expected: &'static str,
    /// Sets it from the text that the flag would take, or says what is wrong with that text.
    pub(crate) set: fn(&mut Args, &str) -> Result<(), String>,
}

const SIZE: &str = r#"a size such as "4gb", a share such as "25%", or a number of bytes"#;
const RATE: &str = r#"a size and a time such as "64mib/s", or 0"#;
const BUDGET: &str = r#"a size and a time such as "1tb/day", "40gb/hour" or "10mb/s""#;
const NUMBER: &str = "a number from 0 to 4294967295";
const PATH: &str = r#"a path in quotes, such as "/run/orbitkv/manager.sock""#;

const PATHS: &str = r#"a path in quotes, or several: ["/nvme0/orbitkv", "/nvme1/orbitkv"]"#;

/// In the order of the flags.
pub(crate) const ALL: &[Setting] = &[
    size("pool_size", |args, text| parse(text).map(|v| args.pool_size = v)),
    Setting {
        environment: Some("ORBITKV_SOCKET"),
        ..text("socket", PATH, |args, text| path(text).map(|v| args.socket = Some(v)))
    },
    text("http_addr", r#"IP:PORT in quotes, such as "127.0.0.1:9464", or "off""#, |args, text| {
        parse(text).map(|v| args.http_addr = v)
    }),
    size("query_budget", |args, text| parse(text).map(|v| args.query_budget = v)),
    size("query_instance_budget", |args, text| parse(text).map(|v| args.query_instance_budget = Some(v))),
    size("query_read_batch", |args, text| parse(text).map(|v| args.query_read_batch = v)),
    number("query_read_max_batches", "", |args, text| parse(text).map(|v| args.query_read_max_batches = v)),
    number("query_read_timeout_ms", "ms", |args, text| parse(text).map(|v| args.query_read_timeout_ms = v)),
    Setting {
        takes_list: true,
        ..text("ssd_cache_path", PATHS, |args, text| path(text).map(|v| args.ssd_cache_path.push(v)))
    },
    size("ssd_cache_capacity", |args, text| parse(text).map(|v| args.ssd_cache_capacity = Some(v))),
    size("ssd_min_free", |args, text| parse(text).map(|v| args.ssd_min_free = v)),
    text("ssd_write_policy", r#""all" or "reuse""#, |args, text| {
        word(text).map(|v| args.ssd_write_policy = v)
    }),
    text("ssd_write_budget", BUDGET, |args, text| parse(text).map(|v| args.ssd_write_budget = Some(v))),
    text("ssd_io", r#""auto", "io_uring" or "threads""#, |args, text| word(text).map(|v| args.ssd_io = v)),
    size("ssd_segment_size", |args, text| parse(text).map(|v| args.ssd_segment_size = Some(v))),
    size("memory_tier_size", |args, text| parse(text).map(|v| args.memory_tier_size = v)),
    number("memory_tier_delay_ms", "ms", |args, text| parse(text).map(|v| args.memory_tier_delay_ms = v)),
    number("memory_tier_depth", "", |args, text| parse(text).map(|v| args.memory_tier_depth = v)),
    Setting {
        takes_integer: true,
        ..text("scrub_rate", RATE, |args, text| parse(text).map(|v| args.scrub_rate = v))
    },
    size("segment_size", |args, text| parse(text).map(|v| args.segment_size = Some(v))),
    text("ready_file", PATH, |args, text| path(text).map(|v| args.ready_file = Some(v))),
    text("log_format", r#""text" or "json""#, |args, text| word(text).map(|v| args.log_format = v)),
    text("log_level", r#""error", "warn", "info", "debug" or "trace""#, |args, text| {
        word(text).map(|v| args.log_level = v)
    }),
];

/// The setting of a key.
pub(crate) fn find(key: &str) -> Option<&'static Setting> {
    ALL.iter().find(|setting| setting.key == key)
}

/// The key that is most like a wrong one.
pub(crate) fn nearest(wrong: &str) -> &'static str {
    let wrong = wrong.to_lowercase().replace('-', "_");
    let likeness = |setting: &&Setting| strsim::jaro_winkler(&wrong, setting.key);
    ALL.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b))).map_or("", |setting| setting.key)
}

const fn size(key: &'static str, set: fn(&mut Args, &str) -> Result<(), String>) -> Setting {
    Setting {
        key,
        unit: "bytes",
        environment: None,
        takes_integer: true,
        takes_list: false,
        expected: SIZE,
        set,
    }
}

const fn number(
    key: &'static str,
    unit: &'static str,
    set: fn(&mut Args, &str) -> Result<(), String>,
) -> Setting {
    Setting { key, unit, environment: None, takes_integer: true, takes_list: false, expected: NUMBER, set }
}

const fn text(
    key: &'static str,
    expected: &'static str,
    set: fn(&mut Args, &str) -> Result<(), String>,
) -> Setting {
    Setting { key, unit: "", environment: None, takes_integer: false, takes_list: false, expected, set }
}

fn parse<T: FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn path(text: &str) -> Result<std::path::PathBuf, String> {
    if text.is_empty() { Err("the path is empty".to_owned()) } else { Ok(text.into()) }
}

/// One of the words that the flag takes.
fn word<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| format!("{text:?} is not one of the words"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::CommandLine;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    #[test]
    fn every_flag_is_a_key_with_the_same_environment() {
        let command = CommandLine::command();
        let flags: BTreeSet<_> = command
            .get_arguments()
            .filter(|arg| !["config", "help", "version"].contains(&arg.get_id().as_str()))
            .map(|arg| {
                let environment = arg.get_env().and_then(|name| name.to_str());
                (arg.get_long().unwrap().replace('-', "_"), environment)
            })
            .collect();
        let keys = ALL.iter().map(|setting| (setting.key.to_owned(), setting.environment)).collect();
        assert_eq!(flags, keys);
    }

    #[test]
    fn a_misspelt_key_finds_the_one_that_was_meant() {
        for (wrong, meant) in [
            ("pool-size", "pool_size"),
            ("poolsize", "pool_size"),
            ("query_instance_budgets", "query_instance_budget"),
            ("http_address", "http_addr"),
            ("loglevel", "log_level"),
            ("Socket", "socket"),
        ] {
            assert_eq!(nearest(wrong), meant, "{wrong}");
        }
    }
}
