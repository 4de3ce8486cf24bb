//! An inspection tells damage from what an open segment looks like.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod support;

use orbitkv_store::sim::SimDisk;
use orbitkv_store::{
    Directory, DiskError, HostDirectory, InspectedSegment, Inspection, Log, LogConfig, Part, SegmentFault,
    Source, StoredPage, page_bytes,
};
use std::os::unix::fs::FileExt;
use support::{BLOCK, SEGMENT, config, page, payload, reopen, sized, write, write_all};

const FIRST: &str = "segment-000000.okv";
const OPEN: &str = "segment-000002.okv";
const TRAILER: u64 = SEGMENT - BLOCK;

/// Two sealed segments and an open one, as a crash leaves them.
fn directory() -> (SimDisk, Vec<StoredPage>) {
    let mut log = support::log(4);
    let stored = write_all(&mut log, 0..12);
    let mut disk = log.into_disk();
    disk.settle();
    // Whoever had the lock is gone.
    let another = disk.another(2);
    (another, stored)
}

/// All segments by number, payloads included.
fn inspect(disk: &SimDisk) -> (Inspection<SimDisk>, Vec<InspectedSegment>) {
    let another = disk.another(3);
    let mut inspection = Inspection::open(another).unwrap();
    let mut segments: Vec<_> = std::iter::from_fn(|| inspection.next_segment(true)).collect();
    segments.sort_by_key(|segment| segment.segment);
    (inspection, segments)
}

fn bad_pages(segments: &[InspectedSegment]) -> usize {
    segments.iter().flat_map(|segment| &segment.pages).filter(|page| page.fault.is_some()).count()
}

/// What is wrong with each segment, after `damage`.
fn faults_after(damage: impl FnOnce(&mut SimDisk)) -> Vec<Vec<SegmentFault>> {
    let (mut disk, _) = directory();
    damage(&mut disk);
    inspect(&disk).1.into_iter().map(|segment| segment.faults).collect()
}

#[test]
fn a_crash_is_no_damage() {
    let (disk, _) = directory();
    let (inspection, segments) = inspect(&disk);
    assert!(segments.iter().all(|segment| segment.faults.is_empty()), "{segments:?}");
    assert_eq!((bad_pages(&segments), segments[2].unaccounted_pages), (0, 0));
    let overview = inspection.overview();
    assert_eq!((overview.owner, overview.checkpoint), (Part::Whole, Part::Whole));
    assert_eq!((overview.segments, overview.segment_bytes), (3, 3 * SEGMENT));
    inspection.finish().unwrap();
}

/// Kills and orderly ends at all times, with evictions, segments used again and another capacity in between.
#[test]
fn nothing_that_a_manager_leaves_is_taken_for_damage() {
    let mut disk = SimDisk::new(1 << 30, 1);
    let (mut unsealed, mut number) = (0, 0);
    for round in 0..60_u64 {
        let mut log = reopen(disk, if round % 10 < 7 { 5 } else { 3 });
        support::recover(&mut log);
        let pages = round * 7 % 13;
        write_all(&mut log, number..number + pages);
        number += pages;
        if round % 4 == 0 {
            log.forget(&page(number).name.namespace).unwrap();
        }
        disk = if round % 3 == 0 { log.close().unwrap() } else { log.into_disk() }.another(2);
        let (inspection, segments) = inspect(&disk);
        for segment in &segments {
            assert_eq!((&segment.faults[..], segment.unaccounted_pages), (&[][..], 0), "round {round}");
            unsealed += usize::from(segment.source == Source::Headers);
        }
        assert_eq!(bad_pages(&segments), 0, "round {round}");
        let overview = inspection.overview();
        assert!(overview.owner == Part::Whole && overview.checkpoint != Part::Damaged, "round {round}");
    }
    assert!(unsealed > 10 && number > 300, "{unsealed} {number}");
}

#[test]
fn each_damaged_part_of_a_segment_is_named() {
    assert_eq!(faults_after(|disk| disk.flip(FIRST, 100))[0], [SegmentFault::Head]);
    let footer = [SegmentFault::Footer { block: 15 }];
    assert_eq!(faults_after(|disk| disk.flip(FIRST, TRAILER * 8 + 9))[0], footer, "the magic");
    assert_eq!(faults_after(|disk| disk.flip(FIRST, TRAILER * 8 + 300))[0], footer, "the trailer");
    assert_eq!(faults_after(|disk| disk.flip(FIRST, (TRAILER - BLOCK) * 8 + 9))[0], footer, "an entry");
    let without_checkpoint = faults_after(|disk| {
        disk.remove("checkpoint").unwrap();
        disk.flip(FIRST, (TRAILER - BLOCK) * 8 + 9);
    });
    assert_eq!(without_checkpoint[0], footer);
}

#[test]
fn a_cut_segment_is_named_with_what_was_lost() {
    let (_, stored) = directory();
    let pages = stored.iter().filter(|stored| stored.extent.segment() == 0).count() as u64;
    let kept = &stored[0];
    let bytes = u64::from(kept.extent.block()) * BLOCK + page_bytes(kept.page.payload_bytes);
    let faults = faults_after(|disk| disk.truncate(FIRST, bytes));
    let size = SegmentFault::Size { bytes, expected_bytes: SEGMENT };
    assert_eq!(faults[0], [SegmentFault::Lost { pages: pages - 1 }, size]);
    assert_eq!(size.offset_bytes(), Some(bytes));
    let nothing_left = faults_after(|disk| {
        disk.remove("checkpoint").unwrap();
        disk.truncate(FIRST, 100);
    });
    assert_eq!(nothing_left[0], [SegmentFault::NoSegment { bytes: 100 }]);
}

