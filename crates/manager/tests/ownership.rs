//! Who owns the bytes of queries, through a real manager: budgets, versions, lost connections, several workers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use orbitkv_wire::{CommitItem, Hash, Hello, HelloRole, Kind, Part, QueryRule, Resume, ToClient, ToManager};
use serde_json::Value;
use support::{Client, Engine, Manager, hash, hello, page, wait_for};

/// A page of these tests and the header in front of it, in whole 4 KiB.
const SLOT_BYTES: u64 = 16_384;

fn hashes(blocks: std::ops::RangeInclusive<u64>) -> Vec<Hash> {
    blocks.map(hash).collect()
}

/// Sends a query and gives the first answer.
fn ask(client: &mut Client, operation: u64, revision: u32, hashes: &[Hash]) -> Answer {
    let query = ToManager::Query { group: 0, deadline_ms: 0, rule: QueryRule::default(), hashes };
    client.send(&query, operation, revision);
    answer(client)
}

#[derive(Debug, PartialEq)]
enum Answer {
    Waiting,
    Ready(Vec<Part>),
    Miss,
    Refused(String),
}

fn answer(client: &mut Client) -> Answer {
    loop {
        let message = client.next().expect("an answer");
        match message.body() {
            ToClient::Waiting => return Answer::Waiting,
            ToClient::Ready { parts, .. } => return Answer::Ready(parts.to_vec()),
            ToClient::Miss(_) => return Answer::Miss,
            ToClient::Refused { text } => return Answer::Refused(text.to_owned()),
            _ => {}
        }
    }
}

fn pages(answer: Answer) -> usize {
    match answer {
        Answer::Ready(parts) => parts.len(),
        other => panic!("{other:?}"),
    }
}

fn refused(answer: Answer) -> String {
    match answer {
        Answer::Refused(text) => text,
        other => panic!("{other:?}"),
    }
}

fn query_status(manager: &Manager) -> Value {
    manager.status()["query"].clone()
}

fn reserved_slots(manager: &Manager) -> u64 {
    query_status(manager)["reserved_bytes"].as_u64().unwrap() / SLOT_BYTES
}

#[test]
fn neither_budget_is_ever_exceeded_and_waiters_come_as_bytes_come_free() {
    let manager = Manager::start_with(&["--query-budget", "98304", "--query-instance-budget", "65536"]);
    let mut one = Engine::start(&manager);
    one.save(&[1, 2, 3, 4]);
    let mut two = Engine::with_hello(&manager.socket, &hello(2, 2, 1));
    let mut three = Engine::with_hello(&manager.socket, &hello(3, 3, 1));
    assert_eq!(pages(ask(&mut one, 101, 1, &hashes(1..=4))), 4);
    assert_eq!(ask(&mut one, 102, 1, &hashes(1..=2)), Answer::Waiting, "its own budget is used up");
    assert_eq!(pages(ask(&mut two, 101, 1, &hashes(1..=2))), 2, "another one's is not");
    assert_eq!(ask(&mut three, 101, 1, &hashes(1..=1)), Answer::Waiting, "all of it is used up");
    assert_eq!(reserved_slots(&manager), 6);
    one.send(&ToManager::Release, 101, 1);
    assert_eq!(pages(answer(&mut one)), 2);
    assert_eq!(pages(answer(&mut three)), 1);
    assert_eq!(reserved_slots(&manager), 5);
    let status = query_status(&manager);
    assert_eq!(status["peak_reserved_bytes"], 6 * SLOT_BYTES);
    assert_eq!(status["peak_speculative_reserved_bytes"], 0);
    assert_eq!(manager.status()["counters"]["budget_waits"], 2);
    let metrics = manager.metrics();
    let value = |name: &str| metrics[&format!("orbitkv_query_{name}")];
    assert_eq!(value("budget_wait_seconds_count"), 2.0);
    assert!(value("budget_wait_seconds_sum") > 0.0);
    assert_eq!(value("reserved_peak_bytes"), (6 * SLOT_BYTES) as f64);
    assert_eq!(value("speculative_reserved_peak_bytes"), 0.0);
}

#[test]
fn a_newer_version_replaces_an_older_one_and_ended_names_stay_ended() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1, 2, 3]);
    assert_eq!(pages(ask(&mut engine, 101, 1, &hashes(1..=3))), 3);
    assert_eq!(pages(ask(&mut engine, 101, 2, &hashes(1..=1))), 1);
    assert_eq!(reserved_slots(&manager), 1, "the older lease has ended");
    assert!(refused(ask(&mut engine, 101, 1, &hashes(1..=3))).contains("revision 1 is older than 2"));
    assert!(refused(ask(&mut engine, 101, 2, &hashes(1..=2))).contains("other parameters"));
    assert_eq!(pages(ask(&mut engine, 101, 2, &hashes(1..=1))), 1, "the same request: the same answer");
    assert_eq!(reserved_slots(&manager), 1, "and no second charge");
    engine.send(&ToManager::Release, 101, 2);
    assert!(refused(ask(&mut engine, 101, 3, &hashes(1..=1))).contains("has ended"));
    assert!(refused(ask(&mut engine, 100, 1, &hashes(1..=1))).contains("has ended"));
    assert!(refused(ask(&mut engine, 102, 1, &[])).contains("0 hashes"));
    // An operation of one session means nothing in another.
    assert_eq!(pages(ask(&mut engine, 103, 1, &hashes(1..=1))), 1);
    let mut other = Engine::with_hello(&manager.socket, &hello(2, 2, 1));
    other.send(&ToManager::Restore { first: 0, pages: 1 }, 103, 1);
    assert!(refused(answer(&mut other)).contains("no such operation"));
    assert_eq!(manager.held_bytes(), SLOT_BYTES + 1, "the lease of its owner, untouched");
}

