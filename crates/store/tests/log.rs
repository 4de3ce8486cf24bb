//! What the log does while all is well, and when the disk is full, fails, or shrinks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod support;

use orbitkv_store::sim::{Faults, SimDisk};
use orbitkv_store::{
    Advice, AppendError, Direction, Directory, DiskError, Expected, Extent, Inspection, Log, LogConfig,
    Mismatch, Source, StoreError, StoredPage,
};
use support::{
    BLOCK, Missed, SEGMENT, config, expected, page, payload, read, read_request, recover, sized,
    submit_write, verify, wait, write, write_all,
};

fn log(segments: u64) -> Log<SimDisk> {
    Log::open(SimDisk::new(1 << 30, 1), config(segments)).unwrap()
}

/// Opens again as the next process does.
fn reopen(disk: SimDisk, segments: u64) -> Log<SimDisk> {
    let another = disk.another(2);
    drop(disk);
    Log::open(another, config(segments)).unwrap()
}

fn numbers(pages: &[StoredPage]) -> Vec<u64> {
    let mut numbers: Vec<u64> = pages
        .iter()
        .map(|stored| u64::from_le_bytes(stored.page.name.key[..8].try_into().unwrap()))
        .collect();
    numbers.sort_unstable();
    numbers
}

fn assert_reads(log: &mut Log<SimDisk>, stored: &StoredPage, number: u64) {
    let bytes = read(log, stored.extent, &expected(&stored.page)).unwrap();
    assert!(bytes == payload(number, stored.page.payload_bytes), "page {number}");
}

#[test]
fn pages_come_back_at_once_and_after_an_orderly_end() {
    let mut log = log(4);
    let stored = write_all(&mut log, 0..12);
    for (number, stored) in stored.iter().enumerate() {
        assert_reads(&mut log, stored, number as u64);
    }
    let mut log = reopen(log.close().unwrap().crash(), 4);
    assert_eq!(log.append(&page(99)), Err(AppendError::Recovering));
    assert_eq!(log.progress().total, 3);
    let mut pages = Vec::new();
    while let Some(recovered) = log.recover() {
        assert_eq!(recovered.source, Source::Footer, "an orderly end leaves nothing to search");
        pages.extend(recovered.pages);
    }
    assert_eq!((log.progress().done, numbers(&pages)), (3, (0..12).collect()));
    for stored in &pages {
        let number = u64::from_le_bytes(stored.page.name.key[..8].try_into().unwrap());
        assert_eq!(stored.page, page(number));
        assert_reads(&mut log, stored, number);
    }
    write(&mut log, &page(99), &payload(99, page(99).payload_bytes)).unwrap();
}

#[test]
fn an_extent_of_a_reused_segment_is_gone_without_a_read() {
    let mut log = log(2);
    let first = write_all(&mut log, [0])[0];
    assert_reads(&mut log, &first, 0);
    write_all(&mut log, 1..40);
    assert_eq!(log.locate(first.extent, first.page.payload_bytes), Err(Mismatch::Gone));
    for bits in [0, u64::MAX, 12345] {
        assert_eq!(log.locate(Extent::from_bits(bits), 100), Err(Mismatch::Gone));
    }
}

#[test]
fn a_read_that_the_reuse_of_its_segment_overtakes_is_a_miss() {
    let mut log = log(2);
    let first = write_all(&mut log, [3])[0];
    let at = log.locate(first.extent, first.page.payload_bytes).unwrap();
    log.disk_mut().set_faults(Faults { slow_polls: 0, ..Faults::default() });
    log.disk_mut().submit_later(read_request(77, at), 3);
    let mut done = Vec::new();
    while log.locate(first.extent, 100).is_ok() {
        if log.wants_eviction().unwrap() {
            log.evict(|_| false).unwrap();
        }
        let next = log.append(&page(7)).unwrap();
        submit_write(&mut log, 1, &next, &payload(7, page(7).payload_bytes));
        done.extend(wait_for(&mut log, 1));
        log.written(next.extent, &Ok(())).unwrap();
    }
    done.extend(wait(log.disk_mut()));
    let read = done.iter().find(|completion| completion.token == 77).unwrap();
    let missed = verify(&log, first.extent, &expected(&first.page), &read.buffer);
    assert_eq!(missed, Err(Missed::Mismatch(Mismatch::Gone)));
}

