//! What a host may refuse: io_uring, locked memory, room.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, missing_docs)]

mod support;

use orbitkv_store::{Direction, Directory, DiskError, HostDirectory};
use orbitkv_uring::{DiskConfig, DiskEngine, Engine, OpenError, PageDisk, PageIo};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use support::{
    BLOCK, assert_success, cannot, config, contents, forbid, heap, in_child, may, on_disk, one, open,
    pattern, pool, request, role, segment,
};

#[test]
fn where_io_uring_is_forbidden_threads_take_over_and_say_why() {
    let dir = on_disk();
    let path = dir.path().to_owned();
    let forbidden = std::thread::spawn(move || {
        // As in a container.
        forbid(libc::SYS_io_uring_setup, libc::EPERM);
        let directory = HostDirectory::open(&path).unwrap();
        let error = PageDisk::open(directory, &config(DiskEngine::IoUring)).unwrap_err();
        assert!(matches!(error, OpenError::Ring { .. }));
        assert!(error.to_string().contains("not permitted"), "{error}");
        let mut disk = open(&path, &config(DiskEngine::Auto));
        assert_eq!((disk.mode().engine, disk.mode().registered), (Engine::Threads, false));
        assert!(disk.mode().why.as_ref().unwrap().contains("not permitted"), "{}", disk.mode());
        let file = disk.create("file", BLOCK as u64).unwrap();
        let bytes = pattern(1, BLOCK);
        one(&mut disk, request(1, Direction::Write, file, 0, heap(&bytes))).result.unwrap();
        let read = one(&mut disk, request(2, Direction::Read, file, 0, heap(&[0; BLOCK])));
        assert!(read.result.is_ok() && contents(&read.buffer) == bytes);
    });
    forbidden.join().unwrap();
    // The control: this thread may.
    assert_eq!(open(dir.path(), &config(DiskEngine::Auto)).mode().engine, Engine::IoUring);
}

/// In a child: the limit is the process's. Without the capability that lifts it, which root has.
fn little_locked_memory(dir: &Path) {
    let limit = Some(1 << 20);
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).unwrap();
    let mine = capabilities(None).unwrap();
    let fewer = |set: CapabilitySet| set - CapabilitySet::IPC_LOCK;
    set_capabilities(
        None,
        CapabilitySets {
            effective: fewer(mine.effective),
            permitted: fewer(mine.permitted),
            inheritable: fewer(mine.inheritable),
        },
    )
    .unwrap();
    let mut disk = open(dir, &config(DiskEngine::IoUring));
    let (small, large) = (segment(16 * BLOCK), segment(8 << 20));
    disk.add_segment(small.region());
    assert!(disk.mode().registered, "{}", disk.mode());
    disk.add_segment(large.region());
    assert_eq!((disk.mode().engine, disk.mode().registered), (Engine::IoUring, false));
    assert!(disk.mode().why.as_ref().unwrap().contains("memory-lock limit"), "{}", disk.mode());
    assert_eq!(Arc::strong_count(small.region()), 2);
    // Both work.
    let file = disk.create("file", (16 * BLOCK) as u64).unwrap();
    for (seed, segment) in [(1, &small), (2, &large)] {
        let bytes = pattern(seed, 4 * BLOCK);
        one(&mut disk, request(1, Direction::Write, file, 4, pool(segment.region(), 4, &bytes)))
            .result
            .unwrap();
        let read = request(2, Direction::Read, file, 4, pool(segment.region(), 8, &[0; 4 * BLOCK]));
        let read = one(&mut disk, read);
        assert!(read.result.is_ok() && contents(&read.buffer) == bytes);
    }
    disk.remove_segment(large.region());
    assert!(disk.mode().registered, "all that is left is");
}

