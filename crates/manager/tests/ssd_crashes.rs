//! Managers that are killed at any moment, under load, again and again, on one cache directory.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::ssd::{Cache, disk_bytes, restore_each, ssd, stored};
use support::{Engine, Manager, hello, wait_for};

/// Rounds; `ORBITKV_CRASH_ROUNDS` sets more.
fn rounds() -> u64 {
    std::env::var("ORBITKV_CRASH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// Saves and asks in a thread until the manager is gone. Blocks are of this round or of those before it.
fn load(manager: &Manager, round: u64, begun: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let begun = Arc::clone(begun);
    let socket = manager.socket.clone();
    let http = manager.http.clone();
    std::thread::spawn(move || {
        let mut saved = 0;
        // Each call panics once the manager is killed: that is how it ends.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut engine = Engine::with_hello(&socket, &hello(1, 1, 1));
            loop {
                let first = round * 1000 + saved;
                engine.save_checked(&[first, first + 1]);
                saved += 2;
                begun.store(true, Ordering::Release);
                let older = first.saturating_sub(saved * 7 % 500);
                restore_each(&mut engine, [older]);
                if saved.is_multiple_of(16) {
                    support::ssd::post(&http, "/cache/memory/drop");
                }
            }
        }));
        let text = ended.unwrap_err();
        let text = text.downcast_ref::<String>().cloned().unwrap_or_default();
        assert!(!text.contains("came back as something else"), "{text}");
    })
}

#[test]
fn case_a48_no_crash_makes_a_wrong_page_of_what_was_saved() {
    let cache = Cache::new("3mib");
    let silent = std::panic::take_hook();
    let (mut found, mut hits, mut asked, mut cut) = (0, 0, 0, 0);
    for round in 0..rounds() {
        let manager = cache.start();
        found += stored(&manager);
        if round > 0 {
            let mut engine = Engine::with_hello(&manager.socket, &hello(2, 2, 1));
            // What the last two rounds may have saved; each hit is compared byte by byte.
            for of in [round - 1, round.saturating_sub(2)] {
                let blocks = of * 1000..of * 1000 + 120;
                asked += 120;
                hits += restore_each(&mut engine, blocks).len();
            }
            // A write that the kill has cut is found by its header, and never handed out.
            cut += ssd(&manager)["mismatches"].as_u64().unwrap();
        }
        std::panic::set_hook(Box::new(|_| ()));
        let begun = Arc::new(AtomicBool::new(false));
        let load = load(&manager, round, &begun);
        wait_for("load", || begun.load(Ordering::Acquire).then_some(()));
        // At any moment of a segment, of a checkpoint, of an eviction.
        let until = Instant::now() + Duration::from_millis(20 + round * 37 % 160);
        while Instant::now() < until {
            assert!(disk_bytes(&cache.path()) <= 3 << 20);
        }
        manager.crash();
        let ended = load.join();
        let _ = std::panic::take_hook();
        ended.unwrap();
    }
    std::panic::set_hook(silent);
    assert!(found > 20 * rounds() && hits > 0, "found {found}, hits {hits} of {asked}: nothing was proven");
    println!("found {found} pages in {} starts, {hits} hits of {asked} asked, {cut} cut", rounds());
}