fn wait_for(log: &mut Log<SimDisk>, token: u64) -> Vec<orbitkv_store::Completion<Vec<u8>>> {
    let mut done = Vec::new();
    while !done.iter().any(|completion: &orbitkv_store::Completion<_>| completion.token == token) {
        orbitkv_store::Disk::poll(log.disk_mut(), &mut done);
    }
    done
}

#[test]
fn each_part_of_what_is_expected_is_compared() {
    let mut log = log(3);
    let stored = write_all(&mut log, [0, 1, 2]);
    let good = expected(&stored[1].page);
    let mut name = good.name;
    name.key[31] ^= 1;
    let mut namespace = good.name;
    namespace.namespace[0] ^= 1;
    let (mut group, mut shard) = (good.name, good.name);
    group.group += 1;
    shard.shard += 1;
    for name in [name, namespace, group, shard] {
        let missed = read(&mut log, stored[1].extent, &Expected { name, ..good });
        assert_eq!(missed, Err(Missed::Mismatch(Mismatch::Name)), "{name:?}");
    }
    let other_sum = Expected { payload_crc: good.payload_crc ^ 1, ..good };
    assert_eq!(read(&mut log, stored[1].extent, &other_sum), Err(Missed::Mismatch(Mismatch::Record)));
    let shorter = Expected { payload_bytes: good.payload_bytes - 1, ..good };
    assert_eq!(read(&mut log, stored[1].extent, &shorter), Err(Missed::Mismatch(Mismatch::Record)));
    assert!(read(&mut log, stored[1].extent, &good).is_ok());
}

/// Copies the page at one extent over that at another, as a disk that mixes up its sectors.
fn misdirect(log: &mut Log<SimDisk>, from: Extent, to: Extent, blocks: u64) {
    let name = |extent: Extent| format!("segment-{:06}.okv", extent.segment());
    let source = log.disk_mut().contents(&name(from)).unwrap();
    let start = (u64::from(from.block()) * BLOCK) as usize;
    let bytes = source[start..start + (blocks * BLOCK) as usize].to_vec();
    log.disk_mut().overwrite(&name(to), u64::from(to.block()) * BLOCK, &bytes);
}

#[test]
fn the_right_page_in_the_wrong_place_is_a_miss() {
    let mut log = log(3);
    // The same page twice: name, length and checksum are equal.
    let stored = write_all(&mut log, [1, 1]);
    misdirect(&mut log, stored[0].extent, stored[1].extent, 2);
    let missed = read(&mut log, stored[1].extent, &expected(&stored[1].page));
    assert_eq!(missed, Err(Missed::Mismatch(Mismatch::Place)));
}

