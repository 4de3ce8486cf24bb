//! On the host's own file system.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

mod support;

use orbitkv_store::{
    Advice, Block, Digest, Directory, DirectoryError, DiskError, FileDisk, HostDirectory, Log, LogConfig,
    StoreError, crc64, lock_holder,
};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use support::{BLOCK, SEGMENT, config, expected, page, payload, read, recover, write_all};

fn open(path: &Path, segments: u64) -> Log<FileDisk<Vec<u8>>> {
    Log::open(FileDisk::new(HostDirectory::open(path).unwrap()), config(segments)).unwrap()
}

/// What `du` would say, in bytes.
fn used_bytes(path: &Path) -> u64 {
    let blocks = |path: &Path| fs::symlink_metadata(path).unwrap().blocks() * 512;
    blocks(path) + fs::read_dir(path).unwrap().map(|entry| blocks(&entry.unwrap().path())).sum::<u64>()
}

#[test]
fn pages_outlive_the_process_and_the_cap_is_what_the_file_system_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made/when/missing");
    let mut log = open(&path, 5);
    for number in 0..120 {
        write_all(&mut log, [number]);
        let used = used_bytes(&path);
        assert!(used <= config(5).capacity_bytes, "{used} after page {number}");
        assert!(used <= log.usage().unwrap().used_bytes);
    }
    drop(log.close().unwrap());
    let mut log = open(&path, 5);
    let pages = recover(&mut log);
    assert!(pages.len() > 15);
    for stored in pages {
        let number = u64::from_le_bytes(stored.page.name.key[..8].try_into().unwrap());
        let bytes = read(&mut log, stored.extent, &expected(&stored.page)).unwrap();
        assert!(stored.page == page(number) && bytes == payload(number, stored.page.payload_bytes));
    }
    let mode = fs::metadata(path.join("owner")).unwrap().mode();
    assert_eq!((mode & 0o777, fs::metadata(&path).unwrap().mode() & 0o777), (0o600, 0o700));
}

#[test]
fn case_a56_a_second_owner_is_refused_until_the_first_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path(), 3);
    let second = FileDisk::<Vec<u8>>::new(HostDirectory::open(directory.path()).unwrap());
    let error = Log::open(second, config(3)).unwrap_err();
    assert_eq!(error.advice(), Advice::Fatal);
    assert!(error.to_string().contains("another manager holds the lock"), "{error}");
    assert_eq!(lock_holder(directory.path()), Some(std::process::id()));
    drop(first);
    assert_eq!(lock_holder(directory.path()), None);
    let epoch = |path: &Path| fs::read(path.join("owner")).unwrap()[12];
    assert_eq!(epoch(directory.path()), 1);
    drop(open(directory.path(), 3));
    assert_eq!(epoch(directory.path()), 2, "it grows with each opening");
}

#[test]
fn a_link_or_a_file_in_place_of_the_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let real = directory.path().join("real");
    fs::create_dir(&real).unwrap();
    let link = directory.path().join("link");
    symlink(&real, &link).unwrap();
    let error = HostDirectory::open(&link).unwrap_err();
    assert!(matches!(&error, DirectoryError::Link { path } if *path == link), "{error}");
    assert!(error.to_string().contains("symbolic link: name the directory"), "{error}");
    let file = directory.path().join("file");
    fs::write(&file, b"something").unwrap();
    assert!(matches!(HostDirectory::open(&file), Err(DirectoryError::NotADirectory { .. })));
    assert!(matches!(HostDirectory::open(&file.join("below")), Err(DirectoryError::Unusable { .. })));
    assert_eq!(fs::read_dir(&real).unwrap().count(), 0);
}

#[test]
fn a_directory_that_is_replaced_by_a_link_meanwhile_stays_the_old_one() {
    let directory = tempfile::tempdir().unwrap();
    let (real, moved, other) =
        (directory.path().join("real"), directory.path().join("moved"), directory.path().join("other"));
    fs::create_dir(&other).unwrap();
    let mut log = open(&real, 3);
    fs::rename(&real, &moved).unwrap();
    symlink(&other, &real).unwrap();
    write_all(&mut log, 0..12);
    drop(log.close().unwrap());
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0, "nothing is written where the link points to");
    assert_eq!(recover(&mut open(&moved, 3)).len(), 12);
}

#[test]
fn a_link_in_place_of_a_file_is_refused() {
    for name in ["segment-000000.okv", "checkpoint", "owner"] {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, b"precious").unwrap();
        let path = directory.path().join("cache");
        drop(open(&path, 3).close().unwrap());
        let _absent = fs::remove_file(path.join(name));
        symlink(&victim, path.join(name)).unwrap();
        let disk = FileDisk::<Vec<u8>>::new(HostDirectory::open(&path).unwrap());
        let error = Log::open(disk, config(3)).unwrap_err();
        assert!(matches!(&error, StoreError::NotAFile { file } if file == name), "{error}");
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }
}

