//! What the log does while all is well, and when the disk fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod support;

use orbitkv_store::sim::{Faults, SimDisk};
use orbitkv_store::{
    Advice, AppendError, Direction, Directory, DiskError, Expected, Extent, Inspection, Log, Mismatch,
    Source, StoreError,
};
use support::{
    BLOCK, Missed, assert_reads, config, expected, log, numbers, page, payload, read, read_request, recover,
    reopen, sized, submit_write, verify, wait, write, write_all,
};

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
        assert_eq!(segment.faults, []);
        wrong.extend(segment.pages.into_iter().filter(|found| found.fault.is_some()));
    }
    assert_eq!(pages, 12);
    let [found] = &wrong[..] else { panic!("{wrong:?}") };
    assert_eq!((found.page, found.block), (stored[1].page, stored[1].extent.block()));
    assert_eq!(found.fault, Some(Mismatch::Payload.into()));
    let mut another = another;
    assert!(files(&mut another) == before);
}

/// The footer that a start writes for a segment counts from the first page that lies there, wanted or not.
#[test]
fn pages_behind_forgotten_ones_are_read_after_a_repair() {
    let mut log = log(4);
    write_all(&mut log, 0..2);
    log.forget(&page(0).name.namespace).unwrap();
    let mut log = reopen(log.into_disk(), 4);
    assert_eq!(numbers(&recover(&mut log)), [1]);
    let mut log = reopen(log.into_disk(), 4);
    let found = recover(&mut log);
    assert_eq!((numbers(&found), found[0].sequence), (vec![1], 2));
    assert_reads(&mut log, &found[0], 1);
}

#[test]
fn errors_say_what_to_do() {
    assert_eq!(DiskError::Io { errno: 5 }.advice(Direction::Write), Advice::ReadOnly);
    assert_eq!(DiskError::NoSpace.advice(Direction::Write), Advice::Retry);
    assert_eq!(StoreError::Locked(DiskError::Locked).advice(), Advice::Fatal);
    let text = DiskError::Io { errno: 5 }.to_string();
    assert!(text.contains("Input/output error"), "{text}");
}
