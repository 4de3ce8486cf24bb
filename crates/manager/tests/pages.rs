//! Pages through a real manager: saved, found, restored, dropped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "tests")]

mod support;

use orbitkv_wire::{Kind, ToManager};
use support::{Engine, Manager, hash, hello, page, wait_for};

#[test]
fn saved_pages_come_back_byte_for_byte() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    assert!(engine.query(&[1, 2, 3]).1.is_empty(), "nothing was saved yet");
    engine.save(&[1, 2, 3]);
    let (operation, parts) = engine.query(&[1, 2, 3, 4]);
    assert_eq!(parts.iter().map(|part| part.crc.get()).collect::<Vec<_>>(), [1001, 1002, 1003]);
    let status = manager.status();
    assert_eq!(status["query"]["leases"], 1);
    assert!(status["query"]["reserved_bytes"].as_u64().unwrap() > 0);
    assert!(status["query"]["oldest_lease_seconds"].as_f64().is_some());
    let restored = engine.restore(operation, &parts);
    assert_eq!(restored, [page(1), page(2), page(3)]);
    assert_ne!(restored[0], page(2), "the pages differ from each other");
    wait_for("the lease to end", || (manager.held_bytes() == 0).then_some(()));
}

#[test]
fn another_process_view_of_the_pool_holds_the_same_bytes() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[7]);
    drop(engine);
    // Same namespace, another instance: its maps are new, the pages are not.
    let mut other = Engine::with_hello(&manager.socket, &hello(2, 2, 1));
    let (operation, parts) = other.query(&[7]);
    assert_eq!(other.restore(operation, &parts), [page(7)]);
}

#[test]
fn another_namespace_sees_nothing() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[7]);
    assert_eq!(engine.query(&[7]).1.len(), 1);
    let mut stranger = hello(2, 2, 1);
    stranger.namespace = "cd".repeat(32);
    let mut other = Engine::with_hello(&manager.socket, &stranger);
    assert!(other.query(&[7]).1.is_empty());
}

#[test]
fn a_reset_forgets_and_says_so() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1]);
    engine.send(&ToManager::Reset, 77, 0);
    assert_eq!(engine.expect(Kind::ResetDone).operation, 77);
    assert!(engine.query(&[1]).1.is_empty());
}

#[test]
fn a_forgotten_page_is_a_miss_and_its_neighbour_is_not() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1]);
    engine.save(&[2]);
    engine.send(&ToManager::Forget { group: 0, hashes: &[hash(1)] }, 0, 0);
    assert!(engine.query(&[1]).1.is_empty());
    assert_eq!(engine.query(&[2]).1.len(), 1);
}

#[test]
fn everything_drains_after_a_disconnect_in_mid_operation() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1, 2]);
    engine.query(&[1]);
    assert!(manager.held_bytes() > 0);
    drop(engine);
    wait_for("the lease to drain", || (manager.held_bytes() == 0).then_some(()));
    assert_eq!(manager.status()["sessions"]["open"], 0);
}

#[test]
fn an_empty_pool_gives_its_memory_back_and_tells_who_maps_it() {
    let manager = Manager::start_with(&["--pool-size", "1mib", "--segment-size", "512kib"]);
    let mut engine = Engine::start(&manager);
    // More than one segment holds: 14 KiB a slot, 36 slots a segment.
    for i in 0..40 {
        engine.save(&[i]);
    }
    assert_eq!(engine.query(&[39]).1.len(), 1);
    assert_eq!((manager.status()["pool"]["segments"].as_u64(), engine.segments()), (Some(2), 2));
    // Another shape of pages needs the room that the dropped ones had.
    engine.send(&ToManager::Reset, 1, 0);
    engine.expect(Kind::ResetDone);
    wait_for("the pages to go", || (manager.status()["pool"]["pages"] == 0).then_some(()));
    let mut shape = hello(2, 2, 1);
    shape.namespace = "cd".repeat(32);
    shape.groups[0].page_bytes = 20_000;
    let mut other = Engine::with_hello(&manager.socket, &shape);
    let parts = other.reserve(&[1]);
    assert!(manager.status()["pool"]["bytes"].as_u64().unwrap() <= 1 << 20);
    // The first engine is told.
    engine.expect(Kind::SegmentGone);
    assert_eq!(engine.segments(), 1);
    assert!(parts[0].slot.segment.get() > 1, "segment numbers are not used again");
}
