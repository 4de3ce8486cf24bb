//! Pages in memory that change behind everybody's back, and the check that finds them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests stop the test")]

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use support::ssd::{Cache, restore_each, save_each, stored};
use support::{Engine, Manager, PAGE_BYTES, hash, page, wait_for};

const FAST: [&str; 2] = ["--scrub-rate", "1gib/s"];

fn start(more: &[&str]) -> Manager {
    Manager::start_with(&[&["--pool-size", "16mib"], more].concat())
}

/// Where the payload of a page begins in the pool, reached as a stray write of another process would.
fn find(manager: &Manager, block: u64) -> (File, u64) {
    let wanted = &page(block)[..64];
    for entry in fs::read_dir(format!("/proc/{}/fd", manager.pid())).unwrap().flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        if target.to_string_lossy().contains("/memfd:orbitkv-") {
            let mut file = OpenOptions::new().read(true).write(true).open(entry.path()).unwrap();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            if let Some(at) = bytes.windows(64).position(|window| window == wanted) {
                return (file, at as u64);
            }
        }
    }
    panic!("block {block} is not in the pool");
}

/// Flips the last bit of a page.
fn flip(manager: &Manager, block: u64) {
    let (file, at) = find(manager, block);
    let last = PAGE_BYTES - 1;
    file.write_all_at(&[page(block)[last] ^ 0x80], at + last as u64).unwrap();
}

fn scrub(manager: &Manager, field: &str) -> u64 {
    manager.status()["scrub"][field].as_u64().unwrap()
}

/// Everything that is there now has been read again.
fn wait_for_a_whole_pass(manager: &Manager) {
    // The pass that is under way may have passed it already.
    let passes = scrub(manager, "passes") + 2;
    wait_for("the check of all memory", || (scrub(manager, "passes") >= passes).then_some(()));
}

#[test]
fn a_page_that_has_changed_is_found_and_never_served() {
    let manager = start(&FAST);
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=3);
    assert_eq!(restore_each(&mut engine, 1..=3), [1, 2, 3]);
    wait_for_a_whole_pass(&manager);
    assert_eq!(scrub(&manager, "bad_pages"), 0, "control: nothing has changed yet");
    flip(&manager, 2);
    wait_for("the changed page", || (scrub(&manager, "bad_pages") == 1).then_some(()));
    assert_eq!(restore_each(&mut engine, 1..=3), [1, 3], "the others are the control");
    assert_eq!(manager.status()["pool"]["pages"], 2);
    assert_eq!(manager.metrics()["orbitkv_scrub_bad_pages_total"], 1.0);
    wait_for_a_whole_pass(&manager);
    let said = |manager: &Manager| manager.log().matches("has changed since it was saved").count();
    assert_eq!((scrub(&manager, "bad_pages"), said(&manager)), (1, 1), "once");
    let name: String = hash(2).iter().map(|byte| format!("{byte:02x}")).collect();
    for words in [name.as_str(), "segment=0", "group=0", &"ab".repeat(32)] {
        assert!(manager.log().contains(words), "{words} is not in {}", manager.log());
    }
    // Computed again and saved again, it is good again.
    save_each(&mut engine, [2]);
    wait_for_a_whole_pass(&manager);
    assert_eq!(restore_each(&mut engine, 1..=3), [1, 2, 3]);
    assert_eq!(scrub(&manager, "bad_pages"), 1);
}

#[test]
fn control_without_the_check_a_changed_page_stays() {
    let manager = start(&["--scrub-rate", "0"]);
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=3);
    assert_eq!(restore_each(&mut engine, 1..=3), [1, 2, 3]);
    flip(&manager, 2);
    // Four rounds, if there were any.
    std::thread::sleep(Duration::from_secs(1));
    let (operation, parts) = engine.query(&[2]);
    assert_eq!(parts.len(), 1);
    assert!(engine.restore(operation, &parts) != [page(2)], "the byte was not flipped");
    assert_eq!((scrub(&manager, "pages"), scrub(&manager, "rate_bytes_per_second")), (0, 0));
}