#[test]
fn a_part_of_a_lease_counts_as_the_pages_it_has_and_others_are_refused() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1, 2, 3]);
    assert_eq!(pages(ask(&mut engine, 101, 1, &hashes(1..=3))), 3);
    let restored = || manager.metrics()["orbitkv_load_pages_total"];
    for (first, pages) in [(2, 2), (3, 1), (0, 0)] {
        engine.send(&ToManager::Restore { first, pages }, 101, 1);
        let text = refused(answer(&mut engine));
        let named = format!("restore of {pages} pages from page {first} on, 3 are leased");
        assert!(text.contains(&named), "{text}");
    }
    assert_eq!(restored(), 0.0);
    for _ in 0..2 {
        engine.send(&ToManager::Restore { first: 1, pages: 2 }, 101, 1);
    }
    engine.send(&ToManager::Restore { first: 0, pages: 3 }, 101, 1);
    assert!(refused(answer(&mut engine)).contains("other parameters"), "not the repetition, the change");
    assert_eq!(restored(), 2.0);
    let of_all = query_status(&manager)["reserved_bytes_by_phase"]["restoring"].clone();
    assert_eq!(of_all, 3 * SLOT_BYTES, "the whole lease stays");
    let session = engine.session;
    engine.send(&ToManager::CopyDone { session, operation: 101, revision: 1 }, 0, 0);
    engine.send(&ToManager::Release, 101, 1);
    wait_for("its bytes", || (manager.held_bytes() == 0).then_some(()));
}

#[test]
fn a_lease_that_was_delivered_and_not_handed_out_ends_with_its_connection() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1, 2]);
    assert_eq!(pages(ask(&mut engine, 101, 1, &hashes(1..=2))), 2);
    assert_eq!(reserved_slots(&manager), 2);
    drop(engine);
    wait_for("its bytes", || (manager.held_bytes() == 0).then_some(()));
}

#[test]
fn a_restore_outlives_its_connection_until_the_process_says_that_its_copies_ended() {
    let manager = Manager::start();
    let mut engine = Engine::start(&manager);
    engine.save(&[1, 2]);
    assert_eq!(pages(ask(&mut engine, 101, 1, &hashes(1..=2))), 2);
    engine.send(&ToManager::Restore { first: 0, pages: 2 }, 101, 1);
    let session = engine.session;
    drop(engine);
    wait_for("the session to end", || (manager.status()["sessions"]["open"] == 0).then_some(()));
    assert_eq!(query_status(&manager)["reserved_bytes_by_phase"]["restoring"], 2 * SLOT_BYTES);
    let mut again = hello(1, 1, 2);
    again.resume = Some(Resume { session, copies_ended: true });
    let _engine = Engine::with_hello(&manager.socket, &again);
    wait_for("its bytes", || (manager.held_bytes() == 0).then_some(()));
}

/// One of three sessions of an engine with two ranks that share one shard.
fn seat(manager: &Manager, client: u128, role: HelloRole, rank: u16) -> Client {
    let hello = Hello { role, rank, world_size: 2, ..hello(client, 9, 1) };
    let mut client = Client::connect(&manager.socket);
    client.greet(&hello).unwrap();
    client
}

#[test]
fn a_lease_with_several_workers_ends_with_the_last_of_them() {
    let manager = Manager::start();
    let mut scheduler = seat(&manager, 1, HelloRole::Scheduler, 0);
    let mut workers = [seat(&manager, 2, HelloRole::Worker, 0), seat(&manager, 3, HelloRole::Worker, 1)];
    for worker in &mut workers {
        worker.send(&ToManager::Attest { passed: true }, 0, 0);
    }
    while scheduler.expect(Kind::InstanceState).body() != (ToClient::InstanceState { active: true }) {}
    let mut operation = 0;
    let slot = wait_for("a slot", || {
        operation += 1;
        let hashes = hashes(1..=1);
        let reserve = ToManager::Reserve { group: 0, parent: None, first_depth: 0, hashes: &hashes };
        scheduler.send(&reserve, operation, 1);
        let granted = scheduler.expect(Kind::Granted);
        let ToClient::Granted(body) = granted.body() else { panic!("not granted") };
        body.parts.first().map(|part| part.slot)
    });
    workers[0].expect(Kind::Segment);
    workers[0].write_page(&slot, &page(1));
    let item = CommitItem { slot, hash: hash(1), crc: 1.into() };
    workers[0].send(&ToManager::Commit(&[item]), 0, 0);
    wait_for("the page", || (manager.status()["pool"]["pages"] == 1).then_some(()));
    let query = operation + 1;
    assert_eq!(pages(ask(&mut scheduler, query, 1, &hashes(1..=1))), 1);
    scheduler.send(&ToManager::Restore { first: 0, pages: 1 }, query, 1);
    scheduler.send(&ToManager::Release, query, 1);
    let session = scheduler.session;
    let done = ToManager::CopyDone { session, operation: query, revision: 1 };
    workers[1].send(&done, 0, 0);
    workers[1].send(&done, 0, 0);
    wait_for("the drain to begin", || (query_status(&manager)["operations"]["draining"] == 1).then_some(()));
    assert_eq!(reserved_slots(&manager), 1, "one worker may still copy, however often the other is done");
    workers[0].send(&done, 0, 0);
    wait_for("its bytes", || (manager.held_bytes() == 0).then_some(()));
}