#[test]
fn without_locked_memory_buffers_go_unregistered_and_it_says_why() {
    if let Some((_, dir)) = role() {
        return little_locked_memory(&dir);
    }
    let dir = on_disk();
    let test = "without_locked_memory_buffers_go_unregistered_and_it_says_why";
    assert_success(&in_child(&[], test, "memlock", dir.path()));
    // The control: with enough of it the same segment is registered.
    let mut disk = open(dir.path(), &config(DiskEngine::IoUring));
    let large = segment(8 << 20);
    disk.add_segment(large.region());
    if rustix::process::getrlimit(Resource::Memlock).current.is_none_or(|bytes| bytes > 16 << 20)
        || capabilities(None).unwrap().effective.contains(CapabilitySet::IPC_LOCK)
    {
        assert!(disk.mode().registered, "{}", disk.mode());
    }
}

/// Writes until the file system is full, then shows that what was written is whole.
fn fill(dir: &Path, engine: DiskEngine) {
    const PAGE_BLOCKS: usize = 16;
    let mut disk = open(dir, &DiskConfig { drop_wait: std::time::Duration::from_secs(60), ..config(engine) });
    // Without room behind it: `create` would be refused before there is a write.
    std::fs::File::create(dir.join("sparse")).unwrap().set_len(1 << 30).unwrap();
    let file = disk.open("sparse").unwrap();
    let page = |number: usize| pattern(number as u64, PAGE_BLOCKS * BLOCK);
    let mut written = 0;
    let error = loop {
        assert!(written < 10_000, "the file system has no end");
        let buffer = heap(&page(written));
        let write = one(&mut disk, request(1, Direction::Write, file, written * PAGE_BLOCKS, buffer));
        match write.result {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, DiskError::NoSpace, "{engine:?} after {written} pages");
    assert!(written > 10, "it was not empty");
    for number in 0..written {
        let buffer = heap(&[0; PAGE_BLOCKS * BLOCK]);
        let read = one(&mut disk, request(2, Direction::Read, file, number * PAGE_BLOCKS, buffer));
        read.result.unwrap();
        assert!(contents(&read.buffer) == page(number), "page {number}");
    }
    drop(disk);
    std::fs::remove_file(dir.join("sparse")).unwrap();
}

/// A file system of its own, mounted where only this process sees it.
fn mounted(dir: &Path, ext4: bool) {
    let mount = |arguments: &[&str]| {
        let status = Command::new("mount").args(arguments).arg(dir).status().unwrap();
        assert!(status.success(), "mount {arguments:?}");
    };
    let image = dir.with_extension("image");
    if ext4 {
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal"]).arg(&image).status().unwrap();
        assert!(made.success());
        mount(&["-o", "loop", image.to_str().unwrap()]);
    } else {
        mount(&["-t", "tmpfs", "-o", "size=2m", "tmpfs"]);
    }
    for engine in [DiskEngine::IoUring, DiskEngine::Threads] {
        fill(dir, engine);
    }
    assert!(Command::new("umount").arg(dir).status().unwrap().success());
    let _ = std::fs::remove_file(image);
}

#[test]
fn a_full_file_system_says_so_and_keeps_what_it_has() {
    if let Some((kind, dir)) = role() {
        return mounted(&dir, kind == "ext4");
    }
    let test = "a_full_file_system_says_so_and_keeps_what_it_has";
    let base = on_disk();
    let dir = base.path().join("mounted");
    std::fs::create_dir(&dir).unwrap();
    // An ordinary user is root in a user namespace of his own, where he may mount tmpfs.
    let namespace = ["unshare", "--map-root-user", "--mount"];
    if may(&[&namespace[..], &["mount", "-t", "tmpfs", "tmpfs", dir.to_str().unwrap()]].concat()) {
        assert_success(&in_child(&namespace, test, "tmpfs", &dir));
    } else {
        cannot("a full tmpfs, mounts are refused");
    }
    // Loop devices are root's, so this one is extra.
    if may(&["unshare", "--mount", "losetup", "--find"]) && may(&["mkfs.ext4", "-V"]) {
        assert_success(&in_child(&["unshare", "--mount"], test, "ext4", &dir));
    } else {
        eprintln!("not tested: a full ext4, this user has no loop devices");
    }
}
