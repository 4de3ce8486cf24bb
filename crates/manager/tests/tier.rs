//! A slower tier behind the pool of a real manager.

mod support;

use orbitkv_wire::{Kind, QueryRule, ToClient, ToManager};
use serde_json::Value;
use support::{Engine, Manager, hash, page, wait_for};

/// A manager whose tier takes that long, and an engine.
fn start(delay_ms: &str, more: &[&str]) -> (Manager, Engine) {
    let size = if more.contains(&"--memory-tier-size") { &[][..] } else { &["--memory-tier-size", "64mib"] };
    let flags = [size, &["--memory-tier-delay-ms", delay_ms], more].concat();
    let manager = Manager::start_with(&flags);
    let engine = Engine::start(&manager);
    (manager, engine)
}

fn tier(manager: &Manager) -> Value {
    manager.status()["tier"].clone()
}

/// Waits until the tier holds so many pages, then empties memory.
fn drop_memory(manager: &Manager, pages: u64) {
    wait_for("pages in the tier", || (tier(manager)["pages"] == pages).then_some(()));
    assert_eq!(manager.http("POST", "/cache/memory/drop", "Content-Length: 0\r\n").0, 200);
    assert_eq!(manager.status()["pool"]["used_bytes"], 0);
}

#[test]
fn what_left_memory_comes_back_byte_for_byte() {
    let (manager, mut engine) = start("5", &[]);
    engine.save_checked(&[1, 2, 3]);
    drop_memory(&manager, 3);
    let (operation, parts) = engine.query(&[1, 2, 3, 4]);
    assert_eq!(engine.restore(operation, &parts), [page(1), page(2), page(3)]);
    wait_for("everything is given back", || (manager.held_bytes() == 0).then_some(()));
    let metrics = manager.metrics();
    assert_eq!(metrics["orbitkv_tier_block_requests_total{tier=\"memory\"}"], 3.0);
    assert_eq!(metrics["orbitkv_tier_block_requests_total{tier=\"miss\"}"], 1.0);
    // They are in memory again.
    assert_eq!(engine.query(&[1, 2, 3]).1.len(), 3);
    assert_eq!(manager.metrics()["orbitkv_tier_block_requests_total{tier=\"ram\"}"], 3.0);
}

#[test]
fn bytes_that_are_not_what_was_saved_are_a_miss() {
    let (manager, mut engine) = start("1", &[]);
    engine.save_checked(&[1]);
    engine.save(&[2]);
    drop_memory(&manager, 2);
    assert!(engine.query(&[2]).1.is_empty(), "its checksum is a lie");
    assert_eq!(engine.query(&[1]).1.len(), 1, "control");
    let counters = &manager.status()["counters"];
    assert_eq!((&counters["failed_reads"], &counters["read_pages"]), (&1.into(), &1.into()));
    assert_eq!(tier(&manager)["pages"], 1, "it is never tried again");
}

#[test]
fn a_deadline_ends_the_wait_and_the_bytes_stay_charged_until_the_read_has_ended() {
    let (manager, mut engine) = start("1500", &[]);
    engine.save_checked(&[1]);
    drop_memory(&manager, 1);
    let operation = engine.next_operation();
    engine.send(
        &ToManager::Query { group: 0, deadline_ms: 20, rule: QueryRule::default(), hashes: &[hash(1)] },
        operation,
        0,
    );
    assert!(matches!(engine.expect(Kind::Operation).body(), ToClient::Waiting));
    assert!(matches!(engine.expect(Kind::Operation).body(), ToClient::Miss(_)));
    let status = manager.status();
    assert!(status["query"]["reserved_bytes_by_phase"]["preparing"].as_u64() > Some(0), "{status}");
    assert_eq!(status["query"]["operations"]["draining"], 1, "{status}");
    wait_for("the read lands", || (manager.held_bytes() == 0).then_some(()));
    assert_eq!(engine.query(&[1]).1.len(), 1, "from memory: nothing was read in vain");
}

#[test]
fn the_timeout_and_the_limit_of_batches_leave_the_prefix() {
    let limits = ["--query-read-batch", "16kib", "--query-read-max-batches", "2"];
    let (manager, mut engine) = start("5", &limits);
    engine.save_checked(&[1, 2, 3, 4]);
    drop_memory(&manager, 4);
    assert_eq!(engine.query(&[1, 2, 3, 4]).1.len(), 2, "a batch is one page here");
    let (manager, mut engine) =
        start("500", &["--query-read-batch", "16kib", "--query-read-timeout-ms", "950"]);
    engine.save_checked(&[1, 2, 3]);
    drop_memory(&manager, 3);
    assert_eq!(engine.query(&[1, 2, 3]).1.len(), 1, "the second batch would have ended too late");
}

#[test]
fn two_engines_share_a_read_and_one_may_leave() {
    let (manager, mut one) = start("1000", &[]);
    one.save_checked(&[1, 2]);
    drop_memory(&manager, 2);
    let mut two = Engine::with_hello(&manager.socket, &support::hello(2, 2, 1));
    let operation = one.next_operation();
    one.send(
        &ToManager::Query {
            group: 0,
            deadline_ms: 0,
            rule: QueryRule::default(),
            hashes: &[hash(1), hash(2)],
        },
        operation,
        0,
    );
    assert!(matches!(one.expect(Kind::Operation).body(), ToClient::Waiting));
    let other = two.next_operation();
    two.send(
        &ToManager::Query {
            group: 0,
            deadline_ms: 0,
            rule: QueryRule::default(),
            hashes: &[hash(1), hash(2)],
        },
        other,
        0,
    );
    assert!(matches!(two.expect(Kind::Operation).body(), ToClient::Waiting));
    assert_eq!(manager.status()["counters"]["coalesced_reads"], 2);
    drop(one);
    let answer = two.expect(Kind::Operation);
    let ToClient::Ready { parts, .. } = answer.body() else { panic!("not ready") };
    let parts = parts.to_vec();
    assert_eq!(two.restore(other, &parts), [page(1), page(2)]);
    assert_eq!(manager.status()["counters"]["read_pages"], 2, "each was read once");
}

#[test]
fn a_full_tier_drops_its_oldest_and_reset_empties_it() {
    let (manager, mut engine) = start("1", &["--memory-tier-size", "35000"]);
    for block in 1..=5 {
        engine.save_checked(&[block]);
        wait_for("the write", || (tier(&manager)["write_queue_pending"] == 0).then_some(()));
    }
    drop_memory(&manager, 3);
    assert!(engine.query(&[2]).1.is_empty());
    assert_eq!(engine.query(&[3]).1.len(), 1);
    engine.send(&ToManager::Reset, 0, 0);
    wait_for("reset", || (tier(&manager)["pages"] == 0).then_some(()));
    assert!(engine.query(&[4]).1.is_empty());
}
