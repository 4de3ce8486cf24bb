//! Whoever may not be served, and whoever misbehaves while served: a clear answer or a closed connection
//! for them, and an engine beside them that notices nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]

mod support;

use orbitkv_wire::{Header, Kind, ToManager, VERSION};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::set_thread_res_uid;
use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use support::{Beside, Client, Engine, Manager, hello, wait_for};
use zerocopy::IntoBytes;

/// The user `nobody` of most systems; any number but ours would do.
const NOBODY: u32 = 65_534;
/// Connections that a manager serves.
const MOST: usize = 1024;

/// Runs `work` in a thread of another user. The kernel notes the user of the thread that connects.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let nobody = rustix::fs::Uid::from_raw(NOBODY);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            set_thread_res_uid(nobody, nobody, nobody).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

fn open_to_all(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn another_user_is_kept_out_by_the_socket_and_by_its_credentials() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let manager = Manager::start();
    let beside = Beside::start(&manager);
    // The directory is whoever's; the socket's own mode is the manager's work.
    open_to_all(manager.dir.path(), 0o755);
    let refused = as_nobody(|| UnixStream::connect(&manager.socket).unwrap_err());
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);

    open_to_all(&manager.socket, 0o666);
    let mut client = as_nobody(|| Client::connect(&manager.socket));
    let text = client.expect(Kind::Rejected).text().to_owned();
    assert!(text.contains("serves user 0 only") && text.contains("65534"), "{text}");
    assert!(client.ends());
    let rejected = manager.metrics()["orbitkv_connections_closed_total{reason=\"rejected\"}"];
    assert!((rejected - 1.0).abs() < 0.1);
    // Its hello is not even read: no session, nothing to share.
    let mut client = as_nobody(|| Client::connect(&manager.socket));
    let json = hello(7, 7, 1).encode().unwrap();
    let hello = client.frame(&ToManager::Hello(&json), 0, 0);
    // It may be closed by then.
    let _ = client.stream.write_all(&hello);
    assert!(client.expect(Kind::Rejected).text().contains("65534"));
    assert_eq!(manager.status()["sessions"]["open"], 1, "the engine beside it");
    beside.stop();
    // The control: our own user through the same socket.
    Client::connect(&manager.socket).greet(&support::hello(8, 8, 1)).unwrap();
}

/// Changed frames of a session, with what the manager must say of each.
fn bad_frames(engine: &Engine) -> Vec<(Vec<u8>, &'static str)> {
    let good = engine.frame(&ToManager::Reset, 5, 0);
    let changed = |at: usize, with: &[u8]| {
        let mut frame = good.clone();
        frame[at..at + with.len()].copy_from_slice(with);
        frame
    };
    let mut torn = Header::new(Kind::Query, engine.session, engine.epoch, 5, 0, &[1; 40]).unwrap();
    torn.length = 41.into();
    vec![
        (vec![0x5a; 300], "magic"),
        (changed(4, &(VERSION + 1).to_le_bytes()), "protocol version"),
        (changed(6, &[99, 0]), "kind 99"),
        (changed(32, &u32::MAX.to_le_bytes()), "4294967295"),
        (changed(32, &((1_u32 << 20) + 1).to_le_bytes()), "1048577"),
        (changed(36, &[1, 2, 3, 4]), "checksum"),
        ([torn.as_bytes(), &[1; 41]].concat(), "checksum"),
        (changed(6, &(Kind::Welcome as u16).to_le_bytes()), "checksum"),
    ]
}

#[test]
fn a_session_that_sends_garbage_ends_alone_and_keeps_its_custody() {
    let manager = Manager::start();
    let beside = Beside::start(&manager);
    let cases = bad_frames(&Engine::start(&manager)).len();
    for case in 0..cases {
        let number = case as u128 + 100;
        let mut engine = Engine::with_hello(&manager.socket, &hello(number, number, 1));
        engine.reserve(&[case as u64]);
        let (bytes, want) = bad_frames(&engine).swap_remove(case);
        engine.stream.write_all(&bytes).unwrap();
        let refused = engine.expect(Kind::Refused);
        assert!(refused.text().contains(want), "case {case}: {}", refused.text());
        assert!(engine.ends());
        // Its process lives and may still write: a bad frame is no evidence that it does not.
        wait_for("the quarantine", || {
            let status = manager.status();
            (status["counters"]["quarantined_slots"] == case as u64 + 1).then_some(())
        });
        beside.is_served();
    }
    let bytes = manager.status()["pool"]["quarantined_bytes"].as_u64().unwrap();
    assert!(bytes >= (cases * support::PAGE_BYTES) as u64, "{bytes} bytes in quarantine");
    beside.stop();
}

/// Lets this process, and a manager started after, have that many descriptors; false if it may not.
fn allow_descriptors(count: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    let enough = |value: Option<u64>| value.is_none_or(|value| value >= count);
    if enough(limit.current) {
        return true;
    }
    enough(limit.maximum)
        && setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: limit.maximum }).is_ok()
}

#[test]
fn connections_beyond_the_limit_are_told_so_and_silent_ones_make_room_again() {
    if !allow_descriptors(4 * MOST as u64) {
        println!("skipped: the limit on open files is too low for {MOST} connections");
        return;
    }
    let manager = Manager::start();
    let beside = Beside::start(&manager);
    let json = hello(1, 1, 1).encode().unwrap();
    // Each says half a hello and falls silent; the engine beside has one place.
    let silent: Vec<Client> = (1..MOST)
        .map(|_| {
            let mut client = Client::connect(&manager.socket);
            let frame = client.frame(&ToManager::Hello(&json), 0, 0);
            client.stream.write_all(&frame[..frame.len() / 2]).unwrap();
            client
        })
        .collect();
    let mut late = Client::connect(&manager.socket);
    let text = late.expect(Kind::Rejected).text().to_owned();
    assert!(text.contains("1024 connections are open"), "{text}");
    assert!(late.ends());
    beside.is_served();
    for mut client in silent {
        assert!(client.ends());
    }
    let closed = manager.metrics()["orbitkv_connections_closed_total{reason=\"no_hello\"}"];
    assert!((closed - (MOST - 1) as f64).abs() < 0.1, "{closed} were closed");
    let mut engine = Engine::start(&manager);
    engine.save(&[1]);
    assert_eq!(engine.query(&[1]).1.len(), 1);
    beside.stop();
}
