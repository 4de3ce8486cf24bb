use super::*;
use crate::args::{HttpAddress, LogLevel};
use crate::{Amount, FileProblem};
use std::path::{Path, PathBuf};
use std::{fs, io};

fn parse(words: &[&str]) -> Result<Configuration, InvocationError> {
    // Whatever the environment of the tests is.
    let command = CommandLine::command().mut_arg("socket", |arg| arg.env(None::<&str>));
    let matches = command.try_get_matches_from(std::iter::once("manager").chain(words.iter().copied()))?;
    match Invocation::from_matches(&matches)? {
        Invocation::Serve(configuration) | Invocation::ShowConfig { configuration, .. } => Ok(configuration),
    }
}

/// Reads `text` as a file, with flags before it.
fn with_file(text: impl AsRef<[u8]>, flags: &[&str]) -> (Result<Configuration, InvocationError>, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager.toml");
    fs::write(&path, text).unwrap();
    let words = [flags, &["--config", path.to_str().unwrap()]].concat();
    (parse(&words), path)
}

fn problem(text: impl AsRef<[u8]>) -> (usize, FileProblem) {
    match with_file(text, &[]).0 {
        Err(InvocationError::File(FileError::At { line, problem, .. })) => (line, problem),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_file_sets_every_key() {
    let text = r#"
        pool_size = "64gb"
        socket = "/run/a/b.sock"
        http_addr = "off"
        query_budget = 0x1000
        query_instance_budget = "10%"
        query_read_batch = "32mib"
        query_read_max_batches = 1
        query_read_timeout_ms = 100
        ssd_cache_path = ["/a", "/b"]
        ssd_cache_capacity = "64gb"
        ssd_min_free = 0
        ssd_write_policy = "reuse"
        ssd_write_budget = "1tb/day"
        ssd_io = "io_uring"
        ssd_segment_size = "1mib"
        memory_tier_size = 0
        memory_tier_delay_ms = "7"
        memory_tier_depth = 4
        scrub_rate = 0
        segment_size = 2_097_152
        ready_file = "/run/a/ready.json"
        log_format = "json"
        log_level = "debug"
    "#;
    let configuration = with_file(text, &[]).0.unwrap();
    let args = &configuration.args;
    assert_eq!(args.pool_size, Amount::Bytes(64_000_000_000));
    assert_eq!(args.socket.as_deref(), Some(Path::new("/run/a/b.sock")));
    assert_eq!(args.http_addr, HttpAddress::Off);
    assert_eq!(args.query_budget, Amount::Bytes(4096));
    assert_eq!(args.query_instance_budget, Some(Amount::Percent(10)));
    assert_eq!(args.query_read_batch.0, Some(Amount::Bytes(32 << 20)));
    assert_eq!((args.query_read_max_batches, args.query_read_timeout_ms), (1, 100));
    assert_eq!(args.ssd_cache_path, [Path::new("/a"), Path::new("/b")]);
    assert_eq!(args.ssd_cache_capacity, Some(Amount::Bytes(64_000_000_000)));
    assert_eq!((args.ssd_min_free.0, args.ssd_segment_size), (None, Some(Amount::Bytes(1 << 20))));
    assert_eq!(args.ssd_write_policy, crate::SsdWritePolicy::Reuse);
    assert_eq!(args.ssd_io, crate::SsdIo::IoUring);
    assert_eq!((args.memory_tier_size.0, args.memory_tier_delay_ms), (None, 7));
    assert_eq!(args.memory_tier_depth, 4);
    assert_eq!(args.ssd_write_budget, Some("1tb/day".parse().unwrap()));
    assert_eq!(args.scrub_rate, crate::RateOrNone(None));
    assert_eq!(args.segment_size, Some(Amount::Bytes(2 << 20)));
    assert_eq!(args.ready_file.as_deref(), Some(Path::new("/run/a/ready.json")));
    assert_eq!(args.log_format, crate::LogFormat::Json);
    assert_eq!(args.log_level, LogLevel::Debug);
    for setting in setting::ALL {
        assert!(matches!(configuration.origin(setting.key), Origin::File { .. }), "{}", setting.key);
    }
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let text = "log_level = \"debug\"\n\npool_size = \"2gb\"\n";
    let (configuration, path) = with_file(text, &["--log-level", "warn"]);
    let configuration = configuration.unwrap();
    assert_eq!(
        (configuration.args.log_level, configuration.origin("log_level")),
        (LogLevel::Warn, &Origin::Flag)
    );
    assert_eq!(configuration.args.pool_size, Amount::Bytes(2_000_000_000));
    assert_eq!(configuration.origin("pool_size"), &Origin::File { path: path.clone(), line: 3 });
    assert_eq!(configuration.origin("query_budget"), &Origin::Default);
    assert_eq!(configuration.name("pool_size"), format!("pool_size ({}:3)", path.display()));
    assert_eq!(configuration.name("log_level"), "--log-level");
}

#[test]
fn a_flag_that_repeats_the_default_still_wins() {
    let configuration = with_file("pool_size = \"2gb\"", &["--pool-size", "25%"]).0.unwrap();
    assert_eq!(configuration.args.pool_size, Amount::Percent(25));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest() {
    let (line, problem) = problem("# comment\nlog_level = \"info\"\npool-size = \"4gb\"\nbogus = 1\n");
    assert_eq!(line, 3);
    assert_eq!(problem, FileProblem::UnknownKey { key: "pool-size".to_owned(), nearest: "pool_size" });
    let text = problem.to_string();
    assert!(text.contains(r#"unknown key "pool-size""#) && text.contains(r#""pool_size""#), "{text}");
}

#[test]
fn sections_are_unknown_keys() {
    let (line, found) = problem("\n[pool]\nsize = \"4gb\"\n");
    assert_eq!(line, 2);
    assert_eq!(found, FileProblem::UnknownKey { key: "pool".to_owned(), nearest: "pool_size" });
    let (_, found) = problem("config = \"other.toml\"\n");
    assert!(matches!(found, FileProblem::UnknownKey { .. }), "files do not include files: {found}");
}

#[test]
fn a_wrong_type_is_named() {
    for (text, key, article) in [
        ("pool_size = true", "pool_size", "a boolean"),
        ("pool_size = 4.5", "pool_size", "a float"),
        ("query_budget = [1]", "query_budget", "an array"),
        ("ssd_cache_path = [1]", "ssd_cache_path", "an array with something else than text"),
        ("socket = 5", "socket", "an integer"),
        ("log_level.x = 1", "log_level", "a table"),
        ("ready_file = 2026-01-01", "ready_file", "a date or time"),
    ] {
        match problem(text) {
            (1, FileProblem::WrongType { key: k, found, .. }) => assert_eq!((k, found), (key, article)),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn a_value_out_of_range_is_named_with_what_works() {
    for (text, written, reason) in [
        ("pool_size = 0", "0", "zero"),
        ("pool_size = -1", "-1", "not a size"),
        ("pool_size = 99999999999999999999999", "99999999999999999999999", "not a size"),
        ("query_budget = \"101%\"", "\"101%\"", "1% to 100%"),
        ("pool_size = \"4 apples\"", "\"4 apples\"", "not a size"),
        ("http_addr = \"localhost\"", "\"localhost\"", "not an address"),
        ("log_level = \"loud\"", "\"loud\"", "not one of the words"),
        ("socket = \"\"", "\"\"", "empty"),
    ] {
        let (line, found) = problem(text);
        let shown = found.to_string();
        assert!(
            matches!(&found, FileProblem::BadValue { value, .. } if value == written),
            "{text}: {found:?}"
        );
        assert!(line == 1 && shown.contains(reason) && shown.contains("write "), "{text}: {shown}");
    }
}

#[test]
fn a_value_that_loses_is_checked_too() {
    let result = with_file("pool_size = \"4 apples\"", &["--pool-size", "1gb"]).0;
    assert!(result.is_err());
}

#[test]
fn what_is_no_toml_is_named_by_line() {
    for (text, line) in [("log_level = \"info\"\npool_size = 4gb\n", 2), ("a\n", 1), ("\n\nx = \"open\n", 3)]
    {
        let (at, found) = problem(text);
        assert!(matches!(found, FileProblem::NotToml { .. }), "{text}: {found}");
        assert_eq!(at, line, "{text}");
    }
    let (line, found) = problem("pool_size = 1\npool_size = 2\n");
    assert!(line == 2 && found.to_string().contains("duplicate key"), "{line} {found}");
    assert_eq!(problem(b"# fine\n# \xff\n"), (2, FileProblem::NotUtf8));
}

#[test]
fn files_that_are_missing_or_far_too_long_are_named() {
    let error = parse(&["--config", "/nowhere/m.toml"]).unwrap_err();
    assert!(matches!(&error, InvocationError::File(FileError::Read { source, .. })
        if source.kind() == io::ErrorKind::NotFound));
    assert!(error.to_string().contains("--config /nowhere/m.toml"), "{error}");
    assert!(matches!(parse(&["--config", "/"]), Err(InvocationError::File(FileError::Read { .. }))));
    let long = "#".repeat((64 << 10) + 1);
    assert!(matches!(with_file(&long, &[]).0, Err(InvocationError::File(FileError::TooLong { .. }))));
    with_file(&long[1..], &[]).0.expect("the longest file that is read");
}

#[test]
fn flags_before_a_command_are_refused() {
    let error = parse(&["--pool-size", "1gb", "config", "show"]).unwrap_err();
    assert!(matches!(error, InvocationError::Usage(_)), "{error}");
    let configuration = parse(&["config", "show", "--pool-size", "1gb"]).unwrap();
    assert_eq!(configuration.origin("pool_size"), &Origin::Flag);
}

mod example {
    //! `docs/orbitkv.toml` says what the defaults are.
    use super::*;

    fn text() -> String {
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/orbitkv.toml")).unwrap()
    }

    /// Lines such as `# socket = "…"`, without the comment sign: values that have no fixed default.
    fn commented(text: &str) -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("# "));
        let is_setting =
            |line: &&str| line.split_once(" = ").is_some_and(|(key, _)| setting::find(key).is_some());
        lines.filter(is_setting).map(str::to_owned).collect()
    }

    #[test]
    fn its_values_are_the_defaults() {
        let example = with_file(text(), &[]).0.unwrap();
        let defaults = parse(&[]).unwrap();
        let args = Args { config: None, ..example.args };
        assert_eq!(format!("{args:?}"), format!("{:?}", defaults.args));
    }

    #[test]
    fn it_has_every_key_that_help_shows() {
        let text = text();
        let example = with_file(&text, &[]).0.unwrap();
        let commented = commented(&text);
        for arg in CommandLine::command().get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(setting) = setting::find(arg.get_id().as_str()) else { continue };
            let active = example.origin(setting.key) != &Origin::Default;
            let prefix = format!("{} = ", setting.key);
            let as_comment = commented.iter().filter(|line| line.starts_with(&prefix)).count();
            assert_eq!(usize::from(active) + as_comment, 1, "{}", setting.key);
        }
    }

    #[test]
    fn its_commented_values_can_be_used() {
        let commented = commented(&text());
        assert!(!commented.is_empty());
        for line in commented {
            with_file(&line, &[]).0.unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