#[test]
fn a_damaged_header_without_a_footer_is_found_by_its_place() {
    let (_, stored) = directory();
    let open: Vec<_> = stored.iter().filter(|stored| stored.extent.segment() == 2).collect();
    assert!(open.len() >= 2);
    for number in [0, open.len() - 1] {
        let block = u64::from(open[number].extent.block());
        let faults = faults_after(|disk| disk.flip(OPEN, block * BLOCK * 8 + 700));
        assert_eq!(faults[2], [SegmentFault::PageHeader { block }]);
    }
    // The magic too: only the count of sequences tells, and a crash leaves the same.
    let (mut disk, _) = directory();
    disk.overwrite(OPEN, u64::from(open[0].extent.block()) * BLOCK, &[0; BLOCK as usize]);
    let (_, segments) = inspect(&disk);
    assert_eq!((segments[2].faults.len(), segments[2].unaccounted_pages), (0, 1));
}

#[test]
fn owner_and_checkpoint_are_whole_missing_or_damaged() {
    for name in ["owner", "checkpoint"] {
        let parts = |damage: &dyn Fn(&mut SimDisk)| {
            let (mut disk, _) = directory();
            damage(&mut disk);
            let overview = inspect(&disk).0.overview().clone();
            if name == "owner" { overview.owner } else { overview.checkpoint }
        };
        assert_eq!(parts(&|disk| disk.flip(name, 100)), Part::Damaged);
        assert_eq!(parts(&|disk| disk.remove(name).unwrap()), Part::Missing);
        assert_eq!(parts(&|disk| disk.truncate(name, 0)), Part::Missing);
        assert_eq!(parts(&|_| {}), Part::Whole);
    }
}

#[test]
fn a_segment_of_the_checkpoint_that_is_gone_is_absent() {
    let (mut disk, _) = directory();
    disk.remove(FIRST).unwrap();
    assert_eq!(inspect(&disk).0.overview().absent, [FIRST]);
}

#[test]
fn pages_of_a_cleared_namespace_are_marked() {
    let mut log = support::log(4);
    let stored = write_all(&mut log, 0..6);
    log.forget(&stored[0].page.name.namespace).unwrap();
    let disk = log.into_disk().another(2);
    let (_, segments) = inspect(&disk);
    for found in segments.iter().flat_map(|segment| &segment.pages) {
        assert_eq!(found.forgotten, found.page.name.namespace == stored[0].page.name.namespace);
    }
}

/// Pages of more than a window are read in pieces; a bit in each piece counts.
#[test]
fn a_large_page_is_checked_to_its_end() {
    let segment_bytes = 4 << 20;
    let config = LogConfig { capacity_bytes: 3 * segment_bytes, segment_bytes, min_free_bytes: 0 };
    let bytes = (2 << 20) + 500_001;
    let large = sized(9, bytes);
    for flipped in [None, Some(0), Some((1 << 20) + 5), Some(u64::from(bytes) - 1)] {
        let mut log = Log::open(SimDisk::new(1 << 30, 1), config).unwrap();
        let extent = write(&mut log, &large, &payload(9, bytes)).unwrap();
        let mut disk = log.into_disk().another(2);
        if let Some(at) = flipped {
            disk.flip(FIRST, ((u64::from(extent.block()) + 1) * BLOCK + at) * 8);
        }
        assert_eq!(bad_pages(&inspect(&disk).1), usize::from(flipped.is_some()), "{flipped:?}");
    }
}

#[test]
fn a_directory_opened_for_reading_is_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    assert!(HostDirectory::open_read_only(&directory.path().join("none")).is_err());
    let mut disk = HostDirectory::open_read_only(directory.path()).unwrap();
    disk.lock("owner").unwrap();
    assert_eq!(disk.create("owner", 10), Err(DiskError::ReadOnly));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    std::fs::write(directory.path().join("owner"), b"mine").unwrap();
    let file = disk.open("owner").unwrap();
    assert_eq!(disk.write(file, 0, b"x"), Err(DiskError::ReadOnly));
    assert_eq!(disk.remove("owner"), Err(DiskError::ReadOnly));
    assert_eq!(disk.rename("owner", "checkpoint"), Err(DiskError::ReadOnly));
    // Nor does the descriptor allow it, whoever the process runs as.
    assert!(disk.file(file).unwrap().write_at(b"x", 0).is_err());
    let mut bytes = [0; 4];
    disk.read(file, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"mine");
    // The lock is a real one, also of files that are only read.
    disk.lock("owner").unwrap();
    assert_eq!(HostDirectory::open(directory.path()).unwrap().lock("owner"), Err(DiskError::Locked));
}

/// Nobody could be kept out at the start, and somebody has come.
#[test]
fn a_manager_that_starts_where_no_owner_file_was_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = Log::open(
        orbitkv_store::FileDisk::<Vec<u8>>::new(HostDirectory::open(directory.path()).unwrap()),
        config(3),
    )
    .unwrap();
    write(&mut log, &page(1), &payload(1, page(1).payload_bytes)).unwrap();
    drop(log);
    std::fs::remove_file(directory.path().join("owner")).unwrap();
    let look = || Inspection::open(HostDirectory::open_read_only(directory.path()).unwrap()).unwrap();
    look().finish().unwrap();
    let inspection = look();
    let mut manager = HostDirectory::open(directory.path()).unwrap();
    manager.lock("owner").unwrap();
    assert!(inspection.finish().is_err());
}
