//! `--config` and `config show`, on the real program.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use support::{Manager, run_to_end};

const MIB: u64 = 1 << 20;

/// `config show`, in an environment of its own.
fn show(dir: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orbitkv-cache-manager"))
        .args(["config", "show"])
        .args(flags)
        .env_clear()
        .env("XDG_RUNTIME_DIR", dir.join("runtime"))
        .current_dir(dir)
        .output()
        .unwrap()
}

fn show_json(dir: &Path, flags: &[&str]) -> Value {
    let output = show(dir, &[flags, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `MemTotal`, in bytes: what is available changes from one moment to the next, but never beyond this.
fn total_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_manager_runs_from_a_file_and_flags_win() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("manager.toml");
    fs::write(&file, "pool_size = \"32mib\"\nquery_budget = 8388608\nquery_instance_budget = \"1mib\"\n")
        .unwrap();
    let flags = ["--config", file.to_str().unwrap(), "--query-instance-budget", "2mib"];
    let manager = Manager::start_in(dir, &flags);
    let status = manager.status();
    assert_eq!(status["pool"]["limit_bytes"], 32 * MIB, "{status}");
    assert_eq!(status["query"]["budget_bytes"], 8 * MIB, "{status}");
    let text = show_json(manager.dir.path(), &flags);
    assert_eq!(text["settings"]["query_instance_budget"]["value"], 2 * MIB);
}

#[test]
fn every_value_is_shown_with_origin_and_unit() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("m.toml"), "# one\npool_size = \"64mib\"\nhttp_addr = \"off\"\n").unwrap();
    let shown = show_json(dir.path(), &["--config", "m.toml", "--log-level", "warn"]);
    let settings = &shown["settings"];
    let pool = json!({"value": 64 * MIB, "unit": "bytes", "derived_from": null,
        "origin": {"kind": "file", "path": "m.toml", "line": 2}});
    assert_eq!(settings["pool_size"], pool);
    assert_eq!(settings["http_addr"]["value"], "off");
    assert_eq!(settings["query_budget"]["value"], 48 * MIB);
    assert_eq!(settings["query_budget"]["derived_from"], "75% of the pool");
    assert_eq!(settings["query_budget"]["origin"], json!({"kind": "default"}));
    assert_eq!(settings["query_instance_budget"]["value"], 48 * MIB);
    assert_eq!(settings["segment_size"]["value"], 8 * MIB);
    assert_eq!(
        settings["log_level"],
        json!({"value": "warn", "unit": null, "derived_from": null,
        "origin": {"kind": "flag"}})
    );
    assert_eq!(settings["ready_file"]["value"], Value::Null);
    let socket = dir.path().join("runtime/orbitkv/manager.sock");
    assert_eq!(settings["socket"]["value"], socket.to_str().unwrap());
    assert_eq!(settings["socket"]["derived_from"], "XDG_RUNTIME_DIR");
    assert_eq!(settings["query_read_batch"]["value"], 0);
    assert_eq!(settings["ssd_cache_path"]["value"], Value::Null);
    assert_eq!(settings["ssd_min_free"]["value"], "5%");
    assert_eq!(settings["scrub_rate"]["value"], "67108864/s");
    assert_eq!(settings["ssd_write_budget"]["value"], Value::Null);
    assert_eq!(settings.as_object().unwrap().len(), 23, "{settings}");
    assert!(!dir.path().join("runtime").exists(), "nothing is made");
}

#[test]
fn the_table_is_aligned() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("m.toml"), "query_budget = \"16mib\"").unwrap();
    let output = show(dir.path(), &["--config", "m.toml", "--pool-size", "64mib"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 24, "{text}");
    let column = lines[0].find("origin").unwrap();
    for line in &lines {
        assert!(line.as_bytes()[column - 1] == b' ' && line.as_bytes()[column] != b' ', "{text}");
    }
    let line = |key: &str| lines.iter().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(
        line("pool_size ").contains("67108864 (64.0 MiB)") && line("pool_size ").ends_with("  flag"),
        "{text}"
    );
    assert!(line("query_budget ").ends_with("bytes  file m.toml:1"), "{text}");
    assert!(line("query_instance_budget ").ends_with("default: query_budget"), "{text}");
}

