//! Damaged directories: any flipped bit, cut and mixed-up files, missing files. What is served is always right.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod support;

use orbitkv_store::sim::SimDisk;
use orbitkv_store::{Log, StoredPage};
use proptest::prelude::*;
use support::{BLOCK, Missed, SEGMENT, config, expected, page, payload, read, recover, write_all};

/// Two sealed segments and one that a crash left open, and the pages that are in them.
fn directory() -> (SimDisk, Vec<StoredPage>) {
    let mut log = Log::open(SimDisk::new(1 << 30, 1), config(4)).unwrap();
    let stored = write_all(&mut log, 0..12);
    assert_eq!(log.usage().unwrap().segments, 3);
    let mut disk = log.into_disk();
    disk.settle();
    (disk, stored)
}

const FILES: [&str; 5] =
    ["segment-000000.okv", "segment-000001.okv", "segment-000002.okv", "checkpoint", "owner"];

/// Opens, recovers, and reads all that is found. Returns the numbers of pages that were read, and of those
/// that were found and are no pages. What the first start repaired takes nothing from the second.
fn examine(disk: SimDisk) -> (Vec<u64>, usize) {
    let (first, disk) = start(disk);
    let (second, _) = start(disk);
    assert_eq!(first, second, "a second start finds something else");
    first
}

fn start(disk: SimDisk) -> ((Vec<u64>, usize), SimDisk) {
    // Another process: whoever had the lock is gone.
    let another = disk.another(2);
    drop(disk);
    let mut log = Log::open(another, config(4)).unwrap();
    let (mut good, mut bad) = (Vec::new(), 0);
    for stored in recover(&mut log) {
        let want = expected(&stored.page);
        match read(&mut log, stored.extent, &want) {
            Ok(bytes) => {
                let number = u64::from_le_bytes(stored.page.name.key[..8].try_into().unwrap());
                assert_eq!(stored.page, page(number), "a record that was never written");
                assert!(bytes == payload(number, stored.page.payload_bytes), "wrong bytes of page {number}");
                good.push(number);
            }
            Err(Missed::Mismatch(_)) => bad += 1,
            Err(Missed::Disk(error)) => panic!("{error}"),
        }
    }
    good.sort_unstable();
    ((good, bad), log.into_disk())
}

