//! A bound on what is written to the cache directories.
#![allow(clippy::unwrap_used, reason = "helpers of tests stop the test")]

mod support;

use std::time::Instant;
use support::ssd::{Cache, drop_memory, restore_each, save_each, ssd, stored};
use support::{Engine, Manager, run_to_end, wait_for};

/// Header and payload of a page, in whole blocks.
const ON_DISK_BYTES: u64 = 4 * 4096;
/// A day in which six pages can be written at once.
const BUDGET: &str = "2400kb/day";
const BURST_BYTES: u64 = 100_000;
const BURST_PAGES: u64 = BURST_BYTES / ON_DISK_BYTES;

fn number(manager: &Manager, field: &str) -> u64 {
    ssd(manager)[field].as_u64().unwrap()
}

#[test]
fn what_is_over_the_budget_is_not_written_and_all_else_goes_on() {
    let begun = Instant::now();
    let cache = Cache::new("4mib");
    let manager = cache.start_with(&["--ssd-write-budget", BUDGET]);
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=20);
    let ended = |manager: &Manager| {
        number(manager, "written_bytes") / ON_DISK_BYTES + number(manager, "write_budget_drops")
    };
    wait_for("the ends of all writes", || (ended(&manager) == 20).then_some(()));
    // What comes in the time that this test takes is not a page, or it took an hour.
    let written = number(&manager, "written_bytes");
    assert!(written as f64 <= BURST_BYTES as f64 + 2.4e6 * begun.elapsed().as_secs_f64() / 86_400.0);
    assert_eq!(written, BURST_PAGES * ON_DISK_BYTES);
    // They are in memory all the same.
    assert_eq!(restore_each(&mut engine, 1..=20), (1..=20).collect::<Vec<_>>());
    save_each(&mut engine, 21..=40);
    assert_eq!(restore_each(&mut engine, 21..=40), (21..=40).collect::<Vec<_>>());
    drop_memory(&manager);
    let first: Vec<u64> = (1..=BURST_PAGES).collect();
    assert_eq!(restore_each(&mut engine, 1..=40), first, "what was written can be read");
    assert_eq!(number(&manager, "written_bytes"), written);
    let status = ssd(&manager);
    let budget = &status["write_budget"];
    assert_eq!((&budget["bytes"], &budget["period"]), (&2_400_000.into(), &"day".into()));
    assert!(budget["left_bytes"].as_u64() < Some(ON_DISK_BYTES), "{status}");
    let metrics = manager.metrics();
    let dropped = metrics["orbitkv_ssd_dropped_writes_total{reason=\"write_budget\"}"];
    assert!(dropped >= 34.0, "{dropped}");
    assert_eq!(metrics["orbitkv_ssd_write_budget_bytes{period=\"day\"}"], 2_400_000.0);
    assert!(metrics["orbitkv_ssd_write_budget_left_bytes"] < ON_DISK_BYTES as f64);
    assert_eq!(manager.log().matches("--ssd-write-budget is used up").count(), 1, "said once");
    assert_eq!(metrics["orbitkv_ssd_directories{state=\"serving\"}"], 1.0, "nothing is wrong with the disk");
}

#[test]
fn control_without_a_budget_all_is_written() {
    let cache = Cache::new("4mib");
    let manager = cache.start();
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=40);
    drop_memory(&manager);
    assert_eq!(restore_each(&mut engine, 1..=40), (1..=40).collect::<Vec<_>>());
    assert_eq!(number(&manager, "written_bytes"), 40 * ON_DISK_BYTES);
    assert!(ssd(&manager)["write_budget"].is_null());
    assert!(!manager.metrics().contains_key("orbitkv_ssd_write_budget_left_bytes"));
}

#[test]
fn two_directories_share_one_budget() {
    let (one, two) = (Cache::new("4mib"), Cache::new("4mib"));
    let second = two.path().to_str().unwrap().to_owned();
    let manager = one.start_with(&["--ssd-cache-path", second.as_str(), "--ssd-write-budget", BUDGET]);
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=40);
    let of_both = |field: &str| {
        let status = manager.status();
        status["ssd"].as_array().unwrap().iter().map(|ssd| ssd[field].as_u64().unwrap()).sum::<u64>()
    };
    let ended = || of_both("written_bytes") / ON_DISK_BYTES + of_both("write_budget_drops");
    wait_for("the ends of all writes", || (ended() >= 40).then_some(()));
    assert_eq!(of_both("written_bytes"), BURST_PAGES * ON_DISK_BYTES);
    drop_memory(&manager);
    assert_eq!(restore_each(&mut engine, 1..=40).len() as u64, BURST_PAGES);
}

#[test]
fn hot_pages_that_are_written_again_count() {
    let cache = Cache::new("1mib");
    // Room for some sixty pages on the disk, and for three hundred in the budget, in a day.
    let begun = Instant::now();
    let manager = cache.start_with(&["--ssd-write-budget", "120mb/day"]);
    let mut engine = Engine::start(&manager);
    let mut next = 1000;
    while number(&manager, "write_budget_drops") == 0 {
        save_each(&mut engine, (0..20).map(|i| next + i));
        next += 20;
        drop_memory(&manager);
        restore_each(&mut engine, [1000, 1001, 1002]);
    }
    let status = ssd(&manager);
    let pages = number(&manager, "written_bytes") / ON_DISK_BYTES;
    let moved = number(&manager, "relocated_pages");
    assert!(moved > 0, "{status}");
    let most = 5e6 + 1.2e8 * begun.elapsed().as_secs_f64() / 86_400.0;
    assert!((pages * ON_DISK_BYTES) as f64 <= most, "{status}");
    assert!(pages >= 5_000_000 / ON_DISK_BYTES, "the burst was used: {status}");
    let saved = manager.status()["counters"]["written_pages"].as_u64().unwrap();
    assert_eq!(pages, saved + moved, "{status}");
    // Reading goes on, of all that is there.
    drop_memory(&manager);
    let there = stored(&manager);
    assert!(there > 0);
    assert_eq!(restore_each(&mut engine, 1000..next).len() as u64, there);
}

#[test]
fn budgets_that_cannot_be_are_refused_with_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    let ssd = ["--ssd-cache-path", "/x", "--ssd-cache-capacity", "1gb"];
    for (budget, words) in [
        ("1tb", "such as 1tb/day"),
        ("1tb/week", "write /s, /hour or /day"),
        ("ten/day", "\"ten\" in \"ten/day\" is not a size"),
        ("0/day", "a rate of zero"),
    ] {
        let ended = run_to_end(dir.path(), &[&ssd[..], &["--ssd-write-budget", budget]].concat());
        let named = ended.stderr.contains("--ssd-write-budget") && ended.stderr.contains(words);
        assert!(ended.code == Some(2) && named, "{budget}: {ended:?}");
    }
    let ended = run_to_end(dir.path(), &["--ssd-write-budget", "1tb/day"]);
    assert!(ended.code == Some(2) && ended.stderr.contains("without --ssd-cache-path"), "{ended:?}");
}
