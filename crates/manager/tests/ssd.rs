//! Cache directories behind the pool of a real manager.

mod support;

use orbitkv_wire::ToManager;
use std::fs;
use std::os::unix::fs::FileExt;
use support::ssd::{Cache, disk_bytes, drop_memory, restore_each, save_each, ssd, stored};
use support::{Engine, page, run_to_end, wait_for};

#[test]
fn what_left_memory_comes_back_byte_for_byte() {
    let cache = Cache::new("4mib");
    let manager = cache.start();
    let mut engine = Engine::start(&manager);
    engine.save_checked(&[1, 2, 3]);
    drop_memory(&manager);
    let (operation, parts) = engine.query(&[1, 2, 3, 4]);
    assert_eq!(engine.restore(operation, &parts), [page(1), page(2), page(3)]);
    let metrics = manager.metrics();
    assert_eq!(metrics["orbitkv_tier_block_requests_total{tier=\"ssd\"}"], 3.0);
    assert_eq!(metrics["orbitkv_tier_block_requests_total{tier=\"miss\"}"], 1.0);
    // Header and payload, in whole blocks.
    let page_bytes = 4 * 4096;
    assert_eq!(metrics["orbitkv_ssd_written_bytes_total"], f64::from(3 * page_bytes));
    assert_eq!(metrics["orbitkv_ssd_read_bytes_total"], f64::from(3 * page_bytes));
    assert_eq!(metrics["orbitkv_ssd_directories{state=\"serving\"}"], 1.0);
    assert_eq!(metrics["orbitkv_ssd_mismatches_total"], 0.0);
}

#[test]
fn a_byte_that_has_changed_is_a_miss() {
    let cache = Cache::new("4mib");
    let manager = cache.start();
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=3);
    drop_memory(&manager);
    let (file, at) = cache.find(2);
    let flipped = page(2)[5000] ^ 1;
    file.write_all_at(&[flipped], at + 5000).unwrap();
    assert_eq!(restore_each(&mut engine, 1..=3), [1, 3], "the others are the control");
    assert_eq!(ssd(&manager)["mismatches"], 1);
    assert_eq!(manager.status()["counters"]["failed_reads"], 1);
    // Computed again and saved again, it is good again.
    save_each(&mut engine, [2]);
    drop_memory(&manager);
    assert_eq!(restore_each(&mut engine, 1..=3), [1, 2, 3]);
}

#[test]
fn an_orderly_end_loses_nothing() {
    let cache = Cache::new("4mib");
    let mut manager = cache.start();
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=40);
    wait_for("the writes", || (stored(&manager) == 40).then_some(()));
    manager.signal("-TERM");
    assert!(manager.wait().success());
    assert!(manager.log().contains("SSD cache closed"), "{}", manager.log());
    let manager = cache.start();
    assert_eq!((stored(&manager), &ssd(&manager)["recovery"]["pages"]), (40, &40.into()));
    assert!(manager.log().contains("segments_by_headers=0"), "all are sealed: {}", manager.log());
    let mut engine = Engine::start(&manager);
    assert_eq!(restore_each(&mut engine, 1..=41), (1..=40).collect::<Vec<_>>());
    assert_eq!(manager.metrics()["orbitkv_tier_block_requests_total{tier=\"ssd\"}"], 40.0);
}

#[test]
fn an_end_with_writes_under_way_finishes_them() {
    let cache = Cache::new("4mib");
    let mut manager = cache.start();
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=30);
    // The manager has them when it has answered this.
    assert_eq!(restore_each(&mut engine, [30]), [30]);
    let written = |manager: &support::Manager| {
        let counters = &manager.status()["counters"];
        counters["dropped_writes"].as_u64().unwrap()
    };
    let dropped = written(&manager);
    manager.signal("-TERM");
    assert!(manager.wait().success());
    assert_eq!(stored(&cache.start()), 30 - dropped);
}