#[test]
fn without_damage_all_pages_come_back() {
    let (disk, stored) = directory();
    assert_eq!(stored.len(), 12);
    assert_eq!(examine(disk), ((0..12).collect(), 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// One bit anywhere in any file costs one page at most, and never gives a wrong one.
    #[test]
    fn any_flipped_bit_costs_at_most_its_page(file in 0..FILES.len(), at: u64) {
        let (mut disk, _) = directory();
        let bytes = disk.contents(FILES[file]).unwrap().len() as u64;
        disk.flip(FILES[file], at % (bytes * 8));
        let (good, bad) = examine(disk);
        prop_assert!(good.len() + bad <= 12);
        prop_assert!(good.len() >= 11, "{} of 12 pages are left", good.len());
    }

    /// Every bit of a header, of the payload behind it, of a footer and of its trailer counts.
    #[test]
    fn a_flipped_bit_in_a_page_is_noticed(at: u64, number in 0..4_usize) {
        let (mut disk, stored) = directory();
        let StoredPage { page, extent, .. } = stored[number];
        // The padding behind the payload is nobody's.
        let bits = (BLOCK + u64::from(page.payload_bytes)) * 8;
        disk.flip(FILES[extent.segment() as usize], u64::from(extent.block()) * BLOCK * 8 + at % bits);
        let (good, bad) = examine(disk);
        prop_assert_eq!(bad, 1, "the footer names it, the read refuses it");
        prop_assert_eq!(good.len(), 11);
    }

    #[test]
    fn several_flipped_bits_never_give_a_wrong_page(flips in proptest::collection::vec((0..FILES.len(), any::<u64>()), 1..40)) {
        let (mut disk, _) = directory();
        for (file, at) in flips {
            let bytes = disk.contents(FILES[file]).unwrap().len() as u64;
            disk.flip(FILES[file], at % (bytes * 8));
        }
        examine(disk);
    }

    /// Blocks of any file in any place of any segment.
    #[test]
    fn spliced_segments_never_give_a_wrong_page(moves in proptest::collection::vec((0..3_usize, 0..16_u64, 0..3_usize, 0..16_u64, 1..8_u64), 1..6)) {
        let (mut disk, _) = directory();
        for (from, source, to, target, blocks) in moves {
            let end = |at: u64| ((at + blocks) * BLOCK).min(SEGMENT);
            let bytes = disk.contents(FILES[from]).unwrap()[(source * BLOCK) as usize..end(source) as usize].to_vec();
            let room = (end(target) - target * BLOCK) as usize;
            disk.overwrite(FILES[to], target * BLOCK, &bytes[..bytes.len().min(room)]);
        }
        examine(disk);
    }
}

#[test]
fn a_flipped_bit_in_a_footer_costs_no_page() {
    let (disk, stored) = directory();
    let sealed = disk.contents(FILES[0]).unwrap();
    assert_eq!(&sealed[15 * BLOCK as usize..][..8], b"OKVFOOT\0");
    let pages = stored.iter().filter(|stored| stored.extent.segment() == 0).count() as u64;
    // Entries, digests, and all of the trailer.
    for bit in (0..(pages * 96 + 32) * 8).step_by(97).chain((BLOCK * 8..2 * BLOCK * 8).step_by(61)) {
        let (mut disk, _) = directory();
        disk.flip(FILES[0], 14 * BLOCK * 8 + bit);
        assert_eq!(examine(disk), ((0..12).collect(), 0), "bit {bit}");
    }
}

#[test]
fn a_flipped_bit_in_the_checkpoint_or_the_owner_costs_no_page() {
    // The front block's fields and its sum, and all lines.
    let lines = BLOCK * 8..(BLOCK + 3 * 40) * 8;
    for bit in (0..40 * 8).chain(4088 * 8..BLOCK * 8).chain(lines) {
        let (mut disk, _) = directory();
        disk.flip("checkpoint", bit);
        assert_eq!(examine(disk), ((0..12).collect(), 0), "checkpoint, bit {bit}");
    }
    for bit in (0..16 * 8).chain(4088 * 8..BLOCK * 8) {
        let (mut disk, _) = directory();
        disk.flip("owner", bit);
        assert_eq!(examine(disk), ((0..12).collect(), 0), "owner, bit {bit}");
    }
}

#[test]
fn a_segment_cut_anywhere_keeps_what_is_before_the_cut() {
    for bytes in (0..SEGMENT).step_by(2048) {
        let (mut disk, stored) = directory();
        disk.truncate(FILES[1], bytes);
        let cut = |stored: &StoredPage| {
            let end = u64::from(stored.extent.block()) * BLOCK
                + orbitkv_store::page_bytes(stored.page.payload_bytes);
            stored.extent.segment() == 1 && end > bytes
        };
        let lost = stored.iter().filter(|stored| cut(stored)).count();
        let (good, bad) = examine(disk);
        assert_eq!((good.len(), bad), (12 - lost, 0), "cut at {bytes}");
    }
}

#[test]
fn each_level_of_truth_can_go() {
    for files in [vec!["checkpoint"], vec!["owner"], vec!["checkpoint", "owner"]] {
        let (mut disk, _) = directory();
        for file in &files {
            orbitkv_store::Directory::remove(&mut disk, file).unwrap();
        }
        assert_eq!(examine(disk), ((0..12).collect(), 0), "without {files:?}");
    }
    // The footers too: the headers are left.
    let (mut disk, _) = directory();
    orbitkv_store::Directory::remove(&mut disk, "checkpoint").unwrap();
    for file in &FILES[..3] {
        disk.overwrite(file, 14 * BLOCK, &[0; 2 * BLOCK as usize]);
        disk.overwrite(file, 0, &[0; BLOCK as usize]);
    }
    assert_eq!(examine(disk), ((0..12).collect(), 0));
}

#[test]
fn a_segment_that_is_gone_takes_its_pages_only() {
    let (mut disk, stored) = directory();
    orbitkv_store::Directory::remove(&mut disk, FILES[0]).unwrap();
    let left = stored.iter().filter(|stored| stored.extent.segment() != 0).count();
    assert_eq!(examine(disk).0.len(), left);
}

#[test]
fn a_segment_under_another_name_has_no_pages() {
    let (mut disk, stored) = directory();
    orbitkv_store::Directory::rename(&mut disk, FILES[0], "segment-000009.okv").unwrap();
    let left = stored.iter().filter(|stored| stored.extent.segment() != 0).count();
    assert_eq!(examine(disk), (examine_numbers(&stored, 0), 0));
    assert!(left < 12);
}

fn examine_numbers(stored: &[StoredPage], without: u32) -> Vec<u64> {
    let kept = stored.iter().zip(0..).filter(|(stored, _)| stored.extent.segment() != without);
    kept.map(|(_, number)| number).collect()
}

#[test]
fn an_older_page_hides_no_newer_one() {
    let mut log = Log::open(SimDisk::new(1 << 30, 1), config(2)).unwrap();
    // Four blocks from block 1 on.
    assert_eq!(write_all(&mut log, [3])[0].extent.segment(), 0);
    let old = log.disk_mut().contents(FILES[0]).unwrap();
    // Two blocks each, until four of them are in the next use of the same segment.
    let mut number = 4;
    let mut blocks = Vec::new();
    while blocks.len() < 4 {
        let extent = write_all(&mut log, [number])[0].extent;
        number += 4;
        if extent.segment() == 0 && (extent.block() == 1 && number > 12 || !blocks.is_empty()) {
            blocks.push(extent.block());
        }
    }
    assert_eq!(blocks, [1, 3, 5, 7]);
    // The first of them and the head never reached the disk, footer and checkpoint are gone.
    let mut disk = log.into_disk();
    disk.settle();
    disk.overwrite(FILES[0], BLOCK, &old[BLOCK as usize..3 * BLOCK as usize]);
    disk.overwrite(FILES[0], 0, &[0; BLOCK as usize]);
    disk.overwrite(FILES[0], 14 * BLOCK, &[0; 2 * BLOCK as usize]);
    orbitkv_store::Directory::remove(&mut disk, "checkpoint").unwrap();
    let mut log = Log::open(disk, config(2)).unwrap();
    let found = recover(&mut log);
    let mut found: Vec<_> = found
        .iter()
        .map(|s| s.extent)
        .filter(|e| e.segment() == 0)
        .map(orbitkv_store::Extent::block)
        .collect();
    found.sort_unstable();
    assert_eq!(found, [3, 5, 7]);
}

#[test]
fn a_footer_that_promises_more_than_there_is_is_not_taken() {
    // A trailer of the next size, sealed again: its sums hold, its numbers do not agree with the file.
    let (mut disk, _) = directory();
    let mut trailer = disk.contents(FILES[0]).unwrap()[15 * BLOCK as usize..].to_vec();
    trailer[56] += 1;
    let crc = orbitkv_store::crc64(&trailer[..4088]);
    trailer[4088..].copy_from_slice(&crc.to_le_bytes());
    disk.overwrite(FILES[0], 15 * BLOCK, &trailer);
    assert_eq!(examine(disk), ((0..12).collect(), 0));
}
