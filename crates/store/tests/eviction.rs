//! Which pages stay when a segment goes, and which do not come back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod support;

use orbitkv_store::sim::{Faults, SimDisk};
use orbitkv_store::{Advice, AppendError, Log, LogConfig, Mismatch, StoredPage};
use support::{
    SEGMENT, assert_reads, config, expected, log, numbers, page, read, recover, reopen, sized, submit_write,
    wait, write_all,
};

#[test]
fn hot_pages_move_and_cold_ones_are_reported() {
    let mut log = log(3);
    let mut stored = Vec::new();
    let mut number = 0;
    while !log.wants_eviction().unwrap() {
        stored.extend(write_all(&mut log, [number]));
        number += 1;
    }
    let hot = stored[1];
    let eviction = log.evict(|page| page.page.name == hot.page.name).unwrap();
    assert_eq!(eviction.segment, stored[0].extent.segment());
    assert_eq!(numbers(&eviction.hot), [1]);
    let in_segment = stored.iter().filter(|page| page.extent.segment() == eviction.segment).count();
    assert_eq!(eviction.lost.len() + 1, in_segment);
    // Its segment waits until it has been moved, and can be read until then.
    assert!(!log.wants_eviction().unwrap() && log.evict(|_| true).is_none());
    let bytes = read(&mut log, hot.extent, &expected(&hot.page)).unwrap();
    let at = log.append_again(hot.extent, &hot.page).unwrap();
    submit_write(&mut log, 1, &at, &bytes);
    wait(log.disk_mut());
    log.written(at.extent, &Ok(())).unwrap();
    log.let_go(hot.extent).unwrap();
    assert_eq!(log.locate(hot.extent, 100), Err(Mismatch::Gone));
    assert_reads(&mut log, &StoredPage { extent: at.extent, ..hot }, 1);
    assert_eq!(log.usage().unwrap().free_segments, 1);
}

#[test]
fn room_for_hot_pages_is_not_given_to_others() {
    let large =
        LogConfig { segment_bytes: 4 * SEGMENT, capacity_bytes: config(8).capacity_bytes, min_free_bytes: 0 };
    let mut log = Log::open(SimDisk::new(1 << 30, 1), large).unwrap();
    let mut number = 0;
    while !log.wants_eviction().unwrap() {
        write_all(&mut log, [number]);
        number += 1;
    }
    let eviction = log.evict(|_| true).unwrap();
    assert!(!eviction.hot.is_empty() && !eviction.lost.is_empty(), "half of the room, and not more");
    // New pages take what is left, and are refused before they take the rest.
    while log.append(&sized(500, 100)).is_ok() {}
    assert_eq!(log.append(&sized(501, 100)), Err(AppendError::NoRoom));
    for hot in &eviction.hot {
        let at = log.append_again(hot.extent, &hot.page).unwrap();
        assert_ne!(at.extent.segment(), hot.extent.segment());
        log.let_go(hot.extent).unwrap();
    }
    assert!(log.append(&sized(502, 100)).is_ok(), "in the segment that is free now");
}

#[test]
fn what_was_erased_is_neither_moved_nor_found_again() {
    let mut log = log(3);
    let stored = write_all(&mut log, 0..3);
    log.erase(stored[1].extent);
    let mut log = reopen(log.close().unwrap(), 3);
    let pages = recover(&mut log);
    assert_eq!(numbers(&pages), [0, 2]);
    assert!(pages.iter().all(|page| page.sequence == if page.page == stored[0].page { 1 } else { 3 }));
    // Sealed now: erased pages are not reported by the eviction.
    log.erase(pages[0].extent);
    let eviction = log.evict(|_| false).unwrap();
    assert_eq!(eviction.lost, pages[1..]);
}

#[test]
fn a_segment_without_wanted_pages_goes_first() {
    let mut log = log(4);
    let stored = write_all(&mut log, 0..12);
    assert_eq!(stored[0].extent.segment(), 0);
    for page in stored.iter().filter(|page| page.extent.segment() == 1) {
        log.erase(page.extent);
    }
    let eviction = log.evict(|_| true).unwrap();
    assert_eq!((eviction.segment, eviction.lost.len(), eviction.hot.len()), (1, 0, 0));
}

#[test]
fn a_forgotten_namespace_does_not_come_back_but_its_new_pages_do() {
    let mut log = log(4);
    write_all(&mut log, 0..9);
    let namespace = page(1).name.namespace;
    log.forget(&namespace).unwrap();
    write_all(&mut log, [10]);
    assert_eq!(page(10).name.namespace, namespace);
    let mut disk = log.into_disk();
    disk.settle();
    for _ in 0..2 {
        let mut log = reopen(disk, 4);
        assert_eq!(numbers(&recover(&mut log)), [0, 2, 3, 5, 6, 8, 10]);
        disk = log.close().unwrap();
    }
}

#[test]
fn what_was_forgotten_does_not_come_back_when_the_power_fails_at_once() {
    let mut others = 0;
    for seed in 0..200 {
        let mut log = Log::open(SimDisk::new(1 << 30, seed), config(4)).unwrap();
        write_all(&mut log, 0..9);
        log.disk_mut().settle();
        log.forget(&page(1).name.namespace).unwrap();
        // It is durable from here on: nothing else makes it so.
        let mut log = Log::open(log.into_disk().crash(), config(4)).unwrap();
        let found = numbers(&recover(&mut log));
        assert!(!found.iter().any(|number| [1, 4, 7].contains(number)), "seed {seed}: {found:?}");
        others += found.len();
    }
    assert_eq!(others, 200 * 6, "control: the pages of other namespaces are there");
}

#[test]
fn an_eviction_that_cannot_be_recorded_is_reported_all_the_same() {
    let mut log = log(3);
    let stored = write_all(&mut log, 0..12);
    log.disk_mut().set_faults(Faults { file_write_errors: 100, ..Faults::default() });
    let eviction = log.evict(|_| false).unwrap();
    assert_eq!(eviction.unrecorded.map(|error| error.advice()), Some(Advice::ReadOnly));
    assert!(!eviction.lost.is_empty());
    for page in &eviction.lost {
        assert_eq!(log.locate(page.extent, page.page.payload_bytes), Err(Mismatch::Gone));
    }
    // A restart finds them again, whole.
    let mut log = reopen(log.into_disk(), 3);
    let found = recover(&mut log);
    assert_eq!(found.len(), stored.len());
    for page in found {
        let number = numbers(&[page])[0];
        assert_reads(&mut log, &page, number);
    }
}