#[test]
fn a_crash_loses_at_most_what_was_being_written() {
    let cache = Cache::new("4mib");
    let manager = cache.start();
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=40);
    wait_for("the writes", || (stored(&manager) == 40).then_some(()));
    manager.crash();
    let manager = cache.start();
    let mut engine = Engine::start(&manager);
    // The process was killed, not the machine: what was written is there.
    assert_eq!(restore_each(&mut engine, 1..=40), (1..=40).collect::<Vec<_>>());
}

#[test]
fn what_was_reset_does_not_come_back() {
    for crash in [false, true] {
        let cache = Cache::new("4mib");
        let mut manager = cache.start();
        let mut engine = Engine::start(&manager);
        save_each(&mut engine, 1..=30);
        wait_for("the writes", || (stored(&manager) == 30).then_some(()));
        engine.send(&ToManager::Reset, 0, 0);
        wait_for("reset", || (stored(&manager) == 0).then_some(()));
        save_each(&mut engine, [50]);
        wait_for("the write after it", || (stored(&manager) == 1).then_some(()));
        if crash {
            manager.crash();
        } else {
            manager.signal("-TERM");
            manager.wait();
        }
        let manager = cache.start();
        let mut engine = Engine::start(&manager);
        assert_eq!(stored(&manager), 1, "what was saved after the reset is the control");
        assert_eq!(restore_each(&mut engine, (1..=30).chain([50])), [50]);
    }
}

#[test]
fn the_file_system_never_gives_more_than_the_capacity() {
    let capacity = 2 << 20;
    let cache = Cache::new("2mib");
    let manager = cache.start();
    let mut engine = Engine::start(&manager);
    let mut most = 0;
    for round in 0..30 {
        save_each(&mut engine, (0..20).map(|i| 1000 + round * 20 + i));
        // What is asked for again and again is kept when its segment goes.
        drop_memory(&manager);
        restore_each(&mut engine, [1000, 1001]);
        most = most.max(disk_bytes(&cache.path()));
        assert!(most <= capacity, "{most} bytes on the disk");
    }
    assert!(most > capacity / 2, "it was used: {most}");
    let status = ssd(&manager);
    assert!(status["evicted_pages"].as_u64() > Some(300), "{status}");
    assert!(status["relocated_pages"].as_u64() > Some(2), "{status}");
    let number = |name: &str| status[name].as_u64().unwrap();
    // Pages of one size, and what is written is either new or kept.
    let page_bytes = number("relocated_bytes") / number("relocated_pages");
    assert_eq!(page_bytes * number("relocated_pages"), number("relocated_bytes"));
    assert_eq!(number("written_bytes") - number("relocated_bytes"), 600 * page_bytes, "{status}");
    assert_eq!(restore_each(&mut engine, [1000, 1001]), [1000, 1001], "read often, so kept");
    assert_eq!(restore_each(&mut engine, [1002, 1003]), [0; 0], "never read, so gone");
    drop(engine);
    // A lower capacity holds from the start.
    manager.crash();
    let cache = Cache { capacity: "1mib".to_owned(), ..cache };
    let _manager = cache.start();
    assert!(disk_bytes(&cache.path()) <= 1 << 20);
}

#[test]
fn several_directories_share_the_pages_and_all_are_found() {
    let (one, two) = (Cache::new("4mib"), Cache::new("4mib"));
    let second = two.path().to_str().unwrap().to_owned();
    let more = ["--ssd-cache-path", second.as_str()];
    let mut manager = one.start_with(&more);
    let mut engine = Engine::start(&manager);
    save_each(&mut engine, 1..=40);
    drop_memory(&manager);
    assert_eq!(restore_each(&mut engine, 1..=40).len(), 40);
    let status = manager.status();
    let read = |at: usize| status["ssd"][at]["read_bytes"].as_u64().unwrap();
    assert!(read(0) > 0 && read(1) > 0 && read(0) + read(1) == 40 * 4 * 4096, "{status}");
    assert_eq!(status["ssd"][1]["capacity_bytes"], 2 << 20, "in equal parts");
    manager.signal("-TERM");
    manager.wait();
    let manager = one.start_with(&more);
    wait_for("the second directory", || (stored(&manager) == 40).then_some(()));
    let mut engine = Engine::start(&manager);
    assert_eq!(restore_each(&mut engine, 1..=40).len(), 40);
    engine.send(&ToManager::Reset, 0, 0);
    let recorded = |status: &serde_json::Value| status["recorded_resets"] == 1;
    wait_for("reset of both", || {
        manager.status()["ssd"].as_array().unwrap().iter().all(recorded).then_some(())
    });
    manager.crash();
    assert_eq!(stored(&one.start_with(&more)), 0);
}

