//! Segments and maps on real memfds.
#![allow(clippy::unwrap_used)]

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use orbitkv_shm::{Mapping, PAGE_BYTES, Segment, ShmError};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;

const BYTES: usize = 8 << 20;

fn segment() -> Segment {
    Segment::create("test", BYTES).unwrap()
}

fn fd_of(segment: &Segment) -> OwnedFd {
    segment.as_fd().try_clone_to_owned().unwrap()
}

fn allocated_bytes(segment: &Segment) -> usize {
    usize::try_from(fstat(segment.as_fd()).unwrap().st_blocks).unwrap() * 512
}

#[test]
fn sizes_and_names_that_cannot_be_are_refused() {
    for bytes in [0, 1, PAGE_BYTES + 1, usize::MAX & !(PAGE_BYTES - 1)] {
        assert!(matches!(Segment::create("x", bytes), Err(ShmError::BadSize { .. })), "{bytes}");
    }
    for name in [String::new(), "a\0b".to_owned(), "n".repeat(300)] {
        assert!(matches!(Segment::create(&name, PAGE_BYTES), Err(ShmError::BadName { .. })), "{name:?}");
    }
}

#[test]
fn a_size_beyond_the_address_space_names_the_bytes() {
    let bytes = 1 << 50;
    let error = Segment::create("huge", bytes).unwrap_err();
    assert!(matches!(error, ShmError::OutOfMemory { .. }), "{error:?}");
    assert!(error.to_string().contains(&bytes.to_string()), "{error}");
}

#[test]
fn seals_refuse_every_change_of_size_and_of_seals() {
    let segment = segment();
    assert_eq!(ftruncate(segment.as_fd(), 0), Err(Errno::PERM));
    assert_eq!(ftruncate(segment.as_fd(), 2 * BYTES as u64), Err(Errno::PERM));
    assert_eq!(fcntl_add_seals(segment.as_fd(), SealFlags::FUTURE_WRITE), Err(Errno::PERM));
}

#[test]
fn a_file_that_could_shrink_is_refused() {
    for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
        let fd = memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, BYTES as u64).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        let error = Mapping::from_fd(fd, BYTES).unwrap_err();
        assert!(matches!(error, ShmError::Unsealed { found } if found == seals), "{error:?}");
    }
    let plain = tempfile::tempfile().unwrap();
    plain.set_len(BYTES as u64).unwrap();
    assert!(Mapping::from_fd(plain.into(), BYTES).is_err(), "an ordinary file");
}

#[test]
fn a_size_other_than_announced_is_refused() {
    let segment = segment();
    for expected in [PAGE_BYTES, BYTES - 1, BYTES + PAGE_BYTES] {
        let error = Mapping::from_fd(fd_of(&segment), expected).unwrap_err();
        assert!(matches!(error, ShmError::WrongSize { actual, .. } if actual == BYTES as u64), "{error:?}");
    }
    assert!(matches!(Mapping::from_fd(fd_of(&segment), 0), Err(ShmError::BadSize { bytes: 0 })));
}

#[test]
fn both_sides_see_each_others_bytes() {
    let segment = segment();
    let mapping = Mapping::from_fd(fd_of(&segment), BYTES).unwrap();
    let mut seen = [0; 5];
    segment.write_at(BYTES - 5, b"owner").unwrap();
    mapping.read_at(BYTES - 5, &mut seen).unwrap();
    assert_eq!(&seen, b"owner");
    mapping.write_at(0, b"other").unwrap();
    segment.read_at(0, &mut seen).unwrap();
    assert_eq!(&seen, b"other");
}

#[test]
fn a_read_only_map_reads_and_refuses_writes() {
    let segment = segment();
    segment.write_at(7, b"seen").unwrap();
    let mapping = Mapping::from_fd_read_only(fd_of(&segment), BYTES).unwrap();
    let mut seen = [0; 4];
    mapping.read_at(7, &mut seen).unwrap();
    assert_eq!(&seen, b"seen");
    assert!(!mapping.is_writable());
    assert!(matches!(mapping.write_at(7, b"x"), Err(ShmError::ReadOnly)));
}

#[test]
fn no_access_leaves_the_bounds() {
    let segment = segment();
    let mut two = [0; 2];
    for offset in [BYTES - 1, BYTES, BYTES + 1, usize::MAX - 1, usize::MAX] {
        assert!(matches!(segment.read_at(offset, &mut two), Err(ShmError::OutOfBounds { .. })), "{offset}");
        assert!(matches!(segment.write_at(offset, &two), Err(ShmError::OutOfBounds { .. })), "{offset}");
        assert!(segment.range_ptr(offset, 2).is_err(), "{offset}");
    }
    assert_eq!(segment.range_ptr(BYTES, 0).unwrap() as usize, segment.as_ptr() as usize + BYTES);
    segment.read_at(BYTES - 2, &mut two).unwrap();
}