#[test]
fn a_file_opened_once_more_is_the_same_file() {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().unwrap();
    let mut disk = HostDirectory::open(directory.path()).unwrap();
    let file = disk.create("a", 2 * BLOCK).unwrap();
    disk.rename("a", "b").unwrap();
    fs::write(directory.path().join("a"), b"another").unwrap();
    let again = disk.reopen(file, rustix::fs::OFlags::empty()).unwrap();
    again.write_all_at(&[7; 100], BLOCK).unwrap();
    let mut bytes = [0; 100];
    disk.read(file, BLOCK, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 100]);
    disk.close(file);
    assert!(matches!(disk.reopen(file, rustix::fs::OFlags::empty()), Err(DiskError::BadRequest(_))));
}

/// The block with that format, and a sum that holds.
fn with_format(block: &[u8], format: u32) -> Vec<u8> {
    let mut block: Block = block.try_into().unwrap();
    block[8..12].copy_from_slice(&format.to_le_bytes());
    let crc = crc64(&block[..4088]);
    block[4088..].copy_from_slice(&crc.to_le_bytes());
    block.to_vec()
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    for name in ["segment-000000.okv", "checkpoint", "owner"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut log = open(path, 3);
        write_all(&mut log, 0..3);
        drop(log.close().unwrap());
        let mut bytes = fs::read(path.join(name)).unwrap();
        let newer = with_format(&bytes[..BLOCK as usize], 7);
        bytes[..BLOCK as usize].copy_from_slice(&newer);
        fs::write(path.join(name), &bytes).unwrap();
        let contents = || {
            let files = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
            let mut files: Vec<_> = files.map(|path| (fs::read(&path).unwrap(), path)).collect();
            files.sort_by(|left, right| left.1.cmp(&right.1));
            files
        };
        let before = contents();
        let disk = FileDisk::<Vec<u8>>::new(HostDirectory::open(path).unwrap());
        let error = Log::open(disk, config(3)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("format 7") && text.contains("up to 1"), "{text}");
        assert!(contents() == before);
    }
}

#[test]
fn files_of_others_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["notes.txt", "segment-1.okv", "segment-000001.okv.bak"] {
        fs::write(directory.path().join(name), b"mine").unwrap();
    }
    fs::create_dir(directory.path().join("lost+found")).unwrap();
    let mut log = open(directory.path(), 3);
    write_all(&mut log, 0..30);
    drop(log.close().unwrap());
    for name in ["notes.txt", "segment-1.okv", "segment-000001.okv.bak"] {
        assert_eq!(fs::read(directory.path().join(name)).unwrap(), b"mine");
    }
}

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/format-1");
/// Pages in the fixture: those of `support::page` with these numbers.
const FIXTURE_PAGES: [u64; 5] = [0, 1, 2, 3, 8];
const FIXTURE_EXTRA: u64 = 5;

/// Committed once for each format; every later release reads it. Zeros at the end of a segment are left out.
#[test]
fn the_fixture_of_format_1_is_read() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["segment-000000.okv", "segment-000001.okv", "checkpoint", "owner"] {
        let mut bytes = fs::read(Path::new(FIXTURE).join(name)).unwrap();
        if name.starts_with("segment") {
            bytes.resize(SEGMENT as usize, 0);
        }
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    let mut log = open(directory.path(), 3);
    let mut found = Vec::new();
    for stored in recover(&mut log) {
        let number = u64::from_le_bytes(stored.page.name.key[..8].try_into().unwrap());
        assert_eq!(stored.page, page(number));
        let bytes = read(&mut log, stored.extent, &expected(&stored.page)).unwrap();
        assert!(bytes == payload(number, stored.page.payload_bytes));
        found.push(number);
    }
    found.sort_unstable();
    let mut want = [&FIXTURE_PAGES[..], &[FIXTURE_EXTRA]].concat();
    want.sort_unstable();
    assert_eq!(found, want);
    let first: Digest = page(0).name.namespace;
    assert_eq!(first, [1; 32]);
}

/// Makes the fixture again, for a new format: `cargo test -p orbitkv-store --test host -- --ignored make_fixture`.
#[test]
#[ignore = "writes into the source tree"]
fn make_fixture() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path(), 3);
    // A sealed segment, and one that a crash left open.
    write_all(&mut log, FIXTURE_PAGES);
    write_all(&mut log, [FIXTURE_EXTRA]);
    let mut disk = log.into_disk();
    assert_eq!(disk.list().unwrap().len(), 4, "two segments, checkpoint, owner");
    fs::create_dir_all(FIXTURE).unwrap();
    for file in disk.list().unwrap() {
        let mut bytes = fs::read(directory.path().join(&file.name)).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(end.next_multiple_of(BLOCK as usize));
        fs::write(Path::new(FIXTURE).join(&file.name), bytes).unwrap();
    }
}

#[test]
fn small_segments_on_a_large_capacity_are_many_files() {
    let directory = tempfile::tempdir().unwrap();
    let config = LogConfig { capacity_bytes: 64 * SEGMENT, segment_bytes: SEGMENT, min_free_bytes: 0 };
    let mut log = Log::open(FileDisk::new(HostDirectory::open(directory.path()).unwrap()), config).unwrap();
    write_all(&mut log, 0..400);
    let usage = log.usage().unwrap();
    assert!(usage.segments > 50 && usage.used_bytes <= config.capacity_bytes, "{usage:?}");
    assert!(used_bytes(directory.path()) <= config.capacity_bytes);
}