#[test]
fn directories_that_cannot_be_used_are_refused_with_the_fix() {
    let cache = Cache::new("4mib");
    let manager = cache.start();
    let run = |cache: &Cache, exit: i32, words: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let flags = cache.flags();
        let ended = run_to_end(dir.path(), &flags.iter().map(String::as_str).collect::<Vec<_>>());
        let said = words.iter().all(|word| ended.stderr.contains(word));
        assert!(ended.code == Some(exit) && said, "{words:?}: {ended:?}");
        assert!(!dir.path().join("manager.sock").exists(), "it did not half-start");
    };
    run(&cache, 3, &["another manager holds the lock", "give this one another directory"]);
    // Control: with the lock gone it can be used.
    manager.crash();
    drop(cache.start());
    let linked = Cache::new("4mib");
    std::os::unix::fs::symlink(cache.path(), linked.path()).unwrap();
    run(&linked, 2, &["is a symbolic link", "name the directory that it points to"]);
    let file = Cache::new("4mib");
    fs::write(file.path(), "").unwrap();
    run(&file, 2, &["is not a directory"]);
    let small = Cache::new("300kib");
    run(&small, 2, &["--ssd-cache-capacity", "307200", "need at least", "raise it"]);
    // A newer release was here: format 2, with the checksum that its block then has.
    let owner = cache.path().join("owner");
    let mut block = fs::read(&owner).unwrap();
    block[8] = 2;
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &block[..4088]);
    block[4088..4096].copy_from_slice(&sum.to_le_bytes());
    fs::write(&owner, &block).unwrap();
    run(&cache, 2, &["owner has format 2", "use the newer release"]);
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (flags, words) in [
        (&["--ssd-cache-path", "/tmp/x"][..], "--ssd-cache-capacity 64gb"),
        (&["--ssd-cache-capacity", "1gb"], "without --ssd-cache-path"),
        (
            &["--ssd-cache-path", "/x", "--ssd-cache-path", "/x", "--ssd-cache-capacity", "1gb"],
            "names /x twice",
        ),
        (
            &["--ssd-cache-path", "/x", "--ssd-cache-capacity", "1gb", "--memory-tier-size", "1mib"],
            "choose one",
        ),
    ] {
        let ended = run_to_end(dir.path(), flags);
        assert!(ended.code == Some(2) && ended.stderr.contains(words), "{flags:?}: {ended:?}");
    }
}

#[test]
fn memory_is_dropped_at_once_or_when_all_is_written() {
    let manager = support::Manager::start_with(&[
        "--memory-tier-size",
        "64mib",
        "--memory-tier-delay-ms",
        "13000",
        "--pool-size",
        "16mib",
    ]);
    let mut engine = Engine::start(&manager);
    engine.save_checked(&[1, 2]);
    wait_for("the writes", || (manager.status()["tier"]["write_queue_pending"] == 2).then_some(()));
    let post = |path: &str| manager.http("POST", path, "Content-Length: 0\r\n");
    let (code, body) = post("/cache/memory/drop?wait=1");
    assert!(code == 409 && body.contains("\"pending_bytes\":20000"), "{code} {body}");
    assert_eq!(post("/cache/memory/drop?now").0, 400);
    assert_eq!(engine.query(&[1, 2]).1.len(), 2, "nothing was dropped");
}