const CHILD: &str = "ORBITKV_SHM_TEST_CHILD";

/// Runs twice: as the parent, which owns the segment, and as the child that gets it as its standard input.
#[test]
fn a_child_process_shares_the_bytes() {
    if std::env::var_os(CHILD).is_some() {
        let fd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        let mapping = Mapping::from_fd(fd, BYTES).unwrap();
        let mut seen = [0; 6];
        mapping.read_at(PAGE_BYTES, &mut seen).unwrap();
        assert_eq!(&seen, b"parent");
        mapping.write_at(2 * PAGE_BYTES, b"child").unwrap();
        return;
    }
    let segment = segment();
    segment.write_at(PAGE_BYTES, b"parent").unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_child_process_shares_the_bytes"])
        .env(CHILD, "1")
        .stdin(Stdio::from(fd_of(&segment)))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let mut seen = [0; 5];
    segment.read_at(2 * PAGE_BYTES, &mut seen).unwrap();
    assert_eq!(&seen, b"child");
}

#[test]
fn maps_are_not_inherited_by_a_fork() {
    let segment = segment();
    let mapping = Mapping::from_fd(fd_of(&segment), BYTES).unwrap();
    let flags_of = |address: usize| {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = smaps.find(&format!("{address:x}-")).unwrap();
        let flags = smaps[start..].lines().find(|line| line.starts_with("VmFlags:")).unwrap();
        flags.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(flags_of(mapping.as_ptr() as usize).contains(&"dc".to_owned()), "don't copy on fork");
}

#[test]
fn populate_takes_the_memory_and_keeps_content() {
    for threads in [0, 1, 3, 1000] {
        let bytes = 40 << 20;
        let segment = Segment::create("populate", bytes).unwrap();
        segment.write_at(bytes / 2, b"kept").unwrap();
        assert!(allocated_bytes(&segment) < bytes, "nothing taken yet");
        segment.populate(threads).unwrap();
        assert!(allocated_bytes(&segment) >= bytes, "{threads} threads");
        let mut content = [0; 4];
        segment.read_at(bytes / 2, &mut content).unwrap();
        assert_eq!(&content, b"kept");
    }
}

/// A field of `/proc/self/smaps` for the map at that address, in bytes.
fn smaps_bytes(address: usize, field: &str) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = smaps.find(&format!("{address:x}-")).unwrap();
    let line = smaps[start..].lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// How many bytes that is depends on the kernel; what is said must be so, on both sides.
#[test]
fn huge_pages_are_mapped_as_such_by_owner_and_peer() {
    const HUGE: usize = 2 << 20;
    let segment = Segment::create("huge", 6 * HUGE + PAGE_BYTES).unwrap();
    segment.write_at(HUGE - 2, b"kept").unwrap();
    let huge_bytes = segment.populate(2).unwrap();
    assert!(huge_bytes <= 6 * HUGE && huge_bytes.is_multiple_of(HUGE), "{huge_bytes}");
    let mapping = Mapping::from_fd(fd_of(&segment), segment.bytes()).unwrap();
    for region in [segment.region(), mapping.region()] {
        assert_eq!(region.as_ptr() as usize % HUGE, 0);
        let mut content = [0; 4];
        (0..segment.bytes()).step_by(HUGE).for_each(|at| region.read_at(at, &mut content).unwrap());
        region.read_at(HUGE - 2, &mut content).unwrap();
        assert_eq!(&content, b"kept");
        assert!(smaps_bytes(region.as_ptr() as usize, "ShmemPmdMapped:") >= huge_bytes);
    }
}

#[test]
fn punching_gives_memory_back_under_a_live_map() {
    let segment = segment();
    segment.populate(2).unwrap();
    let mapping = Mapping::from_fd(fd_of(&segment), BYTES).unwrap();
    mapping.write_at(BYTES / 2, &[0xa5; 64]).unwrap();
    segment.punch_all().unwrap();
    assert_eq!(allocated_bytes(&segment), 0);
    let mut content = [1; 64];
    mapping.read_at(BYTES / 2, &mut content).unwrap();
    assert_eq!(content, [0; 64]);
    assert_eq!(fstat(segment.as_fd()).unwrap().st_size, i64::try_from(BYTES).unwrap());
}

#[test]
fn memory_stays_mapped_while_its_region_is_held() {
    let segment = segment();
    segment.write_at(0, b"held").unwrap();
    let mapping = Mapping::from_fd(fd_of(&segment), BYTES).unwrap();
    let region = mapping.region().clone();
    drop(mapping);
    drop(segment);
    let mut content = [0; 4];
    region.read_at(0, &mut content).unwrap();
    assert_eq!(&content, b"held");
}