#[test]
fn the_right_page_of_an_earlier_generation_is_a_miss() {
    let mut log = log(2);
    let first = write_all(&mut log, [1])[0];
    let file = format!("segment-{:06}.okv", first.extent.segment());
    let old = log.disk_mut().contents(&file).unwrap();
    // Round the segments until the page is written to the same block again.
    let again = loop {
        let next = write_all(&mut log, [1])[0];
        let same = |extent: Extent| (extent.segment(), extent.block());
        if same(next.extent) == same(first.extent) {
            break next;
        }
    };
    let want = expected(&again.page);
    assert!(read(&mut log, again.extent, &want).is_ok());
    // A write that the disk reported and never did.
    let at = (u64::from(first.extent.block()) * BLOCK) as usize;
    log.disk_mut().overwrite(&file, at as u64, &old[at..at + 2 * BLOCK as usize]);
    assert_eq!(read(&mut log, again.extent, &want), Err(Missed::Mismatch(Mismatch::Generation)));
    // Nor does a start take it for a page of the new use.
    let mut disk = log.into_disk();
    disk.settle();
    let mut log = reopen(disk, 2);
    let extents: Vec<_> = recover(&mut log).iter().map(|s| (s.extent.segment(), s.extent.block())).collect();
    assert!(!extents.contains(&(first.extent.segment(), first.extent.block())), "{extents:?}");
}

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
    let eviction = log.evict(|page| page.page.name == hot.page.name).unwrap().unwrap();
    assert_eq!(eviction.segment, stored[0].extent.segment());
    assert_eq!(numbers(&eviction.hot), [1]);
    let in_segment = stored.iter().filter(|page| page.extent.segment() == eviction.segment).count();
    assert_eq!(eviction.lost.len() + 1, in_segment);
    // Its segment waits until it has been moved, and can be read until then.
    assert!(!log.wants_eviction().unwrap() && log.evict(|_| true).unwrap().is_none());
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
    let eviction = log.evict(|_| true).unwrap().unwrap();
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
    let eviction = log.evict(|_| false).unwrap().unwrap();
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
    let eviction = log.evict(|_| true).unwrap().unwrap();
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
    let total = 6 * SEGMENT + 64 * BLOCK;
    disk.set_total_bytes(total);
    let another = disk.another(3);
    drop(disk);
    let min_free_bytes = 3 * SEGMENT;
    let mut log = Log::open(another, LogConfig { min_free_bytes, ..config(6) }).unwrap();
    recover(&mut log);
    while log.shrink().unwrap() {
        assert!(log.wants_eviction().unwrap());
        log.evict(|_| true).unwrap().unwrap();
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
fn a_write_error_turns_it_read_only_and_reads_go_on() {
    let mut log = log(4);
    let stored = write_all(&mut log, 0..3);
    log.disk_mut().set_faults(Faults { write_errors: 100, ..Faults::default() });
    let bytes = payload(3, page(3).payload_bytes);
    let error = write(&mut log, &page(3), &bytes).unwrap_err();
    assert_eq!(error.advice(), Advice::ReadOnly);
    assert_eq!(log.append(&page(4)), Err(AppendError::ReadOnly));
    assert!(log.usage().unwrap().read_only);
    assert_reads(&mut log, &stored[2], 2);
    log.disk_mut().set_faults(Faults::default());
    log.resume(true);
    write(&mut log, &page(3), &bytes).unwrap();
    let mut log = reopen(log.close().unwrap(), 4);
    assert_eq!(numbers(&recover(&mut log)), [0, 1, 2, 3], "the page that failed is not among them twice");
}

#[test]
fn a_device_that_is_full_in_the_middle_of_a_page_costs_that_page() {
    let mut log = log(4);
    write_all(&mut log, 0..2);
    log.disk_mut().set_faults(Faults { full: 100, ..Faults::default() });
    let error = write(&mut log, &page(2), &payload(2, page(2).payload_bytes)).unwrap_err();
    assert_eq!(error.advice(), Advice::Retry);
    log.disk_mut().set_faults(Faults::default());
    assert!(!log.usage().unwrap().read_only);
    log.resume(false);
    write_all(&mut log, [3]);
    let mut log = reopen(log.close().unwrap(), 4);
    assert_eq!(numbers(&recover(&mut log)), [0, 1, 3]);
}

#[test]
fn an_unreadable_page_is_a_miss_and_an_unreadable_directory_no_panic() {
    let mut log = log(4);
    let stored = write_all(&mut log, 0..12);
    log.disk_mut().set_faults(Faults { read_errors: 100, ..Faults::default() });
    let Err(Missed::Disk(error)) = read(&mut log, stored[0].extent, &expected(&stored[0].page)) else {
        panic!("an error is an error");
    };
    assert_eq!(error.advice(Direction::Read), Advice::Miss);
    let disk = log.close().unwrap();
    let mut disk = disk.crash();
    for percent in [10, 50, 100] {
        disk.set_faults(Faults { file_read_errors: percent, ..Faults::default() });
        let mut log = Log::open(disk, config(4)).unwrap();
        for stored in recover(&mut log) {
            // Found or not, nothing but what was written.
            let number = u64::from_le_bytes(stored.page.name.key[..8].try_into().unwrap());
            assert_eq!(stored.page, page(number));
        }
        disk = log.into_disk().crash();
    }
}

#[test]
fn two_logs_do_not_open_one_directory() {
    let mut log = log(3);
    let error = Log::open(log.disk_mut().another(2), config(3)).unwrap_err();
    assert_eq!(error, StoreError::Locked(DiskError::Locked));
    assert_eq!(error.advice(), Advice::Fatal);
}

#[test]
fn a_page_that_never_fits_is_named_with_what_would() {
    let mut log = log(3);
    let most = u32::try_from(log.max_payload_bytes()).unwrap();
    let error = log.append(&sized(1, most + 1)).unwrap_err();
    assert!(error.to_string().contains(&format!("{} bytes does not fit", most + 1)), "{error}");
    write(&mut log, &sized(1, most), &payload(1, most)).unwrap();
}

#[test]
fn a_segment_is_sealed_by_the_last_of_its_writes() {
    let mut log = log(4);
    let mut placed = Vec::new();
    while placed.last().is_none_or(|at: &orbitkv_store::Placement| at.extent.segment() == 0) {
        let at = log.append(&page(placed.len() as u64)).unwrap();
        submit_write(
            &mut log,
            placed.len() as u64,
            &at,
            &payload(placed.len() as u64, page(placed.len() as u64).payload_bytes),
        );
        placed.push(at);
    }
    wait(log.disk_mut());
    let trailer = |log: &mut Log<SimDisk>| {
        log.disk_mut().contents("segment-000000.okv").unwrap()[15 * 4096..][..7] == *b"OKVFOOT"
    };
    let first: Vec<_> = placed.iter().filter(|at| at.extent.segment() == 0).collect();
    // In any order.
    for at in first.iter().rev() {
        assert!(!trailer(&mut log));
        log.written(at.extent, &Ok(())).unwrap();
        log.written(at.extent, &Ok(())).unwrap();
    }
    assert!(trailer(&mut log));
    log.written(placed.last().unwrap().extent, &Ok(())).unwrap();
    assert_eq!(log.usage().unwrap().writes_in_flight, 0);
    assert_eq!(log.usage().unwrap().pages, placed.len() as u64);
}

#[test]
fn an_inspection_sees_what_a_start_would_and_changes_nothing() {
    let mut log = log(4);
    let stored = write_all(&mut log, 0..12);
    assert!(matches!(Inspection::open(log.disk_mut().another(5)), Err(StoreError::Locked(_))));
    let mut disk = log.into_disk();
    disk.flip("segment-000000.okv", (u64::from(stored[1].extent.block()) + 1) * BLOCK * 8 + 5);
    let files = |disk: &mut SimDisk| {
        let names = disk.list().unwrap();
        names.into_iter().map(|file| (disk.contents(&file.name), file.name)).collect::<Vec<_>>()
    };
    let before = files(&mut disk);
    let another = disk.another(6);
    drop(disk);
    let mut inspection = Inspection::open(another.another(7)).unwrap();
    let (mut pages, mut wrong) = (0, Vec::new());
    while let Some(segment) = inspection.next_segment(true) {
        pages += segment.pages.len();
        wrong.extend(segment.pages.into_iter().filter(|(_, _, wrong)| wrong.is_some()));
    }
    assert_eq!(pages, 12);
    assert_eq!(wrong, [(stored[1].page, stored[1].extent.block(), Some(Mismatch::Payload))]);
    let mut another = another;
    assert!(files(&mut another) == before);
}

#[test]
fn errors_say_what_to_do() {
    assert_eq!(DiskError::Io { errno: 5 }.advice(Direction::Write), Advice::ReadOnly);
    assert_eq!(DiskError::NoSpace.advice(Direction::Write), Advice::Retry);
    assert_eq!(StoreError::Locked(DiskError::Locked).advice(), Advice::Fatal);
    let text = DiskError::Io { errno: 5 }.to_string();
    assert!(text.contains("Input/output error"), "{text}");
}
