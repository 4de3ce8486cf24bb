//! `orbitkv verify-ssd` on directories that the store has written.
// Helpers of tests may stop a test.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use orbitkv_store::{
    Direction, Disk, FileDisk, HostDirectory, Log, LogConfig, PageName, PageRecord, Priority, Request, crc64,
};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

const BLOCK: u64 = 4096;
const SEGMENT: u64 = 16 * BLOCK;
const CONFIG: LogConfig =
    LogConfig { capacity_bytes: 12 * SEGMENT, segment_bytes: SEGMENT, min_free_bytes: 0 };
/// One block of header and two of payload: four of them fill a segment.
const PAYLOAD: u32 = 8000;

/// One test at a time: between fork and exec, a process that another test starts holds the locks of this one.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

type TestLog = Log<FileDisk<Vec<u8>>>;

fn open(path: &Path) -> TestLog {
    let mut log = Log::open(FileDisk::new(HostDirectory::open(path).unwrap()), CONFIG).unwrap();
    while log.recover().is_some() {}
    log
}

/// Writes a shard of a page as the manager's I/O thread does; returns segment and offset of its header.
fn write(
    log: &mut TestLog,
    namespace: u8,
    group: u16,
    key: u8,
    (shard, shard_count): (u16, u16),
) -> (u32, u64) {
    let payload = vec![key; PAYLOAD as usize];
    let page = PageRecord {
        name: PageName { namespace: [namespace; 32], group, key: [key; 32], shard },
        shard_count,
        parent: None,
        depth: 0,
        boundary: 16,
        payload_bytes: PAYLOAD,
        payload_crc: crc64(&payload),
    };
    let at = log.append(&page).unwrap();
    let mut buffer = at.header.to_vec();
    buffer.extend_from_slice(&payload);
    buffer.resize(at.bytes as usize, 0);
    let (direction, priority) = (Direction::Write, Priority::Background);
    let (file, offset, bytes) = (at.file, at.offset, at.bytes);
    log.disk_mut().submit(Request { token: 0, direction, priority, file, offset, bytes, buffer }).unwrap();
    let mut done = Vec::new();
    log.disk_mut().poll(&mut done);
    log.written(at.extent, &done.remove(0).result).unwrap();
    (at.extent.segment(), offset)
}

/// Six whole pages of one group, and one of two shards that lacks the second.
fn filled(path: &Path) -> (TestLog, Vec<(u32, u64)>) {
    let mut log = open(path);
    let mut places: Vec<_> = (1..=6).map(|key| write(&mut log, 0xA1, 0, key, (0, 1))).collect();
    places.push(write(&mut log, 0xB2, 3, 7, (0, 2)));
    (log, places)
}

fn closed(path: &Path) -> Vec<(u32, u64)> {
    let (log, places) = filled(path);
    drop(log.close().unwrap());
    places
}

fn segment_name(segment: u32) -> String {
    format!("segment-{segment:06}.okv")
}

fn flip(path: &Path, file: &str, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path.join(file)).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

fn verify(path: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orbitkv")).arg("verify-ssd").arg(path).args(words).output().unwrap()
}

/// Exit code, standard output, standard error.
fn said(path: &Path) -> (i32, String, String) {
    let output = verify(path, &[]);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Exit code and report.
fn json(path: &Path) -> (i32, serde_json::Value) {
    let output = verify(path, &["--json"]);
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
}

/// Names and contents.
fn contents(path: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.map(|file| (file.display().to_string(), fs::read(&file).unwrap())).collect();
    files.sort();
    files
}

#[test]
fn a_clean_directory_is_listed_and_left_as_it_is() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    closed(directory.path());
    let before = contents(directory.path());
    let (code, out, err) = said(directory.path());
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    for part in ["2 files, 128.0 KiB: 2 sealed, 0 without", "epoch 1", "clean: ", "names are not stored"] {
        assert!(out.contains(part), "{part} is not in:\n{out}");
    }
    let row = |start: &str| {
        let line = out.lines().find(|line| line.starts_with(start)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("a1a1a1a1a1a1 "), ["a1a1a1a1a1a1", "0", "6", "0", "46.9", "KiB", "0", "1", "6"]);
    assert_eq!(row("b2b2b2b2b2b2 "), ["b2b2b2b2b2b2", "3", "1", "1", "7.8", "KiB", "0", "7", "7"]);
    assert!(contents(directory.path()) == before);
}

#[test]
fn json_says_the_same() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    closed(directory.path());
    let (code, report) = json(directory.path());
    assert_eq!((code, report["outcome"].as_str()), (0, Some("clean")));
    assert_eq!((report["format"].as_u64(), report["epoch"].as_u64()), (Some(1), Some(1)));
    assert_eq!((report["owner"].as_str(), report["checkpoint"].as_str()), (Some("whole"), Some("whole")));
    assert_eq!(report["segments"]["sealed"], 2);
    assert_eq!(report["namespaces"][0]["namespace"], "a1".repeat(32));
    let want = serde_json::json!({
        "group": 3, "pages": 1, "incomplete_pages": 1, "shards": 1, "bytes": 8000, "bad_shards": 0,
        "oldest_sequence": 7, "newest_sequence": 7,
    });
    assert_eq!(report["namespaces"][1]["groups"][0], want);
    assert_eq!(report["damage"]["listed"], serde_json::json!([]));
}