#[test]
fn the_environment_wins_over_the_file_and_a_flag_over_both() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("m.toml"), "socket = \"/run/file.sock\"").unwrap();
    let socket = |environment: Option<&str>, flags: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_orbitkv-cache-manager"))
            .args(["config", "show", "--json", "--config", "m.toml"])
            .args(flags)
            .env_remove("ORBITKV_SOCKET")
            .envs(environment.map(|value| ("ORBITKV_SOCKET", value)))
            .current_dir(dir.path())
            .output()
            .unwrap();
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        let socket = &shown["settings"]["socket"];
        (socket["value"].as_str().unwrap().to_owned(), socket["origin"].clone())
    };
    let file = json!({"kind": "file", "path": "m.toml", "line": 1});
    assert_eq!(socket(None, &[]), ("/run/file.sock".to_owned(), file));
    let env = json!({"kind": "env", "name": "ORBITKV_SOCKET"});
    assert_eq!(socket(Some("/run/env.sock"), &[]), ("/run/env.sock".to_owned(), env));
    let flag = socket(Some("/run/env.sock"), &["--socket", "/run/flag.sock"]);
    assert_eq!(flag, ("/run/flag.sock".to_owned(), json!({"kind": "flag"})));
}

#[test]
fn the_default_pool_is_a_share_of_the_memory_of_this_host() {
    let dir = tempfile::tempdir().unwrap();
    let shown = show_json(dir.path(), &[]);
    let bytes = |pointer: &str| shown.pointer(pointer).unwrap().as_u64().unwrap();
    let pool_bytes = bytes("/settings/pool_size/value");
    let (available_bytes, segment_bytes) =
        (bytes("/memory/available_bytes"), bytes("/settings/segment_size/value"));
    assert!(available_bytes <= total_memory());
    assert!(pool_bytes > 0 && pool_bytes.is_multiple_of(segment_bytes), "{shown}");
    assert!(pool_bytes <= available_bytes / 4 && pool_bytes + 64 * MIB <= available_bytes, "{shown}");
    // Nothing but the rest of a segment is given away.
    assert!(pool_bytes + segment_bytes > (available_bytes / 4).min(available_bytes - 64 * MIB), "{shown}");
    let derived = shown.pointer("/settings/pool_size/derived_from").unwrap().as_str().unwrap();
    assert!(derived.starts_with("25% of ") && derived.contains("available memory"), "{derived}");

    let manager = Manager::start_with(&[]);
    let served_bytes = manager.status()["pool"]["limit_bytes"].as_u64().unwrap();
    assert!(served_bytes > 0 && served_bytes <= total_memory() / 4, "{served_bytes}");
}

#[test]
fn bad_files_are_named_and_nothing_is_started_or_shown() {
    let cases: &[(&str, &[&str])] = &[
        ("pool_size = 4gb", &["bad.toml:1", "not TOML"]),
        ("\npoool_size = \"4gb\"", &["bad.toml:2", "unknown key \"poool_size\"", "\"pool_size\""]),
        ("pool_size = true", &["bad.toml:1", "pool_size is a boolean", "\"4gb\""]),
        ("log_level = \"info\"\npool_size = 0", &["bad.toml:2", "pool_size = 0", "zero"]),
        ("query_budget = \"101%\"", &["bad.toml:1", "\"101%\"", "1% to 100%"]),
        ("pool_size = \"900tb\"", &["bad.toml:1", "--pool-size", "900000000000000", "available"]),
        ("pool_size = \"64mib\"\nquery_budget = \"65mib\"", &["bad.toml:2", "query_budget", "67108864"]),
    ];
    for (text, parts) in cases {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bad.toml");
        fs::write(&file, text).unwrap();
        let flags = ["--http-addr", "off", "--config", file.to_str().unwrap()];
        let exit = run_to_end(&dir.path().join("own"), &flags);
        let shown = show(dir.path(), &flags);
        let said = String::from_utf8(shown.stderr).unwrap();
        assert_eq!((exit.code, shown.status.code()), (Some(2), Some(2)), "{text}: {} {said}", exit.stderr);
        assert!(shown.stdout.is_empty(), "{text}");
        for part in *parts {
            assert!(
                exit.stderr.contains(part) && said.contains(part),
                "{text}: no {part} in: {}",
                exit.stderr
            );
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{text} left something");
    }
}

#[test]
fn a_missing_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let exit = run_to_end(dir.path(), &["--config", "/nowhere/manager.toml"]);
    assert_eq!(exit.code, Some(2));
    for part in ["--config /nowhere/manager.toml", "No such file", "name a TOML file"] {
        assert!(exit.stderr.contains(part), "{}", exit.stderr);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
