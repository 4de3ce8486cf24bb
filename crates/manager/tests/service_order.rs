//! A slow tier that does few things at once serves many queries side by side (case A-04).
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use orbitkv_wire::{Hash, Kind, Part, QueryMode, QueryRule, ToClient, ToManager};
use std::io::Write;
use support::{Engine, Manager, hash, page, wait_for};

const LONG: std::ops::Range<u64> = 1_000..1_100;
const SHORT_PAGES: u64 = 2;
const SHORTS: u64 = 20;

/// Blocks of a short query; none is in another query.
fn short(index: u64) -> Vec<u64> {
    (0..SHORT_PAGES).map(|page| 10 * index + page).collect()
}

fn hashes(blocks: impl IntoIterator<Item = u64>) -> Vec<Hash> {
    blocks.into_iter().map(hash).collect()
}

fn query(hashes: &[Hash], rule: QueryRule) -> ToManager<'_> {
    ToManager::Query { group: 0, deadline_ms: 0, rule, hashes }
}

/// A manager with all of that in its tier and nothing in memory.
fn start(depth: &str, delay_ms: &str) -> (Manager, Engine) {
    let tier = ["--memory-tier-size", "64mib", "--memory-tier-delay-ms", delay_ms];
    let flags = [&tier[..], &["--memory-tier-depth", depth, "--pool-size", "16mib"]].concat();
    let manager = Manager::start_with(&flags);
    let mut engine = Engine::start(&manager);
    let mut chains: Vec<Vec<u64>> = (0..SHORTS).map(short).collect();
    // As many writes as may be under way at once.
    chains.extend([(LONG.start..LONG.start + 50).collect(), (LONG.start + 50..LONG.end).collect()]);
    for chain in chains {
        engine.save_checked(&chain);
        wait_for("writes", || (manager.status()["tier"]["write_queue_pending"] == 0).then_some(()));
    }
    wait_for("all pages", || {
        let stored = LONG.end - LONG.start + SHORTS * SHORT_PAGES;
        (manager.status()["tier"]["pages"] == stored).then_some(())
    });
    assert_eq!(manager.http("POST", "/cache/memory/drop", "Content-Length: 0\r\n").0, 200);
    (manager, engine)
}

/// The next final answer: its operation and parts.
fn ready(engine: &mut Engine) -> (u64, Vec<Part>) {
    loop {
        let answer = engine.expect(Kind::Operation);
        match answer.body() {
            ToClient::Waiting => {}
            ToClient::Ready { parts, .. } => return (answer.operation, parts.to_vec()),
            other => panic!("{other:?}"),
        }
    }
}

fn read_pages(manager: &Manager) -> u64 {
    manager.status()["counters"]["read_pages"].as_u64().unwrap()
}

fn many_short_reads_behind_a_long_one(depth: &str) {
    let (manager, mut engine) = start(depth, "10");
    let long = engine.next_operation();
    let mut frames = engine.frame(&query(&hashes(LONG), QueryRule::default()), long, 0);
    let mut shorts = Vec::new();
    for index in 0..SHORTS {
        let operation = engine.next_operation();
        let hashes = hashes(short(index));
        frames.extend(engine.frame(&query(&hashes, QueryRule::default()), operation, 0));
        shorts.push((operation, short(index)));
    }
    // In one piece, the long one first: nothing but the order of service decides who waits for whom.
    engine.stream.write_all(&frames).unwrap();
    let mut answered = Vec::new();
    for _ in 0..SHORTS {
        let (operation, parts) = ready(&mut engine);
        assert_ne!(operation, long, "after {} short ones", answered.len());
        answered.push((operation, parts));
    }
    assert!(read_pages(&manager) > SHORTS * SHORT_PAGES, "the long one has got pages meanwhile");
    let (operation, parts) = ready(&mut engine);
    assert_eq!(operation, long);
    assert_eq!(read_pages(&manager), SHORTS * SHORT_PAGES + (LONG.end - LONG.start), "each was read once");
    assert_eq!(engine.restore(long, &parts), LONG.map(page).collect::<Vec<_>>());
    answered.sort_unstable_by_key(|(operation, _)| *operation);
    for ((operation, parts), (asked, blocks)) in answered.into_iter().zip(shorts) {
        assert_eq!(operation, asked);
        assert_eq!(engine.restore(operation, &parts), blocks.into_iter().map(page).collect::<Vec<_>>());
    }
    wait_for("everything is given back", || (manager.held_bytes() == 0).then_some(()));
}

#[test]
fn case_a04_short_reads_end_before_a_long_one_at_depth_1() {
    many_short_reads_behind_a_long_one("1");
}

#[test]
fn case_a04_short_reads_end_before_a_long_one_at_depth_2() {
    many_short_reads_behind_a_long_one("2");
}

#[test]
fn case_a04_short_reads_end_before_a_long_one_at_depth_4() {
    many_short_reads_behind_a_long_one("4");
}

/// The order in which a preparation of twenty pages and a demand of fifty are answered at depth 1, the
/// preparation being asked for first.
fn answered(claimed: bool) -> Vec<&'static str> {
    let (_manager, mut engine) = start("1", "5");
    let (ahead, demand) = (engine.next_operation(), engine.next_operation());
    let (few, many) = (hashes(LONG.start..LONG.start + 20), hashes(LONG.start + 50..LONG.end));
    let prepare = QueryRule { mode: QueryMode::Prepare, ..QueryRule::default() };
    let mut frames = engine.frame(&query(&few, prepare), ahead, 0);
    frames.extend(engine.frame(&query(&many, QueryRule::default()), demand, 0));
    if claimed {
        frames.extend(engine.frame(&query(&few, QueryRule::default()), ahead, 0));
    }
    engine.stream.write_all(&frames).unwrap();
    let mut order = Vec::new();
    while order.len() < 2 {
        let answer = engine.expect(Kind::Operation);
        if !matches!(answer.body(), ToClient::Waiting) {
            order.push(if answer.operation == ahead { "ahead" } else { "demand" });
        }
    }
    order
}

#[test]
fn a_demand_passes_what_is_read_ahead_until_that_is_claimed() {
    assert_eq!(answered(false), ["demand", "ahead"]);
    assert_eq!(answered(true), ["ahead", "demand"]);
}