#[test]
fn a_flipped_byte_of_any_page_is_found_and_named() {
    let _alone = alone();
    for number in 0..7_u8 {
        // In the header, at the start of the payload, and its last byte.
        for inside in [60, BLOCK, BLOCK + u64::from(PAYLOAD) - 1] {
            let directory = tempfile::tempdir().unwrap();
            let (segment, offset) = closed(directory.path())[usize::from(number)];
            flip(directory.path(), &segment_name(segment), offset + inside);
            let (code, report) = json(directory.path());
            assert_eq!((code, report["outcome"].as_str()), (1, Some("damaged")), "{report}");
            assert_eq!(
                (report["damage"]["bad_pages"].as_u64(), report["damage"]["places"].as_u64()),
                (Some(1), Some(1))
            );
            let bad = &report["damage"]["listed"][0];
            assert_eq!(bad["file"], segment_name(segment));
            assert_eq!(bad["offset_bytes"], offset);
            assert_eq!(bad["page"]["key"], format!("{:02x}", number + 1).repeat(32));
            let what = bad["what"].as_str().unwrap();
            assert!(what.contains(if inside < BLOCK { "header" } else { "payload" }), "{what}");
            let (code, out, _) = said(directory.path());
            assert_eq!(code, 1);
            let line = format!("bad  {} at {offset}: {what}", segment_name(segment));
            assert!(
                out.contains(&line) && out.contains("DAMAGED: bad places: 1, of them bad pages: 1"),
                "{out}"
            );
        }
    }
}

#[test]
fn padding_is_nobodys() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (segment, offset) = closed(directory.path())[2];
    flip(directory.path(), &segment_name(segment), offset + BLOCK + u64::from(PAYLOAD));
    assert_eq!(said(directory.path()).0, 0);
}

#[test]
fn damage_to_what_describes_the_directory_is_named() {
    let _alone = alone();
    let cases = [
        ("owner", 12, "the owner file is damaged", 0),
        ("checkpoint", BLOCK + 3, "the checkpoint is damaged", 0),
        ("segment-000000.okv", 20, "the head of the segment is damaged", 0),
        ("segment-000000.okv", SEGMENT - 20, "the footer of the segment is damaged", SEGMENT - BLOCK),
        ("segment-000000.okv", SEGMENT - 2 * BLOCK, "the footer of the segment is damaged", SEGMENT - BLOCK),
    ];
    for (file, offset, what, at) in cases {
        let directory = tempfile::tempdir().unwrap();
        closed(directory.path());
        flip(directory.path(), file, offset);
        let (code, out, _) = said(directory.path());
        assert_eq!(code, 1, "{out}");
        assert!(out.contains(&format!("bad  {file} at {at}: {what}")), "{out}");
        assert!(out.contains("DAMAGED: bad places: 1, of them bad pages: 0"), "{out}");
        // All pages are found all the same.
        assert!(out.contains("a1a1a1a1a1a1     0          6"), "{out}");
    }
}

#[test]
fn a_cut_segment_is_found_with_the_pages_it_lost() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let places = closed(directory.path());
    let (segment, offset) = places[1];
    assert_eq!(segment, 0);
    let file = fs::OpenOptions::new().write(true).open(directory.path().join(segment_name(0))).unwrap();
    file.set_len(offset + BLOCK).unwrap();
    let (code, report) = json(directory.path());
    assert_eq!(code, 1);
    let what: Vec<_> =
        report["damage"]["listed"].as_array().unwrap().iter().map(|bad| &bad["what"]).collect();
    let in_first = places.iter().filter(|(segment, _)| *segment == 0).count();
    assert_eq!(
        what[0],
        &format!("{} pages that the checkpoint counts are not in the segment any more", in_first - 1)
    );
    assert_eq!(what[1], &format!("the file has {} bytes and was written with {SEGMENT}", offset + BLOCK));
    assert_eq!(report["damage"]["listed"][1]["offset_bytes"], offset + BLOCK);
}

