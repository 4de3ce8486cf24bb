//! Bytes that are no frames, and frames that may not come: they end their own connection, nobody else's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]

mod support;

use orbitkv_wire::{Header, Kind, ToManager, VERSION};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use support::{Client, Engine, Manager, hello, wait_for};
use zerocopy::IntoBytes;

/// Bytes of a million frames without payload.
const FLOOD_BYTES: u64 = 64_000_000;

/// Sends bytes as the first ones of a connection; the text of the rejection.
fn rejected(manager: &Manager, bytes: &[u8]) -> String {
    let mut client = Client::connect(&manager.socket);
    client.stream.write_all(bytes).unwrap();
    let text = client.expect(Kind::Rejected).text().to_owned();
    assert!(client.ends());
    text
}

#[test]
fn what_is_no_frame_ends_its_connection_and_no_other() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    assert!(rejected(&manager, &[0x5a; 200]).contains("magic"));

    let header = Header::new(Kind::Hello, 0, 0, 0, 0, b"{}").unwrap();
    let mut newer = header;
    newer.version = (VERSION + 1).into();
    assert!(rejected(&manager, newer.as_bytes()).contains(&format!("protocol version {}", VERSION + 1)));

    let mut long = header;
    long.length = u32::MAX.into();
    assert!(rejected(&manager, long.as_bytes()).contains("4294967295"));

    let mut torn = header.as_bytes().to_vec();
    torn.extend_from_slice(b"[]");
    assert!(rejected(&manager, &torn).contains("checksum"));

    let mut unknown = header;
    unknown.kind = 99.into();
    assert!(rejected(&manager, unknown.as_bytes()).contains("kind 99"));

    engine.save(&[1]);
    assert_eq!(engine.query(&[1]).1.len(), 1, "the engine was served all along");
}

#[test]
fn a_hello_that_cannot_be_is_rejected_with_its_reason() {
    let manager = Manager::start();
    let greet = |change: &dyn Fn(&mut orbitkv_wire::Hello)| {
        let mut hello = hello(1, 1, 1);
        change(&mut hello);
        Client::connect(&manager.socket).greet(&hello).unwrap_err()
    };
    assert!(greet(&|h| h.client = "xyz".into()).contains("client is \"xyz\""));
    assert!(greet(&|h| h.namespace = "00".into()).contains("64 hexadecimal digits"));
    assert!(greet(&|h| h.groups[0].rule = "window".into()).contains("\"window\""));
    assert!(greet(&|h| h.groups.clear()).contains("cache groups"), "the core's own checks arrive too");
    assert!(greet(&|h| h.world_size = 0).contains("world size"));
}

#[test]
fn the_first_frame_must_be_a_hello_and_only_the_first() {
    let manager = Manager::start();
    let mut early = Client::connect(&manager.socket);
    early.send(&ToManager::Reset, 0, 0);
    assert!(early.expect(Kind::Rejected).text().contains("must be Hello"));

    let mut engine = Engine::start(&manager);
    let json = hello(1, 1, 1).encode().unwrap();
    engine.send(&ToManager::Hello(&json), 0, 0);
    assert!(engine.expect(Kind::Refused).text().contains("second Hello"));
    assert!(engine.ends());
}

#[test]
fn a_foreign_session_or_epoch_in_the_header_ends_the_connection() {
    let manager = Manager::start();
    let mut first = Engine::start(&manager);
    first.save(&[1]);
    let mut second = Engine::with_hello(&manager.socket, &hello(2, 2, 1));
    second.session = first.session;
    second.send(&ToManager::Reset, 1, 0);
    let refused = second.expect(Kind::Refused);
    assert!(refused.text().contains("on the connection of session"), "{}", refused.text());
    assert!(second.ends());
    assert_eq!(first.query(&[1]).1.len(), 1, "the reset in another's name had no effect");

    let mut third = Engine::with_hello(&manager.socket, &hello(3, 3, 1));
    third.epoch += 1;
    third.send(&ToManager::Reset, 1, 0);
    assert!(third.expect(Kind::Refused).text().contains("epoch 2"));
    assert!(third.ends());
}

#[test]
fn a_message_of_the_wrong_shape_ends_the_connection() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    let mut bytes = Vec::new();
    orbitkv_wire::write_frame(&mut bytes, Kind::Attest, (engine.session, engine.epoch, 0, 0), &[7]).unwrap();
    engine.stream.write_all(&bytes).unwrap();
    assert!(engine.expect(Kind::Refused).text().contains("Attest"));
    assert!(engine.ends());
}

#[test]
fn silence_before_the_hello_is_closed_and_after_it_is_not() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    let half = engine.frame(&ToManager::Reset, 9, 0);
    engine.stream.write_all(&half[..20]).unwrap();
    let mut silent = Client::connect(&manager.socket);
    silent.stream.write_all(&half[..20]).unwrap();
    let start = Instant::now();
    assert!(silent.ends());
    assert!(start.elapsed().as_millis() >= 4_000, "it has some seconds to say hello");
    let closed = manager.metrics()["orbitkv_connections_closed_total{reason=\"no_hello\"}"];
    assert!((closed - 1.0).abs() < 0.1);
    // The engine's frame is completed late: an engine may be stopped for any time.
    engine.stream.write_all(&half[20..]).unwrap();
    assert_eq!(engine.expect(Kind::ResetDone).operation, 9);
}

#[test]
fn a_million_tiny_frames_do_not_starve_the_others() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1]);
    let mut flood = Engine::with_hello(&manager.socket, &hello(2, 2, 1));
    // The segment that the flood's own save needs at the end is there before memory is compared.
    flood.save(&[3]);
    let before = manager.peak_memory_bytes();
    let frames = flood.frame(&ToManager::Abort(&[]), 0, 0).repeat(1000);
    let done = Arc::new(AtomicBool::new(false));
    let finished = Arc::clone(&done);
    let flooding = std::thread::spawn(move || {
        for _ in 0..1000 {
            flood.stream.write_all(&frames).unwrap();
        }
        finished.store(true, Ordering::Release);
        flood
    });
    let mut served = 0;
    while !done.load(Ordering::Acquire) {
        let (operation, parts) = engine.query(&[1]);
        assert_eq!(parts.len(), 1);
        engine.restore(operation, &parts);
        served += 1;
    }
    let mut flood = flooding.join().unwrap();
    assert!(served > 10, "{served} requests were served beside the flood");
    flood.save(&[2]);
    let received = wait_for("all frames", || {
        let count = manager.metrics()["orbitkv_frames_received_total{kind=\"Abort\"}"];
        (count >= 1e6).then_some(count)
    });
    assert!(received >= 1e6);
    let grown = manager.peak_memory_bytes() - before;
    assert!(grown < FLOOD_BYTES / 4, "{grown} bytes more for frames that were all answered");
}

#[test]
fn a_client_that_reads_nothing_is_dropped() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1]);
    let mut slow = Engine::with_hello(&manager.socket, &hello(2, 2, 1));
    // Each is answered by a refusal of some hundred bytes, none of which is read.
    let frames = slow.frame(&ToManager::Restore { first: 0, pages: 1 }, 999, 0).repeat(1000);
    let ended = (0..1000).any(|_| slow.stream.write_all(&frames).is_err());
    assert!(ended, "the manager closed the connection");
    wait_for("the drop to be counted", || {
        let dropped = manager.metrics()["orbitkv_connections_closed_total{reason=\"slow_reader\"}"];
        (dropped >= 1.0).then_some(())
    });
    assert_eq!(engine.query(&[1]).1.len(), 1);
}
