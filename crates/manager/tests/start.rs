//! How a manager starts, and how it refuses to.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]

mod support;

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::{fs, net::TcpListener};
use support::{Client, Manager, command, hello, run_to_end, wait_for};

#[test]
fn a_second_manager_is_refused_and_names_the_first() {
    let manager = Manager::start();
    let second = run_to_end(manager.dir.path(), &["--http-addr", "off"]);
    assert_eq!(second.code, Some(3), "{}", second.stderr);
    let text = format!("another manager (pid {}) serves on", manager.pid());
    assert!(second.stderr.contains(&text), "{}", second.stderr);
    Client::connect(&manager.socket).greet(&hello(1, 1, 1)).expect("the first one serves on");
}

#[test]
fn bad_values_are_named_and_nothing_is_started() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["--pool-size", "4 apples"], &["--pool-size", "4 apples", "4gb"]),
        (&["--pool-size", "0"], &["--pool-size", "zero"]),
        (&["--pool-size", "101%"], &["--pool-size", "101%", "1% to 100%"]),
        (&["--pool-size", "1kb"], &["--pool-size", "1000", "1mib"]),
        (&["--pool-size", "900tb"], &["--pool-size", "900000000000", "available", "choose at most"]),
        (&["--pool-size", "64mib", "--query-budget", "65mib"], &["--query-budget", "68157440", "67108864"]),
        (
            &["--pool-size", "64mib", "--query-budget", "1mib", "--query-instance-budget", "2mib"],
            &["--query-instance-budget", "2097152", "1048576"],
        ),
        (&["--query-budget", "0"], &["--query-budget", "'0'", "zero", "at least one byte"]),
        (&["--query-instance-budget", "0gb"], &["--query-instance-budget", "'0gb'", "zero"]),
        (&["--segment-size", "12345"], &["--segment-size", "12345", "multiple"]),
        (&["--http-addr", "localhost"], &["--http-addr", "localhost", "127.0.0.1:9464"]),
        (&["--log-level", "loud"], &["--log-level", "loud", "info"]),
        (&["--log-format", "xml"], &["--log-format", "xml", "json"]),
        (&["--no-such-flag"], &["--no-such-flag"]),
    ];
    for (flags, parts) in cases {
        let dir = tempfile::tempdir().unwrap();
        let exit = run_to_end(dir.path(), flags);
        assert_eq!(exit.code, Some(2), "{flags:?}: {}", exit.stderr);
        for part in *parts {
            assert!(exit.stderr.contains(part), "{flags:?}: no {part} in: {}", exit.stderr);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{flags:?} left something");
    }
}

#[test]
fn a_taken_http_address_is_named_before_anything_is_made() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    // In a directory that does not exist yet, so that even making it would show.
    let exit = run_to_end(&dir.path().join("own"), &["--pool-size", "16mib", "--http-addr", &address]);
    assert_eq!(exit.code, Some(2));
    let said = format!("--http-addr {address}");
    assert!(exit.stderr.contains(&said) && exit.stderr.contains("choose another"), "{}", exit.stderr);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_second_manager_with_the_same_http_address_still_names_the_first() {
    let manager = Manager::start();
    let second = run_to_end(manager.dir.path(), &["--http-addr", &manager.http]);
    assert_eq!(second.code, Some(3), "{}", second.stderr);
    assert!(second.stderr.contains(&format!("pid {}", manager.pid())), "{}", second.stderr);
}

#[test]
fn a_socket_directory_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    // Ours, closed to others, and on a file system that refuses new files even to the superuser.
    let process = format!("/proc/{}", std::process::id());
    for (place, reason) in [(file.as_path(), "create the directory"), (Path::new(&process), "lock")] {
        let exit = run_to_end(place, &["--pool-size", "16mib", "--http-addr", "off"]);
        assert_eq!(exit.code, Some(2), "{}", exit.stderr);
        for part in [place.to_str().unwrap(), reason, "choose a --socket"] {
            assert!(exit.stderr.contains(part), "no {part} in: {}", exit.stderr);
        }
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_socket_path_that_is_too_long_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("x".repeat(100));
    let exit = run_to_end(&long, &["--pool-size", "16mib", "--http-addr", "off"]);
    assert_eq!(exit.code, Some(2), "{}", exit.stderr);
    let bytes = format!("has {} bytes", long.join("manager.sock").as_os_str().len());
    assert!(exit.stderr.contains(&bytes) && exit.stderr.contains("at most 107"), "{}", exit.stderr);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_ready_file_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--pool-size", "16mib", "--http-addr", "off", "--ready-file", "/nowhere/ready.json"];
    let exit = run_to_end(dir.path(), &flags);
    assert_eq!(exit.code, Some(2));
    assert!(exit.stderr.contains("--ready-file /nowhere/ready.json"), "{}", exit.stderr);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_socket_of_a_dead_manager_is_replaced() {
    let dir = Manager::start().crash();
    let left = fs::symlink_metadata(dir.path().join("manager.sock")).unwrap();
    assert!(left.file_type().is_socket(), "a crash leaves the socket");
    let manager = Manager::start_in(dir, &["--pool-size", "16mib"]);
    Client::connect(&manager.socket).greet(&hello(1, 1, 1)).unwrap();
}

#[test]
fn a_socket_that_somebody_serves_without_a_lock_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let _listener = UnixListener::bind(dir.path().join("manager.sock")).unwrap();
    let exit = run_to_end(dir.path(), &["--pool-size", "16mib", "--http-addr", "off"]);
    assert_eq!(exit.code, Some(3));
    assert!(exit.stderr.contains(&format!("pid {}", std::process::id())), "{}", exit.stderr);
    assert!(dir.path().join("manager.sock").exists());
}

#[test]
fn the_socket_is_for_its_user_alone() {
    let manager = Manager::start();
    let mode = fs::metadata(&manager.socket).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o600);
}

#[test]
fn log_lines_are_json_when_asked_for() {
    let manager = Manager::start_with(&["--pool-size", "16mib", "--log-format", "json"]);
    let ready = wait_for("the ready line", || {
        let log = manager.log();
        log.lines().find(|line| line.contains("\"ready\"")).map(str::to_owned)
    });
    let line: serde_json::Value = serde_json::from_str(&ready).unwrap();
    assert_eq!(line["pool_bytes"], 16 << 20);
    assert_eq!(line["http"], manager.http.as_str());
}

#[test]
fn the_version_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let output = command(dir.path()).arg("--version").output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains(env!("CARGO_PKG_VERSION")));
}
