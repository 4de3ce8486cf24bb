//! The byte cap, and a file system without room.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod support;

use orbitkv_store::{Advice, AppendError, Directory, DiskError, Log, LogConfig, StoreError};
use support::{
    BLOCK, SEGMENT, assert_reads, config, log, numbers, page, payload, recover, reopen, write, write_all,
};

#[test]
fn the_cap_holds_at_every_moment_and_a_lower_one_drops_the_oldest() {
    let mut log = log(6);
    write_all(&mut log, 0..200);
    let usage = log.usage().unwrap();
    assert_eq!(usage.segments, 6);
    assert!(usage.used_bytes <= usage.capacity_bytes);
    let mut disk = log.close().unwrap();
    assert!(disk.peak_bytes() <= config(6).capacity_bytes);
    // Half of it: the newest stay.
    let mut log = reopen(disk, 3);
    let usage = log.usage().unwrap();
    // What is there needs no slack: four fit where three may be made.
    assert!(usage.used_bytes <= config(3).capacity_bytes && usage.segments == 4, "{usage:?}");
    let pages = numbers(&recover(&mut log));
    assert_eq!(*pages.last().unwrap(), 199);
    assert_eq!(pages.len() as u64, 200 - pages[0], "the newest, without a gap");
    write_all(&mut log, 200..300);
    assert!(log.usage().unwrap().used_bytes <= config(3).capacity_bytes);
    disk = log.close().unwrap();
    // And up again.
    let mut log = reopen(disk, 6);
    recover(&mut log);
    write_all(&mut log, 300..400);
    assert_eq!(log.usage().unwrap().segments, 6);
}

#[test]
fn a_lower_cap_takes_free_segments_first() {
    let mut log = log(6);
    write_all(&mut log, 0..200);
    while log.usage().unwrap().free_segments < 2 {
        log.evict(|_| false).unwrap();
    }
    let kept = log.usage().unwrap().pages;
    let mut log = reopen(log.close().unwrap(), 3);
    assert_eq!(log.usage().unwrap().segments, 4, "what is there needs no slack");
    assert_eq!(recover(&mut log).len() as u64, kept);
}

#[test]
fn another_segment_size_keeps_the_old_pages_until_they_are_evicted() {
    let mut log = log(4);
    write_all(&mut log, 0..12);
    let disk = log.close().unwrap();
    let larger =
        LogConfig { segment_bytes: 2 * SEGMENT, capacity_bytes: config(8).capacity_bytes, min_free_bytes: 0 };
    let another = disk.another(3);
    drop(disk);
    let mut log = Log::open(another, larger).unwrap();
    assert_eq!(numbers(&recover(&mut log)), (0..12).collect::<Vec<_>>());
    write_all(&mut log, 12..100);
    let usage = log.usage().unwrap();
    assert!(usage.used_bytes <= usage.capacity_bytes && usage.segments == 4, "{usage:?}");
    let files = log.disk_mut().list().unwrap();
    for file in files.iter().filter(|file| file.name.starts_with("segment")) {
        assert_eq!(log.disk_mut().contents(&file.name).unwrap().len() as u64, 2 * SEGMENT);
    }
}

#[test]
fn a_full_file_system_stops_growth_and_nothing_else() {
    let mut log = log(6);
    write_all(&mut log, 0..9);
    let segments = log.usage().unwrap().segments;
    let now = segments * SEGMENT + 8 * BLOCK;
    // Seen in advance.
    log.disk_mut().set_total_bytes(now);
    write_all(&mut log, 9..60);
    let usage = log.usage().unwrap();
    assert!(usage.segments == segments && !usage.growth_stopped && !usage.read_only);
    // Not seen: a quota. It is found out once, and not tried again with every page.
    log.disk_mut().set_total_bytes(1 << 30);
    log.disk_mut().set_quota_bytes(now);
    write_all(&mut log, 60..120);
    let usage = log.usage().unwrap();
    assert!(usage.segments == segments && usage.growth_stopped && !usage.read_only);
    log.disk_mut().set_quota_bytes(u64::MAX);
    log.resume(false);
    write_all(&mut log, 120..180);
    assert!(log.usage().unwrap().segments > segments, "it grows again");
}

#[test]
fn room_for_others_is_kept_free() {
    let mut log = log(6);
    write_all(&mut log, 0..40);
    let mut disk = log.close().unwrap();
    let total = 8 * SEGMENT;
    disk.set_total_bytes(total);
    let another = disk.another(3);
    drop(disk);
    let min_free_bytes = 3 * SEGMENT;
    let mut log = Log::open(another, LogConfig { min_free_bytes, ..config(6) }).unwrap();
    recover(&mut log);
    assert!(log.disk_mut().space().unwrap().free_bytes < min_free_bytes);
    while log.shrink().unwrap() {
        assert!(log.wants_eviction().unwrap());
        log.evict(|_| true).unwrap();
    }
    let space = log.disk_mut().space().unwrap();
    assert!(
        space.free_bytes >= min_free_bytes && space.free_bytes < min_free_bytes + 2 * SEGMENT,
        "{space:?}"
    );
    write_all(&mut log, 40..80);
    assert!(log.disk_mut().space().unwrap().free_bytes >= min_free_bytes);
}

