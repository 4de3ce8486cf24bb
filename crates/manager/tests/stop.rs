//! How a manager ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]

mod support;

use orbitkv_wire::ToManager;
use std::io::Write;
use std::time::{Duration, Instant};
use support::{Engine, Manager, hello, wait_for};

#[test]
fn sigterm_ends_with_success_and_leaves_nothing() {
    for signal in ["-TERM", "-INT"] {
        let mut manager = Manager::start();
        let mut engine = Engine::start(&manager);
        engine.save(&[1]);
        engine.query(&[1]);
        manager.signal(signal);
        assert!(engine.ends());
        assert_eq!(manager.wait().code(), Some(0), "{}", manager.log());
        let left: Vec<_> =
            std::fs::read_dir(manager.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        let left: Vec<_> = left.iter().filter(|name| *name != "log" && !is_hold_socket(name)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// A build with hold points listens on `PID.sock`.
fn is_hold_socket(name: &std::ffi::OsStr) -> bool {
    name.to_str().and_then(|name| name.strip_suffix(".sock")).is_some_and(|pid| pid.parse::<u32>().is_ok())
}

#[test]
fn a_stuck_client_does_not_hold_the_end() {
    let mut manager = Manager::start();
    let mut stuck = Engine::with_hello(&manager.socket, &hello(2, 2, 1));
    // Replies fill the socket and some of the manager's queue, and are never read.
    let frames = stuck.frame(&ToManager::Restore { first: 0, pages: 1 }, 999, 0).repeat(1000);
    for _ in 0..5 {
        stuck.stream.write_all(&frames).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    manager.signal("-TERM");
    assert_eq!(manager.wait().code(), Some(0));
    println!("ended after {:?}", start.elapsed());
    assert!(stuck.ends());
}

#[test]
fn health_says_that_it_drains() {
    let mut manager = Manager::start();
    let mut stuck = Engine::start(&manager);
    let frames = stuck.frame(&ToManager::Restore { first: 0, pages: 1 }, 999, 0).repeat(1000);
    for _ in 0..5 {
        stuck.stream.write_all(&frames).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    manager.signal("-TERM");
    // The stuck client keeps it draining for a second.
    let health = wait_for("the drain", || Some(manager.http("GET", "/health", "")).filter(|h| h.0 != 200));
    assert_eq!(health, (503, "draining".into()));
    assert!(!manager.socket.exists(), "engines wait for the next manager already");
    assert_eq!(manager.wait().code(), Some(0));
}
