//! Managers that are killed at any moment, under load, again and again, on one cache directory.
//!
//! A kill loses nothing that was written: the kernel has it. So every other round ends quietly, and the next manager
//! must find each page. The rounds between are killed under load, and then a few blocks of what was written last are
//! overwritten, as a power failure may leave them: whatever is handed out must be what was saved.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::ssd::{Cache, SEGMENT_BYTES, disk_bytes, restore_each, ssd, stored};
use support::{Engine, Manager, hello, wait_for};

const BLOCK_BYTES: u64 = 4096;
/// Blocks that are overwritten in each of the newest segments, of 64.
const TORN: u64 = 8;

/// Rounds; `ORBITKV_CRASH_ROUNDS` sets more.
fn rounds() -> u64 {
    std::env::var("ORBITKV_CRASH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// What the load is told, and tells.
#[derive(Default)]
struct Signs {
    begun: AtomicBool,
    stop: AtomicBool,
}

/// Saves and asks in a thread until it is to stop or the manager is gone. Blocks are of this round or of those before
/// it.
fn load(manager: &Manager, round: u64, signs: &Arc<Signs>) -> std::thread::JoinHandle<()> {
    let (signs, socket, http) = (Arc::clone(signs), manager.socket.clone(), manager.http.clone());
    std::thread::spawn(move || {
        let mut saved = 0;
        // Each call panics once the manager is killed: that is how it ends.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut engine = Engine::with_hello(&socket, &hello(1, 1, 1));
            while !signs.stop.load(Ordering::Acquire) {
                let first = round * 1000 + saved;
                engine.save_checked(&[first, first + 1]);
                saved += 2;
                signs.begun.store(true, Ordering::Release);
                let older = first.saturating_sub(saved * 7 % 500);
                restore_each(&mut engine, [older]);
                if saved.is_multiple_of(16) {
                    support::ssd::post(&http, "/cache/memory/drop");
                }
            }
        }));
        if let Err(text) = ended {
            let text = text.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(!text.contains("came back as something else"), "{text}");
        }
    })
}

/// Blocks written last that have not come to the disk.
fn tear(cache: &Cache, round: u64) {
    let mut segments: Vec<PathBuf> = cache.segments();
    segments.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).unwrap().modified().unwrap()));
    for (number, path) in (0..3).zip(segments) {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        for nth in 0..TORN {
            let seed = (round * 64 + number * 16 + nth + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let at = (seed >> 32) % (SEGMENT_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
            file.write_all_at(&[0x5a; BLOCK_BYTES as usize], at).unwrap();
        }
    }
}

/// Loads a manager and kills it. What the next one must find, at least.
fn run_and_kill(cache: &Cache, manager: Manager, round: u64) -> u64 {
    let signs = Arc::new(Signs::default());
    let load = load(&manager, round, &signs);
    wait_for("load", || signs.begun.load(Ordering::Acquire).then_some(()));
    // At any moment of a segment, of a checkpoint, of an eviction.
    let until = Instant::now() + Duration::from_millis(20 + round * 37 % 160);
    while Instant::now() < until {
        assert!(disk_bytes(&cache.path()) <= 3 << 20);
    }
    if round.is_multiple_of(2) {
        manager.crash();
        load.join().unwrap();
        tear(cache, round);
        return 0;
    }
    signs.stop.store(true, Ordering::Release);
    load.join().unwrap();
    let written = wait_for("the writes", || {
        let written = manager.held_bytes() == 0 && manager.status()["tier"]["write_queue_pending"] == 0;
        written.then(|| stored(&manager))
    });
    manager.crash();
    written
}

#[test]
fn case_a48_no_crash_makes_a_wrong_page_of_what_was_saved() {
    let cache = Cache::new("3mib");
    // Loads have no name, and end by a panic when their manager is killed.
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name().is_some() {
            loud(info);
        }
    }));
    let (mut found, mut hits, mut asked, mut cut, mut must_find) = (0, 0, 0, 0, 0);
    for round in 0..rounds() {
        let manager = cache.start();
        // The first thing it does may be to evict a segment.
        let found_now = manager.status()["counters"]["found_pages"].as_u64().unwrap();
        assert!(found_now >= must_find, "{found_now} found of {must_find} in round {round}");
        found += found_now;
        if round > 0 {
            let mut engine = Engine::with_hello(&manager.socket, &hello(2, 2, 1));
            // What the last two rounds may have saved; each hit is compared byte by byte.
            for of in [round - 1, round.saturating_sub(2)] {
                let blocks = of * 1000..of * 1000 + 120;
                asked += 120;
                hits += restore_each(&mut engine, blocks).len();
            }
            // A write that was cut is found by its header or its footer, and never handed out.
            cut += ssd(&manager)["mismatches"].as_u64().unwrap();
        }
        must_find = run_and_kill(&cache, manager, round);
    }
    let _ = std::panic::take_hook();
    assert!(found > 20 * rounds() && hits > 0, "found {found}, hits {hits} of {asked}: nothing was proven");
    assert!(rounds() < 4 || cut > 0, "no page was cut: nothing was proven of those");
    println!("found {found} pages in {} starts, {hits} hits of {asked} asked, {cut} cut", rounds());
}