#[test]
fn a_full_device_leaves_no_segment_behind() {
    let mut log = log(3);
    // One write is under way in a segment that is full; the next segment is idle.
    let first = log.append(&page(0)).unwrap();
    let mut number = 1;
    while log.usage().unwrap().segments < 2 {
        write_all(&mut log, [number]);
        number += 1;
    }
    log.written(first.extent, &Err(DiskError::NoSpace)).unwrap();
    assert_eq!(log.usage().unwrap().writes_in_flight, 0);
    // Both are sealed: both can go.
    assert!(log.evict(|_| false).is_some());
    assert!(log.evict(|_| false).is_some());
    assert_eq!(log.usage().unwrap().free_segments, 2);
}

/// Segment files that nobody may write or remove are passed over, and the others go on being evicted.
#[test]
fn case_a50_a_protected_segment_is_passed_over() {
    let mut log = log(4);
    write_all(&mut log, 0..12);
    log.disk_mut().protect("segment-000000.okv", true);
    let (mut refused, mut number) = (0, 12);
    while number < 200 {
        while log.wants_eviction().unwrap() {
            let eviction = log.evict(|_| false).unwrap();
            refused += u64::from(eviction.unrecorded.is_some_and(|error| {
                assert!(
                    matches!(&error, StoreError::Barred { file, .. } if file == "segment-000000.okv"),
                    "{error}"
                );
                error.advice() == Advice::Retry
            }));
        }
        write(&mut log, &page(number), &payload(number, page(number).payload_bytes)).unwrap();
        number += 1;
    }
    assert_eq!(refused, 1, "it is tried when its turn has come, and not again and again");
    let usage = log.usage().unwrap();
    assert!(!usage.read_only && usage.used_bytes <= usage.capacity_bytes, "{usage:?}");
    assert_eq!((usage.barred_segments, usage.segments), (1, 4), "still counted");
    // Nothing of it is found by the next start, which may not write it either.
    let mut log = reopen(log.close().unwrap(), 4);
    let found = recover(&mut log);
    assert!(numbers(&found).iter().all(|number| *number > 100), "{:?}", numbers(&found));
    for stored in found {
        let number = numbers(&[stored])[0];
        assert_reads(&mut log, &stored, number);
    }
    // With a lower cap it cannot go, and others go in its place.
    let mut log = reopen(log.close().unwrap(), 2);
    let usage = log.usage().unwrap();
    assert!(usage.used_bytes <= usage.capacity_bytes, "{usage:?}");
    assert!(log.disk_mut().contents("segment-000000.okv").is_some(), "control: it did not go");
    recover(&mut log);
    for number in 200..240 {
        while log.wants_eviction().unwrap() {
            log.evict(|_| false).unwrap();
        }
        // The page with which its turn comes is lost.
        let _ = write(&mut log, &page(number), &payload(number, page(number).payload_bytes));
    }
    assert_eq!(log.usage().unwrap().barred_segments, 1);
    log.disk_mut().protect("segment-000000.okv", false);
    assert!(!log.shrink().unwrap());
    assert_eq!(log.usage().unwrap().barred_segments, 0, "it is room again");
    write_all(&mut log, 240..300);
}

#[test]
fn case_a50_nothing_loops_where_every_segment_is_protected() {
    let mut log = log(3);
    let stored = write_all(&mut log, 0..12);
    let names: Vec<_> = log.disk_mut().list().unwrap().into_iter().map(|file| file.name).collect();
    let segments: Vec<_> = names.iter().filter(|name| name.starts_with("segment")).collect();
    segments.iter().for_each(|name| log.disk_mut().protect(name, true));
    let mut evictions = 0;
    while log.wants_eviction().unwrap() && log.evict(|_| false).is_some() {
        evictions += 1;
    }
    // The open one is left, and takes pages while its file does.
    assert_eq!(evictions, segments.len() - 1);
    while log.append(&page(50)).is_ok() {}
    assert_eq!(log.append(&page(50)), Err(AppendError::NoRoom));
    assert_eq!(log.usage().unwrap().segments, segments.len() as u64, "still counted");
    assert!(!log.usage().unwrap().read_only);
    let last = stored.last().unwrap();
    assert_reads(&mut log, last, 11);
    // No more than before is tried while there is no need, and all of it is used once it may be.
    segments.iter().for_each(|name| log.disk_mut().protect(name, false));
    assert!(!log.shrink().unwrap());
    assert_eq!(log.usage().unwrap().barred_segments, 0);
    assert!(log.append(&page(51)).is_ok());
}