#[test]
fn what_a_kill_leaves_is_clean_and_a_torn_page_there_says_so() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (log, places) = filled(directory.path());
    drop(log);
    let (code, out, _) = said(directory.path());
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("1 sealed, 1 without a footer"), "{out}");
    let (segment, offset) = places[6];
    flip(directory.path(), &segment_name(segment), offset + BLOCK);
    let (code, out, _) = said(directory.path());
    assert_eq!(code, 1);
    assert!(out.contains("1 of them in segments that were never sealed"), "{out}");
    let without = json(directory.path()).1;
    assert_eq!(without["damage"]["listed"][0]["unsealed"], true);
}

#[test]
fn a_cleared_namespace_and_older_copies_are_counted_apart() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (mut log, _) = filled(directory.path());
    write(&mut log, 0xA1, 0, 6, (0, 1));
    log.forget(&[0xB2; 32]).unwrap();
    drop(log.close().unwrap());
    let (code, report) = json(directory.path());
    assert_eq!(code, 0, "{report}");
    assert_eq!((report["older_copies"].as_u64(), report["forgotten_shards"].as_u64()), (Some(1), Some(1)));
    assert_eq!(report["namespaces"].as_array().unwrap().len(), 1);
    assert_eq!(report["namespaces"][0]["groups"][0]["pages"], 6);
}

/// Refused with exit code 2 and these words, in both forms, and nothing is changed.
fn refused(path: &Path, words: &[&str]) {
    let before = path.is_dir().then(|| fs::read_dir(path).unwrap().count());
    let (code, out, err) = said(path);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    for word in words {
        assert!(err.contains(word), "{word} is not in: {err}");
    }
    let (code, report) = json(path);
    assert_eq!((code, report["outcome"].as_str()), (2, Some("not_checked")));
    assert!(err.contains(report["error"].as_str().unwrap()));
    assert_eq!(before, path.is_dir().then(|| fs::read_dir(path).unwrap().count()));
}

#[test]
fn what_is_no_cache_directory_is_refused_and_left_alone() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    refused(directory.path(), &["is empty", "not mounted"]);
    let none = directory.path().join("none");
    refused(&none, &["cannot use the cache directory", "No such file"]);
    assert!(!none.exists());
    fs::write(directory.path().join("notes.txt"), b"mine").unwrap();
    refused(directory.path(), &["is not a cache directory"]);
    refused(&directory.path().join("notes.txt"), &["is not a directory"]);
    let real = tempfile::tempdir().unwrap();
    closed(real.path());
    std::os::unix::fs::symlink(real.path(), directory.path().join("link")).unwrap();
    refused(&directory.path().join("link"), &["symbolic link"]);
    assert_eq!(said(real.path()).0, 0);
}

#[test]
fn a_directory_in_use_is_refused_until_its_manager_ends() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let (log, _) = filled(directory.path());
    refused(directory.path(), &["holds", "stop it and try again"]);
    drop(log.close().unwrap());
    assert_eq!(said(directory.path()).0, 0);
}

#[test]
fn a_newer_format_is_not_taken_for_damage() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    closed(directory.path());
    let mut owner = fs::read(directory.path().join("owner")).unwrap();
    owner[8] = 9;
    let crc = crc64(&owner[..4088]);
    owner[4088..].copy_from_slice(&crc.to_le_bytes());
    fs::write(directory.path().join("owner"), owner).unwrap();
    refused(directory.path(), &["format 9", "newer release"]);
}

/// There is nothing to lock then, and nothing is made.
#[test]
fn a_missing_owner_or_checkpoint_is_no_damage() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    closed(directory.path());
    for name in ["owner", "checkpoint"] {
        fs::remove_file(directory.path().join(name)).unwrap();
        let (code, report) = json(directory.path());
        assert_eq!((code, report[name].as_str()), (0, Some("missing")), "{report}");
        assert!(!directory.path().join(name).exists());
    }
    // Nor is a segment file that the manager removed after the checkpoint.
    let directory = tempfile::tempdir().unwrap();
    closed(directory.path());
    fs::remove_file(directory.path().join(segment_name(1))).unwrap();
    let (code, report) = json(directory.path());
    assert_eq!((code, report["absent_files"][0].as_str()), (0, Some("segment-000001.okv")), "{report}");
}