#[test]
fn a_page_that_is_leased_meanwhile_goes_with_its_lease() {
    let manager = start(&FAST);
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=2);
    let (operation, parts) = engine.query(&[2]);
    assert_eq!(parts.len(), 1);
    flip(&manager, 2);
    wait_for("the changed page", || (scrub(&manager, "bad_pages") == 1).then_some(()));
    assert!(engine.query(&[2]).1.is_empty(), "nobody gets it any more");
    assert_eq!(
        manager.status()["pool"]["used_bytes"],
        2 * 16_384,
        "its memory is not reused under the lease"
    );
    engine.restore(operation, &parts);
    wait_for("the end of the lease", || (manager.status()["pool"]["used_bytes"] == 16_384).then_some(()));
    assert_eq!(restore_each(&mut engine, 1..=2), [1]);
}

#[test]
fn the_copy_on_the_ssd_is_served_in_its_place() {
    let cache = Cache::new("4mib");
    let manager = cache.start_with(&FAST);
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=3);
    wait_for("the writes", || (stored(&manager) == 3).then_some(()));
    flip(&manager, 2);
    wait_for("the changed page", || (scrub(&manager, "bad_pages") == 1).then_some(()));
    let from_ssd = "orbitkv_tier_block_requests_total{tier=\"ssd\"}";
    assert_eq!(manager.metrics()[from_ssd], 0.0);
    assert_eq!(restore_each(&mut engine, 1..=3), [1, 2, 3], "byte for byte");
    assert_eq!(manager.metrics()[from_ssd], 1.0);
    drop_memory_when_idle(&manager);
    assert_eq!(restore_each(&mut engine, 1..=3), [1, 2, 3]);
}

/// A round may hold slots for a moment after their pages are forgotten.
fn drop_memory_when_idle(manager: &Manager) {
    let (code, body) = manager.http("POST", "/cache/memory/drop?wait=1", "Content-Length: 0\r\n");
    assert_eq!(code, 200, "{body}");
    wait_for("the end of the round", || (manager.status()["pool"]["used_bytes"] == 0).then_some(()));
}

#[test]
fn pages_come_and_go_under_the_check_and_none_is_mistaken() {
    let manager = Manager::start_with(&["--pool-size", "2mib", "--scrub-rate", "100gib/s"]);
    let mut engine = Engine::start(&manager);
    let mut round = 0;
    // Three pools of pages a round, so that each slot is used again and again.
    while round < 6 || scrub(&manager, "passes") < 1 {
        let first = 1000 * round;
        save_each(&mut engine, first..first + 400);
        let kept = restore_each(&mut engine, first + 380..first + 400);
        assert_eq!(kept.last(), Some(&(first + 399)), "the newest page is there");
        round += 1;
    }
    let status = manager.status();
    assert!(status["counters"]["evicted_pages"].as_u64() > Some(1000), "{status}");
    assert_eq!(status["scrub"]["bad_pages"], 0, "{status}");
    assert!(status["scrub"]["pages"].as_u64() > Some(100), "{status}");
    wait_for("commits and releases", || (manager.held_bytes() == 0).then_some(()));
}

#[test]
fn the_rate_holds() {
    let begun = Instant::now();
    let manager = start(&["--scrub-rate", "40kb/s"]);
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=40);
    wait_for("some rounds", || (scrub(&manager, "pages") >= 8).then_some(()));
    let bytes = scrub(&manager, "bytes") as f64;
    let most = 40_000.0 * begun.elapsed().as_secs_f64() + PAGE_BYTES as f64;
    assert!(bytes <= most, "{bytes} bytes, at most {most}");
    assert_eq!(scrub(&manager, "rate_bytes_per_second"), 40_000);
}

#[test]
fn rates_that_cannot_be_are_refused_with_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    for (rate, words) in [("64mib", "write a size and a time"), ("64mib/week", "write /s, /hour or /day")] {
        let ended = support::run_to_end(dir.path(), &["--scrub-rate", rate]);
        assert!(ended.code == Some(2) && ended.stderr.contains(words), "{rate}: {ended:?}");
    }
}
