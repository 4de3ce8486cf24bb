//! What `orbitkv run` tells a manager that it starts: a file's values, an SSD directory, or a clear refusal
//! before anything is started.

// Helpers of tests may stop a test.
#![allow(clippy::unwrap_used)]

mod common;

use common::{World, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

const SERVE: [&str; 3] = ["vllm", "serve", "m"];

/// Runs an engine that ends at once, with these words before it.
fn run(world: &World, words: &[&str]) -> Output {
    let mut line = vec!["run"];
    line.extend(words);
    line.extend(SERVE);
    world.orbitkv(&line).env("FAKE_ENGINE", "exit 0").output().unwrap()
}

/// The same, refused: its message. Nothing was started and nothing left.
fn refusal(world: &World, words: &[&str]) -> String {
    let output = run(world, words);
    let (out, err) = text(&output);
    assert_eq!((output.status.code(), out.as_str()), (Some(1), ""), "{words:?}: {err}");
    assert!(world.managers().is_empty(), "{words:?}");
    assert!(err.contains("the engine was not started"), "{err}");
    err
}

/// The flags that the manager was started with.
fn flags(world: &World) -> Vec<String> {
    let text = fs::read_to_string(world.bin().join("flags.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn value<'a>(flags: &'a [String], name: &str) -> Option<&'a str> {
    let at = flags.iter().position(|flag| flag == name)?;
    flags.get(at + 1).map(String::as_str)
}

fn file(world: &World, text: &str) -> String {
    let path = world.bin().join("manager.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_ssd_is_in_the_users_cache_directory_and_said_in_the_line() {
    let world = World::new();
    let output = run(&world, &["--http-addr", "127.0.0.1:0", "--ssd"]);
    let (_, err) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let directory = world.home().join(".cache/orbitkv/ssd");
    let flags = flags(&world);
    assert_eq!(value(&flags, "--ssd-cache-path"), directory.to_str());
    let capacity: u64 = value(&flags, "--ssd-cache-capacity").unwrap().parse().unwrap();
    assert!((129 << 20..=64 << 30).contains(&capacity), "{capacity}");
    assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
    // What the manager reports, in the one line.
    assert!(err.lines().next().unwrap().contains("SSD up to 8.0 GiB in /nvme/orbitkv"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn a_relative_directory_is_the_one_below_where_the_user_is() {
    let world = World::new();
    let mut line = vec!["run", "--http-addr", "127.0.0.1:0", "--ssd=pages", "--ssd-capacity", "1gb"];
    line.extend(SERVE);
    let mut command = world.orbitkv(&line);
    let output = command.env("FAKE_ENGINE", "exit 0").current_dir(world.home()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output).1);
    let flags = flags(&world);
    assert_eq!(value(&flags, "--ssd-cache-path"), world.home().join("pages").to_str());
    assert_eq!(value(&flags, "--ssd-cache-capacity"), Some("1gb"));
}

#[test]
fn what_cannot_be_a_cache_directory_is_refused_by_name_before_anything_starts() {
    let world = World::new();
    let file = file(&world, "");
    for (directory, part) in
        [(file.as_str(), "is no directory"), ("/proc", "nothing can be written in /proc")]
    {
        let err = refusal(&world, &[&format!("--ssd={directory}")]);
        assert!(err.contains(directory) && err.contains(part) && err.contains("--ssd=DIR"), "{err}");
    }
}

#[test]
fn a_file_configures_the_manager() {
    let world = World::new();
    let socket = world.socket().with_file_name("other.sock");
    let text_of = format!("socket = \"{}\"\nhttp_addr = \"127.0.0.1:0\"\n", socket.display());
    let file = file(&world, &text_of);
    let line: Vec<&str> = ["run", "--config", &file].into_iter().chain(SERVE).collect();
    let mut command = world.orbitkv(&line);
    let output = command.env("FAKE_ENGINE", "exit 0").env_remove("ORBITKV_SOCKET").output().unwrap();
    let (_, err) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{err}");
    let flags = flags(&world);
    assert_eq!(value(&flags, "--config"), Some(file.as_str()));
    assert_eq!(value(&flags, "--socket"), socket.to_str(), "where the file says, engine and manager meet");
    // A flag would win over the file, so there must be none.
    for flag in ["--http-addr", "--pool-size", "--ssd-cache-path"] {
        assert_eq!(value(&flags, flag), None, "{flag}");
    }
    let said = common::said(&output);
    assert!(said["argv"].to_string().contains(socket.to_str().unwrap()), "{said}");
}

#[test]
fn flags_of_the_run_win_over_the_file() {
    let world = World::new();
    let file = file(&world, "http_addr = \"127.0.0.1:1\"\n");
    let words = ["--config", &file, "--http-addr", "127.0.0.1:0", "--pool-size", "1gb"];
    let output = run(&world, &words);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output).1);
    let flags = flags(&world);
    assert_eq!(value(&flags, "--http-addr"), Some("127.0.0.1:0"));
    assert_eq!(value(&flags, "--pool-size"), Some("1gb"));
    assert_eq!(value(&flags, "--socket"), world.socket().to_str());
}

#[test]
fn a_wrong_file_is_refused_in_the_managers_words() {
    let world = World::new();
    let file = file(&world, "http_addr = \"127.0.0.1:0\"\npool_sise = \"1gb\"\n");
    let err = refusal(&world, &["--config", &file]);
    assert!(err.contains(&format!("error: {file}:2: unknown key \"pool_sise\"")), "{err}");
}

#[test]
fn a_wrong_file_and_best_effort_serve_without_the_cache() {
    let world = World::new();
    let file = file(&world, "pool_sise = \"1gb\"\n");
    let output = run(&world, &["--config", &file, "--best-effort"]);
    assert_eq!(common::said(&output)["argv"], serde_json::json!(["serve", "m"]));
    assert!(text(&output).1.contains("OrbitKV: off"), "{}", text(&output).1);
}

#[test]
fn a_manager_that_no_run_started_is_not_said_to_be_without_http() {
    let world = World::new();
    let _manager = world.manager_alone();
    let unknown = run(&world, &[]);
    let (_, err) = text(&unknown);
    assert_eq!(unknown.status.code(), Some(0), "{err}");
    assert!(err.contains("HTTP address unknown, give it with --http-addr"), "{err}");
    let known = run(&world, &["--http-addr", &world.http_alone()]);
    let (_, err) = text(&known);
    assert!(err.contains("pool 4.0 GiB DRAM") && err.contains("(shared)"), "{err}");
    assert!(err.contains(&format!("http://{}/status", world.http_alone())), "{err}");
}
